"""What a request may take: bytes, time, and how many at once."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from snm.arguments import real_number, whole_number
from snm.errors import SettingsError

MAX_TEXTS = 1000  # of a request
MAX_EXPLAINED = 500  # words of a text that is explained
MAX_WORDS = 1000  # of a generated sentence
MAX_NEXT = 1000  # next words of a text


@dataclass(frozen=True)
class Limits:
    """Limits of the server."""

    max_bytes: int = 1 << 20
    """Of the body of a request."""
    seconds: float = 30.0
    """For a request to arrive, to be answered, and for the client to take each part of the answer."""
    max_requests: int = 64
    """Answered at a time, waiting ones included; more are told to come later."""

    def __post_init__(self) -> None:
        whole_number("max_bytes", self.max_bytes, 1)
        whole_number("max_requests", self.max_requests, 1)
        if not 0 < real_number("seconds", self.seconds) <= 86400:
            raise SettingsError(f"seconds is {self.seconds}; expected a number above 0, up to 86,400")


class Refusal(Exception):
    """A request that is not answered, and the status code that says so."""

    def __init__(self, status: int, message: str, headers: Iterable[tuple[str, str]] = ()) -> None:
        super().__init__(message)
        self.status, self.message, self.headers = status, message, dict(headers)


class Deadline:
    """When the answer to a request must be finished."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.end = seconds, time.monotonic() + seconds

    def check(self) -> None:
        if time.monotonic() > self.end:
            raise Refusal(413, f"the answer took longer than {self.seconds:g} seconds; ask for less at a time")
