"""Models of several sources, and adapted models, against pooled text and mixtures.

    python benchmarks/sources.py compare CORPUS... [--preset snm5] [--lines N] [--work FOLDER] [--json FILE]
    python benchmarks/sources.py adapt BASE CORPUS [--preset snm5] [--lines N] [--work FOLDER] [--json FILE]

A CORPUS is a folder with train, valid and test text, and is a source. `compare` trains, for the valid text of each
corpus in turn: one model of all text together; one of its own text alone; a mixture of a model of each source (`snm
mix`); and a model of several sources. All have the same words, those of all training text together, so that their
perplexities compare. `adapt` trains a model of BASE, and gives it more and more words of the training text of CORPUS.
--lines takes only the first lines of each training text.
"""

from __future__ import annotations

import argparse
import json
import lzma
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path
from typing import Any

from common import report, text_of

SIZES = (1_000, 10_000, 70_000, 500_000)


def snm(*arguments: str | Path) -> Any:
    """Run a command; return what it prints as JSON."""
    command = [sys.executable, "-m", "snm", *map(str, arguments), "--json"]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def train(output: Path, *arguments: str | Path) -> Path:
    """A trained model, unless it is there from a run before."""
    if not output.exists():
        snm("train", *arguments, "-o", output, "--quiet")
    return output


def ppl(model: Path, text: Path) -> float:
    return float(snm("ppl", model, text)["ppl"])


class Corpus:
    """A corpus, its training text cut to so many lines."""

    def __init__(self, folder: Path, lines: int | None, work: Path) -> None:
        self.name = folder.name
        self.train, self.valid, self.test = (text_of(folder, part) for part in ("train", "valid", "test"))
        if lines is not None:
            self.train = write_lines(work / f"{self.name}.train.txt", islice(lines_of(self.train), lines))


def lines_of(path: Path) -> Any:
    return lzma.open(path, "rt", encoding="utf-8") if path.suffix == ".xz" else open(path, encoding="utf-8")


def write_lines(path: Path, lines: Any) -> Path:
    path.write_text("".join(lines), encoding="utf-8")
    return path


def compare(corpora: list[Corpus], preset: str, work: Path) -> list[dict[str, Any]]:
    words, texts = work / "words", [corpus.train for corpus in corpora]
    subprocess.run([sys.executable, "-m", "snm", "vocab", *texts, "-o", words], check=True)
    same = ["--vocab", words, "--preset", preset]
    rows = []
    for corpus in corpora:
        dev = ["--dev", corpus.valid]
        pooled = train(work / f"{corpus.name}.pooled", *texts, *same, *dev)
        alone = [train(work / f"{corpus.name}.{other.name}.alone", other.train, *same, *dev) for other in corpora]
        mixture = work / f"{corpus.name}.mixture"
        if not mixture.exists():
            snm("mix", *alone, *dev, "-o", mixture)
        begun = time.perf_counter()
        named = [f"{other.name}={other.train}" for other in corpora]
        sources = train(work / f"{corpus.name}.sources", *named, *same, *dev)
        seconds = time.perf_counter() - begun
        own = alone[[other.name for other in corpora].index(corpus.name)]
        found = {"pooled": ppl(pooled, corpus.test), "in-domain alone": ppl(own, corpus.test)}
        found |= {"mixture": ppl(mixture, corpus.test), "several sources": ppl(sources, corpus.test)}
        best = min(found["pooled"], found["in-domain alone"], found["mixture"])
        row = {"test text": corpus.name, **found, "to pooled": found["several sources"] / found["pooled"]}
        rows.append({**row, "to the best other": found["several sources"] / best, "seconds to train": seconds})
        print(rows[-1], file=sys.stderr, flush=True)
    return rows


def adapt(base: Corpus, new: Corpus, preset: str, work: Path) -> list[dict[str, Any]]:
    model = train(work / f"{base.name}.base", base.train, "--preset", preset, "--dev", base.valid)
    rows = [{"words": 0, "what": "the model itself", **figures(model, base, new), "seconds": 0.0}]
    for size in SIZES:
        text = write_lines(work / f"{new.name}.{size}.txt", first_words(new.train, size))
        for what, option in (("gate", "--dev"), ("source", "--text")):
            output = work / f"adapted.{what}.{size}"
            begun = time.perf_counter()
            snm("adapt", model, option, text, "-o", output, "--force")
            seconds = time.perf_counter() - begun
            rows.append({"words": size, "what": what, **figures(output, base, new), "seconds": seconds})
            print(rows[-1], file=sys.stderr, flush=True)
    return rows


def figures(model: Path, base: Corpus, new: Corpus) -> dict[str, Any]:
    """Perplexities of a model, whose words may be more than another's: those without OOVs compare best."""
    found, old = snm("ppl", model, new.test), snm("ppl", model, base.test)
    return {"new": found["ppl"], "new without OOVs": found["ppl_no_oov"], "OOVs": found["oov_rate"], "old": old["ppl"]}


def first_words(path: Path, words: int) -> list[str]:
    """The first lines that have so many words together."""
    found: list[str] = []
    with lines_of(path) as lines:
        for line in lines:
            if words <= 0:
                break
            found.append(line)
            words -= len(line.split())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["compare", "adapt"])
    parser.add_argument("corpora", nargs="+", type=Path)
    parser.add_argument("--preset", default="snm5")
    parser.add_argument("--lines", type=int)
    parser.add_argument("--work", type=Path, default=Path("bench") / "sources")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    corpora = [Corpus(folder, options.lines, options.work) for folder in options.corpora]
    if options.what == "compare":
        rows = compare(corpora, options.preset, options.work)
    else:
        base, new = corpora
        rows = adapt(base, new, options.preset, options.work)
    report(f"sources {options.what}", ", ".join(corpus.name for corpus in corpora), rows, options.json)


if __name__ == "__main__":
    main()
