"""The command line: parse, call, print. Whatever is slow to import is imported inside the commands."""

from snm.cli.main import main

__all__ = ["main"]
