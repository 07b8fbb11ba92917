"""ARPA files as NeMo reads them: a token is the character with the code of its id plus an offset.

    snm export tokens.model lm.arpa --nemo labels.txt

Then `NGramGPULanguageModel.from_arpa("lm.arpa", vocab_size=...)`, or KenLM's programs, as NeMo's scripts use them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from snm.arguments import shown
from snm.errors import InputError, SettingsError
from snm.storage import replaced_file
from snm.text.files import numbered_lines

OFFSET = 100  # NeMo's
MOST = 0xD800 - OFFSET  # labels; then come numbers that are no characters
_KEPT = ("<s>", "</s>", "<unk>", "<S>", "</S>", "<UNK>")
_ENTRY = re.compile(r"(\S+)[\t ]([^\t]+)(\t\S+)?")


def read_labels(path: str | Path) -> list[str]:
    """Tokens in the order of their ids, one a line."""
    expected = "a token a line, in the order of the ids"
    labels = [line for _, line in islice(numbered_lines(path, expected), MOST + 1)]
    if len(labels) > MOST:
        raise InputError(f"{path} has more than {MOST:,} lines; expected {expected}")
    return labels


def rename_tokens(source: str | Path, target: str | Path, labels: Sequence[str]) -> None:
    """Write an ARPA file of tokens as NeMo names them. `labels`: the tokens in the order of NeMo's ids."""
    names = {label: chr(OFFSET + i) for i, label in enumerate(labels)} | {word: word for word in _KEPT}
    with open(source, encoding="utf8") as lines, replaced_file(str(target)) as file:
        for line in _renamed(lines, names, Path(source)):
            file.write(f"{line}\n")


def _renamed(lines: Iterator[str], names: dict[str, str], source: Path) -> Iterator[str]:
    inside = False
    for line in lines:
        line = line.rstrip("\n")
        if line.startswith("\\"):
            inside = line.endswith("-grams:")
        found = _ENTRY.fullmatch(line) if inside and line else None
        if found is None:
            yield line
            continue
        words = found[2].split(" ")
        unknown = next((word for word in words if word not in names), None)
        if unknown is not None:
            raise SettingsError(
                f"the word {shown(unknown)} of {source} is no label; expected a model of text in the labels' tokens"
            )
        yield f"{found[1]}\t{' '.join(names[word] for word in words)}{found[3] or ''}"
