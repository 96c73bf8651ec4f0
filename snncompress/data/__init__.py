"""Data sets, a file a source, and the batches that training takes from them."""
