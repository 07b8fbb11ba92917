"""Fields: what is known of a line beside its words, written before it as `speaker=ann topic=law the words of the line`.

A field's value is context, never a target. In a vocabulary the values stand behind all words, with a mark before them
that words do not have; each field has one more entry, without a value, for values that are not in the vocabulary. In a
text the values follow `<S>`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

from snm.arguments import shown
from snm.errors import SettingsError

MARK = "\x01"
MAX_FIELDS = 16
_SPACE = r"[ \t\r\v\f]"
_NAME = re.compile(r"[A-Za-z][\w.-]{0,63}")


def field_names(names: str | Iterable[str]) -> tuple[str, ...]:
    """Validated names of fields: `speaker,topic`, or a list of them."""
    if isinstance(names, str):
        names = [name.strip() for name in names.split(",")]
    if not isinstance(names, list | tuple):
        raise SettingsError(f"fields is {shown(names)}; expected names, such as 'speaker,topic'")
    for name in names:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise SettingsError(
                f"{shown(name)} is no name of a field; expected letters, digits, '_', '.' and '-', a letter first"
            )
    if len(set(names)) < len(names) or len(names) > MAX_FIELDS:
        raise SettingsError(f"fields {', '.join(names)}: expected each once, and at most {MAX_FIELDS}")
    return tuple(names)


def others(name: str) -> str:
    """The entry of a vocabulary that stands for a field's unknown values."""
    return f"{MARK}{name}="


def name_of(word: str) -> str:
    """The field of a value in a vocabulary."""
    return word[1:].partition("=")[0]


_VALUES_BACKWARD = re.compile(rb"(?:\n[^\n]*=[\w.-]{0,63}[A-Za-z]\x01)*")
_OTHERS = re.compile(rb"^\x01[A-Za-z][\w.-]{0,63}=\n", re.MULTILINE)


def start_of_values(lines: bytes) -> int:
    """Where the values of fields begin in the lines of a vocabulary; -1 if it has none.

    They are read backward: forward, each line with a mark could be the first, in a list of a stranger's choice.
    """
    if b"\n\x01" not in lines or not lines.endswith(b"\n"):
        return -1
    backward = _VALUES_BACKWARD.match(lines[::-1])
    assert backward is not None
    found = _OTHERS.search(lines, max(1, len(lines) - backward.end()))
    return -1 if found is None else found.start()


class FieldMarker:
    """Marks the fields before each line of a text, which comes in blocks."""

    def __init__(self, names: Sequence[str], known: Collection[bytes] | None = None) -> None:
        """`known`: the values of a vocabulary; others become those without a value. None keeps all values."""
        field = f"(?:{'|'.join(map(re.escape, names))})="
        one = rf"{field}[^ \t-\r]*(?:{_SPACE}+|(?=\n)|\Z)"
        self._fields = re.compile(rf"^{_SPACE}*((?:{one})+)".encode(), re.MULTILINE)
        self._known = known
        self._inside = False  # of a line that began in the block before
        self.bytes = 0
        """Of the fields that were marked, and one after each."""

    def __call__(self, block: bytes) -> bytes:
        if MARK.encode() in block:
            block = block.replace(MARK.encode(), b"\x02")
        begin = block.find(b"\n") + 1 or len(block) if self._inside else 0
        self._inside = not block.endswith(b"\n") if block else self._inside
        return block[:begin] + self._fields.sub(self._mark, block[begin:])

    def _mark(self, match: re.Match[bytes]) -> bytes:
        marked = [MARK.encode() + field for field in match.group(1).split()]
        if self._known is not None:
            marked = [value if value in self._known else value[: value.index(b"=") + 1] for value in marked]
        made = b" ".join(marked) + b" "
        self.bytes += len(made)
        return made
