"""The numbers of the documents, each a command."""
