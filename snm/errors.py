"""The errors that a user can cause, in one tree:

    SnmError
    ├── InputError      text or a vocabulary that cannot be read, or is empty
    ├── SpecError       a feature or metafeature specification that is not valid
    ├── SettingsError   options that contradict each other or are out of range
    ├── FormatError     a model folder that is missing, unfinished, damaged or of another version
    └── MissingExtra    an optional dependency that is not installed

A message says what was found, what was expected and what to do. The command line prints it on one line, without a
traceback, and exits with code 2.
"""


class SnmError(Exception):
    """Base of all errors that a user can cause."""


class InputError(SnmError):
    """Text or a vocabulary that cannot be read, or is empty."""


class SpecError(SnmError):
    """A feature or metafeature specification that is not valid."""


class SettingsError(SnmError):
    """Options that contradict each other or are out of range."""


class FormatError(SnmError):
    """A model folder that is missing, unfinished, damaged or of another version."""


class MissingExtra(SnmError):
    """An optional dependency that is not installed."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs the package {package!r}, which is not installed; "
            f"install it with: pip install {package} (it is in the extra {extra!r} of snm)"
        )
