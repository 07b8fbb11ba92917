"""The entries of a model's manifest: writing, and validation when a model is opened. docs/format.md specifies them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from snm import storage
from snm.arguments import shown
from snm.errors import FormatError
from snm.features.extraction import Extractor
from snm.layouts.matrix import MARK_BITS
from snm.text.spelling import MAX_BYTES, MAX_ORDER, Spelling, thinned
from snm.text.tokenizers import Tokenizer, describe_tokenizer, read_tokenizer
from snm.text.vocabulary import Vocabulary
from snm.version import __version__

SIZE = range(1 << 62)
MAX_NUMBER = 1e300
_ALL = {
    "written_by": str,
    "vocabulary": {"words": range(3, 1 << 32), "closed": bool, "document": bool},
    "files": {"*": {"bytes": SIZE, "sha256": str}},
}
_ROWS = {
    "features": str,
    "layout": dict.fromkeys(("target_bits", "type_bits", "bucket_bits"), range(64)),
    "hash_bits": range(64),
    "families": {"*": str},
    "rows": SIZE,
    "links": SIZE,
}
_NETWORK = {
    "network": {
        "words": SIZE, "never_a_target": SIZE, "cell": (None, "rnn", "lstm"), "hidden": SIZE, "embedding": SIZE,
        "softmax": ("tree", "adaptive", "classes"), "order": range(1 << 10), "slots": SIZE,
    },
    "arrays": {"*": [SIZE]},
    "parameters": SIZE,
}  # fmt: skip
_GATED = {"members": [str], "names": [str], "shares": [float], "gate": (None, {"units": SIZE}), "links": SIZE}
ENTRIES: dict[str, dict[str, Any]] = {
    "snm": {
        **_ROWS,
        "pages": {
            "bits": range(1, 65 - MARK_BITS), "code_bytes": range(1, 3), "single_types": [SIZE],
            "unigram_code": range(256),
        },
        "training": {"prune": SIZE},
        "gate": (None, {"units": SIZE}),
    },
    "backoff": {
        **_ROWS, "index": {"low": range(1 << 64), "shift": range(64)}, "text": {"tokens": SIZE, "oov": SIZE},
    },
    "hsme": _NETWORK,
    "rnn": _NETWORK,
    "mixture": {"members": [str], "weights": [float], "links": SIZE},
    "sources": _GATED,
    "hybrid": _GATED,
}  # fmt: skip
"""For each kind, the entries that opening and scoring need: a type, a range, a list of these, or alternatives."""
TOKENIZER = "tokenizer"
EXTENSIONS: tuple[str, ...] = ("cache", "fields", "orphans", TOKENIZER, "union")
"""What a model's entry `requires` may name: parts of the format without which a reader would give wrong answers."""
SPELLING = "spelling.txt"
SPELLING_ENTRY = {"order": range(2, MAX_ORDER + 1), "words": SIZE, "known": float}
COUNTED_ENTRIES: dict[str, Any] = {
    "features": str,
    "families": {"*": str},
    "rows": SIZE,
    "links": SIZE,
    "text": {"documents": (None, SIZE), **dict.fromkeys(("sentences", "tokens", "oov", "bad_lines"), SIZE)},
}
"""The same for a folder of counts."""


def read(path: Path) -> dict[str, Any]:
    """The manifest of a model folder, with every entry that its kind needs."""
    manifest = storage.read_manifest(path)
    kind = manifest.get("kind")
    if not isinstance(kind, str) or kind not in ENTRIES:
        raise FormatError(f"{path}: a model of kind {shown(kind)}; this program knows {', '.join(ENTRIES)}")
    _check(path, manifest, {**_ALL, **ENTRIES[kind]}, storage.MODEL.remedy)
    _check_extensions(path, manifest.get("requires", []))
    return manifest


def _check_extensions(path: Path, required: Any) -> None:
    """Raise an error if a model needs a part of the format that this program does not know."""
    names = required if isinstance(required, list) else [required]
    unknown = [shown(name) for name in names if name not in EXTENSIONS]
    if unknown:
        listed = ", ".join(unknown[:5])
        raise FormatError(f"{path} requires {listed}, which this program does not know; use a newer snm")


def read_counted(path: Path) -> dict[str, Any]:
    """The manifest of a folder of counts, with every entry that it needs."""
    manifest = storage.read_manifest(path, storage.COUNTS)
    _check(path, manifest, {**_ALL, **COUNTED_ENTRIES}, storage.COUNTS.remedy)
    _check_extensions(path, manifest.get("requires", []))
    return manifest


def _check(path: Path, manifest: dict[str, Any], expected: dict[str, Any], remedy: str) -> None:
    fault = _fault(manifest, expected, "")
    if fault:
        raise FormatError(f"{path / storage.MANIFEST} is damaged: {fault}; {remedy}")


@contextmanager
def opening(path: Path) -> Iterator[None]:
    """A context in which files that contradict each other raise a FormatError."""
    try:
        yield
    except FormatError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise FormatError(f"{path} is damaged ({shown(error)}); restore or rebuild the model") from error


def read_vocabulary(path: Path, manifest: dict[str, Any]) -> Vocabulary:
    """The vocabulary of a model folder."""
    expected, file = manifest["vocabulary"], path / storage.VOCABULARY
    tokenizer = tokenizer_of(path, manifest)
    try:
        return Vocabulary.read(file, expected["words"], expected["closed"], expected["document"], tokenizer)
    except FormatError:
        raise
    except ValueError as error:
        raise FormatError(f"{file} is damaged ({error}); restore or rebuild the model") from error


def tokenizer_of(path: Path, manifest: dict[str, Any]) -> Tokenizer | None:
    """The tokenizer of a folder; None if white space separates its words."""
    if TOKENIZER not in manifest:
        return None
    _check(path, manifest, {TOKENIZER: {"kind": str, "sha256": str}}, storage.MODEL.remedy)
    return read_tokenizer(path, manifest[TOKENIZER], storage.MODEL.remedy)


def write_spelling(folder: Path, words: bytes, vocabulary: Vocabulary) -> dict[str, Any]:
    """Write the spelling model of a list of words to a model folder; return its entry of the manifest.

    A closed vocabulary has none, and neither has a model without any words.
    """
    if vocabulary.closed or not words:
        return {}
    words = thinned(words, MAX_BYTES)
    spelling = Spelling.learn(words, vocabulary)
    (folder / SPELLING).write_bytes(words)
    described = {"order": spelling.order, "words": words.count(b"\n"), "known": spelling.known}
    return {"spelling": described}


def take_spelling(
    model: Path, manifest: dict[str, Any], folder: Path, vocabulary: Vocabulary, most: float = math.inf
) -> dict[str, Any]:
    """Link the spelling model of a model into another folder; return its entry of the manifest.

    If its list of words has more than `most` bytes, it becomes shorter. vocabulary: the model's.
    """
    if "spelling" not in manifest:
        return {}
    storage.check_unchanged(model, manifest["files"])
    if (model / SPELLING).stat().st_size > most:
        return write_spelling(folder, thinned((model / SPELLING).read_bytes(), int(most)), vocabulary)
    storage.link_file(model / SPELLING, folder / SPELLING)
    return {"spelling": manifest["spelling"]}


def spelling_bytes(folder: Path) -> int:
    """Bytes of the spelling model in a model folder."""
    file = folder / SPELLING
    return file.stat().st_size if file.exists() else 0


def read_spelling(path: Path, manifest: dict[str, Any]) -> Spelling | None:
    """The spelling model of a model folder; None if it has none, as those of older versions."""
    described = manifest.get("spelling")
    if described is None:
        return None
    _check(path, manifest, {"spelling": SPELLING_ENTRY}, storage.MODEL.remedy)
    words = storage.read_file(path / SPELLING, MAX_BYTES)
    if words.count(b"\n") != described["words"] or not words.endswith(b"\n") or not 0 <= described["known"] < 1:
        raise FormatError(
            f"{path / SPELLING} has {words.count(10):,} words, of known probability {described['known']}; expected "
            f"{described['words']:,} words and a number below 1; {storage.MODEL.remedy}"
        )
    return Spelling(words, described["known"], described["order"])


def _fault(value: Any, expected: Any, name: str) -> str:
    """What is wrong with an entry; empty if nothing is."""
    parts: list[tuple[Any, Any, str]] = []
    if isinstance(expected, tuple):
        fits = any(not _fault(value, one, name) for one in expected)
    elif isinstance(expected, range):
        fits = type(value) is int and value in expected
    elif expected is float:
        fits = type(value) in (int, float) and abs(value) <= MAX_NUMBER
    elif isinstance(expected, list):
        fits = isinstance(value, list)
        parts = [(part, expected[0], f"{name}[{i}]") for i, part in enumerate(value)] if fits else []
    elif isinstance(expected, dict):
        fits, prefix = isinstance(value, dict), name and f"{name}."
        for key in (value if "*" in expected else expected) if fits else ():
            if key not in value:
                return f"{prefix}{key} is missing"
            parts.append((value[key], expected.get(key, expected.get("*")), f"{prefix}{key}"))
    else:
        fits = type(value) is expected if isinstance(expected, type) else value == expected
    if not fits:
        return f"{name} is {shown(value)}"
    return next((fault for part in parts if (fault := _fault(*part))), "")


def describe_kind(kind: str, vocabulary: Vocabulary) -> dict[str, Any]:
    """The first entries of every model's manifest."""
    return {"kind": kind, **describe_vocabulary(vocabulary)}


def describe_vocabulary(vocabulary: Vocabulary) -> dict[str, Any]:
    """The entries of every manifest, of models and of counts."""
    words = {"words": len(vocabulary), "closed": vocabulary.closed, "document": vocabulary.document}
    described = {"written_by": f"snm {__version__}", "vocabulary": words}
    if vocabulary.tokenizer is None:
        return described
    return {**described, TOKENIZER: describe_tokenizer(vocabulary.tokenizer), "requires": [TOKENIZER]}


def requiring(described: dict[str, Any], *extensions: str) -> dict[str, Any]:
    """A manifest that requires these extensions too."""
    names = sorted({*described.get("requires", []), *extensions})
    return {**described, "requires": names} if names else described


def size_of(manifest: dict[str, Any]) -> tuple[int, str]:
    """The size of a model and its unit: links, or the parameters of a network."""
    unit = "links" if "links" in manifest else "parameters"
    return manifest[unit], unit


def describe_rows(
    extractor: Extractor, rows_by_type: np.ndarray, links: int, kind: str, how: dict[str, Any]
) -> dict[str, Any]:
    """The manifest of an SNM or backoff model; `how` has the entries of its kind."""
    layout, spec, vocabulary = extractor.layout, extractor.spec, extractor.vocabulary
    required = how.pop("requires", [])
    described = {
        **describe_kind(kind, vocabulary),
        "features": spec.text,
        "layout": asdict(layout),
        "hash_bits": layout.hash_bits,
        "families": extractor.family_digests(),
        "rows": int(rows_by_type.sum()),
        "links": links,
        "rows_by_type": {str(t): int(n) for t, n in zip(spec.types, rows_by_type, strict=True)},
        "expected_collisions": layout.expected_collisions(rows_by_type),
        **how,
    }
    return requiring(described, *required)
