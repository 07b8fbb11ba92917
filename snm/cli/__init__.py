"""The command line: parse, call, print. Whatever is slow to import is imported inside the commands."""

import signal
import sys
from contextlib import suppress
from typing import Any


def main(*arguments: Any, **options: Any) -> None:
    """Run the command of the arguments, and end the process."""
    try:
        from snm.cli.main import main as run

        run(*arguments, **options)
    except KeyboardInterrupt:  # while modules are imported; later ones are handled in `snm.cli.terminal`
        print("snm: interrupted", file=sys.stderr)
        sys.exit(130)
    except SystemExit:
        with suppress(ValueError):  # not the main thread
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # all is done
        raise
