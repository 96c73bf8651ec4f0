"""``python -m snncompress``."""

from snncompress.cli import main

main()
