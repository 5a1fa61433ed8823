"""`python -m pipeline.cli` is the command `wmt`."""

from pipeline.cli.app import main

main()
