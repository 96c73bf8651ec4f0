"""What is done about wrong labels, a file each; the contract is in ``snncompress/training/correcting.py``."""
