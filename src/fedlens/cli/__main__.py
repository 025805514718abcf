"""`python -m fedlens.cli` is the command `fedlens`."""

from fedlens.cli import main

main()
