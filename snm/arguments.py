"""Validation of arguments. Every function returns the value as a plain Python object, or raises an error."""

from __future__ import annotations

import errno
import operator
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from snm.errors import SettingsError

MAX_THREADS = 1024


def shown(value: object) -> str:
    """A value for a message, on one line, cut where it is long."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:80]}..."


def whole_number(name: str, value: Any, low: int, high: int | None = None) -> int:
    """A whole number from `low` to `high`, of Python or NumPy."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None:
        raise SettingsError(f"{name} is {shown(value)}; expected a whole number")
    if number < low:
        raise SettingsError(f"{name} is {number:,}; expected {low:,} or more")
    if high is not None and number > high:
        raise SettingsError(f"{name} is {shown(number)}; expected {high:,} or less")
    return number


def real_number(name: str, value: Any) -> float:
    """A number of Python or NumPy, as a float."""
    if not isinstance(value, str | bytes | bool) and getattr(value, "shape", ()) == ():
        try:
            return float(value)
        except (TypeError, ValueError, OverflowError):
            pass
    raise SettingsError(f"{name} is {shown(value)}; expected a number")


def set_whole_numbers(settings: Any, **ranges: tuple[int, int | None]) -> None:
    """Validate whole numbers of a frozen dataclass, given (low, high). None stays None where that is the default."""
    for name, (low, high) in ranges.items():
        if not _is_default_none(settings, name):
            object.__setattr__(settings, name, whole_number(name, getattr(settings, name), low, high))


def set_real_numbers(settings: Any, *names: str) -> None:
    """Validate numbers of a frozen dataclass. None stays None where that is the default."""
    for name in names:
        if not _is_default_none(settings, name):
            object.__setattr__(settings, name, real_number(name, getattr(settings, name)))


def _is_default_none(settings: Any, name: str) -> bool:
    return getattr(settings, name) is None and settings.__dataclass_fields__[name].default is None


def flag(name: str, value: Any) -> bool:
    """True or False, of Python or NumPy."""
    if isinstance(value, bool) or type(value).__name__ in ("bool", "bool_"):  # NumPy's has had two names
        return bool(value)
    raise SettingsError(f"{name} is {shown(value)}; expected True or False")


def choice(name: str, value: Any, known: Sequence[str]) -> str:
    """One of the known strings."""
    if not isinstance(value, str) or value not in known:
        raise SettingsError(f"{name} {shown(value)} is not known; expected one of {', '.join(known)}")
    return value


def functions(**given: Any) -> None:
    """Validate arguments that are called."""
    for name, value in given.items():
        if not callable(value):
            raise SettingsError(f"{name} is {shown(value)}; expected a function")


def file_path(name: str, value: Any) -> Path:
    """The path of a file or a folder."""
    text = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    wrong = "expected a string or a Path" if text != "" else "the name is empty"
    if isinstance(text, str) and text:
        try:
            os.stat(text)
            return Path(text)
        except ValueError:
            wrong = "no file can have that name"
        except OSError as error:
            if error.errno != errno.ENAMETOOLONG:
                return Path(text)
            wrong = "the name is too long"
    raise SettingsError(f"{name} is {shown(value)}, which is no path: {wrong}")
