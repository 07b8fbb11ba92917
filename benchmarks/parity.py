"""Our Kneser-Ney against KenLM's: all n-grams of the two ARPA files of one text.

    python benchmarks/parity.py TEXT [--order 5] [--lmplz PATH] [--json FILE]

In a copy of the text, words seen fewer than three times and `<unk>` are replaced by one plain word, so that both
programs have the same vocabulary. Differences are those of log10.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from common import report

from snm.baselines.backoff.arpa import write_arpa
from snm.baselines.backoff.model import BackoffModel
from snm.loading import load
from snm.pipeline import train
from snm.settings import Settings
from snm.text.files import read_lines
from snm.text.vocabulary import split_words

RARE = "UNKW"


def write_copy(source: str, target: Path) -> None:
    """Copy a text, with rare words replaced."""
    counts: Counter[str] = Counter()
    for lines in read_lines([source]):
        for line in lines:
            counts.update(split_words(line))
    keep = {word for word, n in counts.items() if n >= 3 and word.lower() != "<unk>"}
    with open(target, "w") as out:
        for lines in read_lines([source]):
            for line in lines:
                out.write(" ".join(word if word in keep else RARE for word in split_words(line)) + "\n")


def sections(file: IO[str]) -> Iterator[dict[str, tuple[float, float]]]:
    """{n-gram: (log10 probability, log10 backoff)} of each order."""
    found: dict[str, tuple[float, float]] | None = None
    for line in file:
        parts = line.rstrip("\n").split("\t")
        if line.startswith("\\"):
            if found:
                yield found
            found = {} if line.rstrip().endswith("-grams:") else None
        elif found is not None and len(parts) > 1:
            found[parts[1]] = float(parts[0]), float(parts[2]) if len(parts) > 2 else 0.0


def compare(order: int, ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    ours = {ngram.replace("<UNK>", "<unk>"): value for ngram, value in ours.items()}
    both = ours.keys() & theirs.keys() - {"<s>"}  # the probability of <s> is arbitrary
    differences = [max(abs(ours[g][i] - theirs[g][i]) for g in both) for i in (0, 1)]
    return {
        "order": order,
        "n-grams": len(both),
        "in one only": len(ours.keys() ^ theirs.keys()),
        "probability, most": differences[0],
        "probabilities apart by more than 1e-5": sum(abs(ours[g][0] - theirs[g][0]) > 1e-5 for g in both),
        "backoff, most": differences[1],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text")
    parser.add_argument("--order", type=int, default=5)
    parser.add_argument("--lmplz", default="lmplz")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_copy(options.text, folder / "text")
        train([folder / "text"], folder / "model", Settings(model="kn", order=options.order, min_count=1))
        model = load(folder / "model")
        assert isinstance(model, BackoffModel)
        with open(folder / "ours.arpa", "w") as ours:
            write_arpa(model, ours)
        arguments = ["-o", str(options.order), "--text", str(folder / "text"), "--arpa", str(folder / "theirs.arpa")]
        subprocess.run([options.lmplz, *arguments, "-T", scratch, "--discount_fallback"], check=True)
        with open(folder / "ours.arpa") as ours, open(folder / "theirs.arpa") as theirs:
            pairs = zip(sections(ours), sections(theirs), strict=True)
            rows = [compare(order, *pair) for order, pair in enumerate(pairs, 1)]
    report("parity", Path(options.text).name, rows, options.json)


if __name__ == "__main__":
    main()
