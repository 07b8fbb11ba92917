"""`python -m snm` is `snm`."""

from snm.cli import main

main(prog_name="snm")
