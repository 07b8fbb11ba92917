"""The labels of a CTC model: characters, or pieces of words (BPE, SentencePiece), and the blank."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from snm.arguments import shown, whole_number
from snm.errors import SettingsError
from snm.layouts.decoding import BEGINS, BLANK, LABEL, LETTERS, NONE, SPACE, Labels

BOUNDARY = "▁"  # stands for the space before a piece
UNKNOWN_PIECE = "▁⁇▁"
_PAD = re.compile(r"[<\[](pad|blank|blk|ctc|eps|epsilon)[>\]]", re.IGNORECASE)
_UNKNOWN = re.compile(r"[<\[]unk[>\]]", re.IGNORECASE)
_SPECIAL = re.compile(r"[<\[].+[>\]]")


@dataclass(frozen=True)
class LabelSet:
    """Labels in the order of the logits' columns, as pyctcdecode's alphabet has them."""

    names: tuple[str, ...]
    """The blank is "", the space " "; pieces that begin a word begin with ▁."""
    pieces: bool
    """Whether labels are pieces of words; otherwise they are characters."""
    appended: bool
    """Whether the blank was not among the given labels, so the last column of the logits is the blank's."""

    def texts(self) -> list[str]:
        """What each label adds to its word."""
        return [name.removeprefix(BOUNDARY).removesuffix(BOUNDARY) if self.pieces else name for name in self.names]

    def arrays(self, ids: dict[str, int] | None) -> Labels:
        """The labels for kernels. `ids`: of the vocabulary of a token-level model; None for one of words."""
        labels, characters = np.zeros(len(self.names), LABEL), list[int]()
        for label, name, text in zip(labels, self.names, self.texts(), strict=True):
            begins = self.pieces and name.startswith(BOUNDARY)
            kind = BLANK if name == "" else BEGINS if begins else LETTERS
            if name == " " and not self.pieces and ids is None:
                kind = SPACE
            added = text if ids is None else name.replace(BOUNDARY, " ")
            closes = self.pieces and name.endswith(BOUNDARY) and name != BOUNDARY
            label["kind"], label["closes"] = kind, closes
            label["start"], label["stop"] = len(characters), len(characters) + len(added)
            label["id"] = NONE if ids is None else ids.get(name, NONE)
            characters += [ord(c) for c in added]
        return Labels(labels, np.array(characters, np.uint32), np.array([ids is not None], np.int64))


def label_set(labels: Sequence[str], blank: str | int | None = None) -> LabelSet:
    """Labels by pyctcdecode's conventions. `blank`: the blank's label or index, where it has another name.

    Without it the blank is "", [PAD] or <pad> or the like, or "_"; if there is none, it is one more column at the end.
    `|` is the space where no label is " ".
    """
    names = _as_list(labels)
    pieces = any(name.startswith(("##", BOUNDARY)) for name in names)
    if len(set(names)) < len(names):
        twice = next(name for i, name in enumerate(names) if name in names[:i])
        raise SettingsError(f"the label {twice!r} is there twice; expected each once")
    if pieces and any(" " in name for name in names):
        wrong = next(name for name in names if " " in name)
        raise SettingsError(f"the label {wrong!r} has a space, but others begin with ▁ or ##; expected ▁ for the space")
    if blank is not None:
        names[_index_of(blank, names)] = ""
    if any(name.startswith("##") for name in names):
        names = [_from_hashes(name) for name in names]
    names = [_plain(name, pieces) for name in names]
    if not pieces:
        _rename(names, "|", " ")
        _rename(names, "_", "")
    if names.count("") > 1:
        raise SettingsError("several labels are the blank; expected one: say which with blank=")
    appended = "" not in names
    return LabelSet(tuple([*names, ""] if appended else names), pieces, appended)


def _as_list(labels: Any) -> list[str]:
    if isinstance(labels, str) or not hasattr(labels, "__iter__"):
        raise SettingsError(f"labels is {shown(labels)}; expected a list of strings, in the order of the logits")
    names = list(labels)
    wrong = [name for name in names if not isinstance(name, str)]
    if wrong or not names:
        raise SettingsError(f"labels has {shown(wrong[0]) if wrong else 'no element'}; expected strings")
    return names


def _index_of(blank: Any, names: list[str]) -> int:
    if isinstance(blank, str):
        if blank not in names:
            raise SettingsError(f"blank is {blank!r}, which is no label; expected one of the labels, or its index")
        return names.index(blank)
    return whole_number("blank", blank, 0, len(names) - 1)


def _plain(name: str, pieces: bool) -> str:
    if _PAD.fullmatch(name):
        return ""
    if _UNKNOWN.fullmatch(name):
        return UNKNOWN_PIECE if pieces else "⁇"
    return name


def _from_hashes(name: str) -> str:
    """A piece as BERT's tokenizers write it, ## where no word begins, in the other way: ▁ where one does."""
    if name.startswith("##"):
        return name[2:]
    return name if name in ("", BOUNDARY, UNKNOWN_PIECE) or _SPECIAL.fullmatch(name) else BOUNDARY + name


def _rename(names: list[str], old: str, new: str) -> None:
    if old in names and new not in names:
        names[names.index(old)] = new
