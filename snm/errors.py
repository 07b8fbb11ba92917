"""The errors that a user can cause, in one tree:

    SnmError
    ├── InputError      text or a vocabulary that cannot be read, or is empty (ValueError)
    │   └── InputNotFound   text that does not exist (FileNotFoundError)
    ├── SpecError       a feature or metafeature specification that is not valid (ValueError)
    ├── SettingsError   options or arguments that contradict each other or are out of range (ValueError)
    ├── FormatError     a model folder that is unfinished, damaged or of another version (ValueError)
    │   └── ModelNotFound   a model folder that does not exist (FileNotFoundError)
    ├── ClosedModel     a call of a model that was closed (ValueError, as of a closed file)
    └── MissingExtra    an optional dependency that is not installed (ImportError)

A message says what was found, what was expected and what to do. The command line prints it on one line, without a
traceback, and exits with code 2.
"""


class SnmError(Exception):
    """Base of all errors that a user can cause."""


class InputError(SnmError, ValueError):
    """Text or a vocabulary that cannot be read, or is empty."""


class InputNotFound(InputError, FileNotFoundError):
    """Text that does not exist."""


class SpecError(SnmError, ValueError):
    """A feature or metafeature specification that is not valid."""


class SettingsError(SnmError, ValueError):
    """Options or arguments that contradict each other or are out of range."""


class FormatError(SnmError, ValueError):
    """A model folder that is unfinished, damaged or of another version."""


class ModelNotFound(FormatError, FileNotFoundError):
    """A model folder that does not exist."""


class ClosedModel(SnmError, ValueError):
    """A call of a model that was closed."""


class MissingExtra(SnmError, ImportError):
    """An optional dependency that is not installed."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs the package {package!r}, which is not installed; "
            f"install it with: pip install {package} (it is in the extra {extra!r} of snm)"
        )
