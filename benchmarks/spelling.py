"""Perplexities of good and bad text with words outside the vocabulary as <UNK>, and spelled; bits a byte beside those
of a character model.

    python benchmarks/spelling.py CORPUS --other TEXT [--model FOLDER] [--characters 8] [--words N] [--json FILE]

CORPUS is a folder with train and test text. --model is a model of its training text; without it, one is trained
(preset snm5). Five texts are scored, of as many words as the beginning of the test text has: that text; --other, text
in another language; the test text's words in random order; words of random letters, drawn as often as the test text
has them; and words of the letters a to z alone, all alike. With --characters N, Kneser-Ney of N characters is trained
on the same training text, with the space as a character.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from common import ROOT, report, text_of

from snm.text.files import read_lines

SPACE = "␣"
COLUMNS = "text", "OOVs", "perplexity", "spelled", "bits a byte"


def snm(*arguments: str | Path) -> Any:
    """Run a command; return what it prints as JSON."""
    command = [sys.executable, "-m", "snm", *map(str, arguments), "--json"]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=ROOT).stdout)


def lines_of(path: Path) -> Iterator[str]:
    for lines in read_lines(path):
        yield from (" ".join(line.split()) for line in lines if line.strip())


def beginning(path: Path, words: int) -> list[list[str]]:
    """Sentences of about so many words."""
    found: list[list[str]] = []
    for line in lines_of(path):
        found.append(line.split())
        words -= len(found[-1])
        if words <= 0:
            break
    return found


def texts(test: Path, other: Path, words: int) -> dict[str, list[list[str]]]:
    good, random = beginning(test, words), np.random.default_rng(1)
    flat = [word for sentence in good for word in sentence]
    letters = np.array(list("".join(flat)))

    def remade(new: Iterator[str]) -> list[list[str]]:
        return [[next(new) for _ in sentence] for sentence in good]

    return {
        "held-out text": good,
        "its words in random order": remade(iter(random.permutation(np.array(flat, object)).tolist())),
        "another language": beginning(other, words),
        "random letters of the text": remade("".join(random.choice(letters, len(word))) for word in flat),
        "random letters a to z": remade("".join(map(chr, random.integers(97, 123, len(word)))) for word in flat),
    }


def characters(line: str) -> str:
    return " ".join(SPACE if c == " " else c for c in line)


def character_model(corpus: Path, order: int, folder: Path) -> dict[str, Any]:
    """Bits a byte of the test text under Kneser-Ney of characters."""
    for part in ("train", "test"):
        with open(folder / part, "w", encoding="utf-8") as file:
            file.writelines(characters(line) + "\n" for line in lines_of(text_of(corpus, part)))
    size = sum(len(line.encode()) + 1 for line in lines_of(text_of(corpus, "test")))
    kneser_ney = ["--model", "kn", "--order", order, "--min-count", 1, "--memory", "3G"]
    snm("train", folder / "train", "-o", folder / "characters", *kneser_ney)
    found = snm("ppl", folder / "characters", folder / "test")
    bits = -found["logprob10"] * math.log2(10) / size
    return {**dict.fromkeys(COLUMNS, ""), "text": f"all of it, Kneser-Ney of {order} characters", "bits a byte": bits}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--other", type=Path, required=True)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--characters", type=int)
    parser.add_argument("--words", type=int, default=20_000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = options.model or folder / "model"
        if options.model is None:
            snm("train", text_of(options.corpus, "train"), "-o", model, "--preset", "snm5")
        rows = []
        test = text_of(options.corpus, "test")
        for what, sentences in texts(test, options.other, options.words).items():
            path = folder / "text"
            path.write_text("".join(" ".join(sentence) + "\n" for sentence in sentences), encoding="utf-8")
            rows.append(row(what, snm("ppl", model, path)))
        rows.append(row("all of the test text", snm("ppl", model, test)))
        if options.characters:
            rows.append(character_model(options.corpus, options.characters, folder))
    report("spelling", options.corpus.name, rows, options.json)


def row(what: str, found: dict[str, Any]) -> dict[str, Any]:
    figures = f"{found['oov_rate']:.1%}", found["ppl"], found["ppl_spelled"], found["bits_per_byte"]
    return dict(zip(COLUMNS, (what, *figures), strict=True))


if __name__ == "__main__":
    main()
