"""Hostile input of every kind: damaged bytes, odd characters and numbers in texts, lists, lattices, words, tokenizers.

Each is read by its command; an error is one line. `SNM_HOSTILE=1000` tries as many of each kind.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.test_cli import run

GOLDEN = Path(__file__).parent / "golden"
BACKOFF, SNM = GOLDEN / "format3" / "backoff", GOLDEN / "format3" / "snm"
TRIED = int(os.environ.get("SNM_HOSTILE", "12"))
ODD = [
    "\u200b", "\u200d", "\u202e", "\u2066", "\ufeff", "\0", "\U0010ffff", "\u0301" * 50, "é", "e\u0301", "中文字",
    "العربية", "\u00a0", "\u2028", "\x85", "\x1b[31m", "\x7f", "<unk>", "<s>", "</s>", "<UNK>", "<S>", "</S>",
    "\\data\\", "NaN", "1e400", "-inf", "9" * 400, "{", "[" * 2000, '"', "\\u0000", "\\ud800", "\ud800", "null", "true",
    "-1", "0x1", "\t", "\r", "\v", " " * 100, "\n", "a" * 5000,
]  # fmt: skip
TEXT = b"the old stone was in the river\na cat saw the old house\nthe river\n" * 20
NBEST = (
    b'{"id": "a", "nbest": [{"text": "the old stone", "acoustic": -1.5, "language": -2.0}, {"text": "a stone"}], '
    b'"reference": "the old stone"}\n{"id": "b", "nbest": [{"text": "the river", "acoustic": -0.5}]}\n'
)
LATTICE = b"a\n0 1 the the 1.5,2.0\n1 2 old old 0.5,0.1\n1 2 stone stone 0.7\n2 0.5\n\nb\n0 1 1 1 1.5\n1\n"
JSON_LINES = b'{"text": "the old stone", "id": 1}\n{"text": "a cat\\nthe river", "meta": {"a": [1, 2]}}\n'
TOKENIZER: dict[str, Any] = {
    "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
    "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None, "decoder": None,
    "model": {"type": "WordLevel", "vocab": {"the": 0, "old": 1, "<unk>": 2}, "unk_token": "<unk>"},
}  # fmt: skip


def damaged(data: bytes, random: Random) -> bytes:
    """Some bytes changed, left out, repeated or put in, or odd characters put in."""
    made = bytearray(data)
    for _ in range(random.choice([1, 1, 2, 5, 20])):
        kind, at = random.randrange(6), random.randrange(len(made) + 1)
        if kind == 0 and made:
            made[random.randrange(len(made))] = random.randrange(256)
        elif kind == 1:
            made[at:at] = random.choice(ODD).encode("utf-8", "surrogatepass")
        elif kind == 2:
            del made[at : at + random.randrange(20)]
        elif kind == 3:
            start = random.randrange(len(made) + 1)
            made[at:at] = made[start : start + random.randrange(50)]
        elif kind == 4:
            made[at:at] = random.randbytes(random.randrange(8))
        elif random.random() < 0.2:
            del made[at:]
    return bytes(made)


def parquet() -> bytes:
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet as files

    stream = io.BytesIO()
    files.write_table(arrow.table({"text": ["the old stone", None, "a cat"], "n": [1, 2, 3]}), stream)
    return stream.getvalue()


def tokenizer() -> bytes:
    pytest.importorskip("tokenizers")
    return json.dumps(TOKENIZER).encode()


KINDS: dict[str, tuple[str, Callable[[], bytes], Callable[[Path, Path], list[Any]]]] = {
    "text": ("t.txt", lambda: TEXT, lambda path, to: ["ppl", SNM, path]),
    "text, repaired": ("t.txt", lambda: TEXT, lambda path, to: ["score", SNM, path, "--on-error", "replace"]),
    "training text": (
        "t.txt", lambda: TEXT,
        lambda path, to: ["train", path, "-o", to / "m", "--force", "--model", "kn", "--order", 2, "--min-count", 1],
    ),
    "ARPA file": ("x.arpa", (GOLDEN / "kneser-ney.arpa").read_bytes, lambda path, to: ["ppl", path, to / "text"]),
    "JSON lines": (
        "t.jsonl", lambda: JSON_LINES, lambda path, to: ["filter", BACKOFF, path, "-o", to / "o.jsonl", "--keep", 0.5],
    ),
    "Parquet": (
        "t.parquet", parquet, lambda path, to: ["filter", BACKOFF, path, "-o", to / "o.parquet", "--max-ppl", 1e6],
    ),
    "n-best lists": ("n.jsonl", lambda: NBEST, lambda path, to: ["rescore", BACKOFF, path, "-o", to / "o.jsonl"]),
    "lists to tune on": ("n.jsonl", lambda: NBEST, lambda path, to: ["rescore", BACKOFF, to / "n", "--dev", path]),
    "lattices": ("l", lambda: LATTICE, lambda path, to: ["rescore", BACKOFF, path, "--format", "lattice"]),
    "references": (
        "r", lambda: b"a the old stone\nb the river\n",
        lambda path, to: ["rescore", BACKOFF, to / "n", "--reference", path],
    ),
    "symbols": (
        "s", lambda: b"<eps> 0\nthe 1\nold 2\nstone 3\n",
        lambda path, to: ["rescore", BACKOFF, to / "l", "--format", "lattice", "--symbols", path],
    ),
    "vocabulary": (
        "v", lambda: b"the\nold\nstone\nriver\n",
        lambda path, to: ["count", to / "text", "-o", to / "c", "--force", "--features", "ngram(0)", "--vocab", path],
    ),
    "tokenizer": (
        "tokenizer.json", tokenizer,
        lambda path, to: ["vocab", to / "text", "-o", to / "words", "--tokenizer", path],
    ),
    "probabilities": (
        "p", lambda: b"0.1 0.2\n0.1\n0.4\n", lambda path, to: ["mix", SNM, path, "--dev", to / "dev"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_hostile_input(kind: str, tmp_path: Path) -> None:
    name, make, command = KINDS[kind]
    good, path = make(), tmp_path / name
    for other, data in (("text", TEXT), ("n", NBEST), ("l", LATTICE), ("dev", b"the old stone\n")):
        (tmp_path / other).write_bytes(data)
    path.write_bytes(good)
    assert run(*command(path, tmp_path)).exit_code == 0, "as it was"
    for seed in range(TRIED):
        path.write_bytes(damaged(good, Random(seed)))
        done = run(*command(path, tmp_path))
        assert done.exception is None or isinstance(done.exception, SystemExit), (seed, done.exception)
        assert done.exit_code in (0, 2), (seed, done.output[-500:])
        lines = [line for line in done.stderr.splitlines() if line.startswith(("snm: ", "Error: "))]
        assert len(lines) == (done.exit_code != 0), (seed, done.stderr[-500:])
        assert max(map(len, lines), default=0) < 2200
