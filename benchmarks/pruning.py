"""Perplexity against bytes: SNM pruned by mass, Kneser-Ney by entropy, `lmplz --prune`; and ARPA files.

    python benchmarks/pruning.py CORPUS --work FOLDER [--models snm5 small] [--base snm5] [--parts 2 4 10 30]
                                 [--kenlm FOLDER] [--arpa] [--json FILE]

CORPUS is a folder with train, valid and test text (`train.txt`, or `.txt.xz` and the like). Whole models are trained in
the work folder, unless they are there, with the valid text as held-out text. Each model is pruned to 1/2, 1/4, 1/10 and
1/30 of the bytes of the model --base; Kneser-Ney to the same bytes. Ratios are to the whole model --base. With
--kenlm, `lmplz --prune` runs with some cut-offs; bytes are then those of its quantised trie. With --arpa each whole
model is exported, with the valid text as --dev and without, and scored by the real kenlm.
"""

from __future__ import annotations

import argparse
import lzma
import math
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

from common import ROOT, report, text_of
from quality import snm

from snm.loading import load

CUT_OFFS = "0 0 1", "0 1 1", "0 1 2", "0 2 3"  # of lmplz
UNKNOWN = "⟨unk⟩"  # lmplz leaves out <unk>, so the unknown word is one like all others


def lines_of(path: Path) -> Iterator[str]:
    """The lines of a plain text, or one that xz has compressed."""
    with lzma.open(path, "rt", encoding="utf-8") if path.suffix == ".xz" else path.open(encoding="utf-8") as lines:
        yield from lines


def whole(name: str, corpus: Path, work: Path) -> Path:
    """The model of a preset, or kn, trained unless it is there."""
    path = work / name
    if not path.exists():
        how = ["--model", "kn"] if name == "kn" else ["--preset", name, "--dev", text_of(corpus, "valid")]
        snm("train", text_of(corpus, "train"), "-o", path, *how)
    return path


def row_of(what: str, model: Path, corpus: Path, base: float) -> dict[str, Any]:
    size = sum(entry["bytes"] for entry in load(model).manifest["files"].values())
    ppl = snm("ppl", model, text_of(corpus, "test"))["ppl"]
    links = snm("info", model)["links"]
    return {"model": what, "bytes": size, "links": links, "test": ppl, "ratio": ppl / (base or ppl)}


def pruned(name: str, size: int, corpus: Path, work: Path) -> Path:
    path = work / f"{name}.pruned"
    dev = [] if name == "kn" else ["--dev", text_of(corpus, "valid")]
    snm("prune", work / name, "-o", path, "--size", str(size), "--force", *dev)
    return path


def kenlm_row(
    what: str, arpa: Path, vocabulary: set[str], corpus: Path, base: float, unknown: str = "<unk>"
) -> dict[str, Any]:
    """Perplexity of an ARPA file in the real kenlm; words outside the vocabulary are `unknown`."""
    import kenlm

    model, total, tokens = kenlm.Model(str(arpa)), 0.0, 0
    for line in lines_of(text_of(corpus, "test")):
        words = [word if word in vocabulary else unknown for word in line.split()]
        if words:
            total, tokens = total + model.score(" ".join(words)), tokens + len(words) + 1
    ppl = math.pow(10, -total / tokens)
    return {"model": what, "bytes": arpa.stat().st_size, "links": "", "test": ppl, "ratio": ppl / base}


def arpa_rows(name: str, corpus: Path, work: Path, base: float) -> Iterator[dict[str, Any]]:
    """A model as an ARPA file: without and, unless it is a backoff model already, with held-out text."""
    words, file = set(load(work / name).vocabulary.words), work / f"{name}.arpa"
    for options in ([],) if name == "kn" else ([], ["--dev", str(text_of(corpus, "valid"))]):
        command = [sys.executable, "-m", "snm", "export", str(work / name), str(file), *options]
        subprocess.run(command, check=True, cwd=ROOT)
        yield kenlm_row(f"{name}, exported{' with --dev' if options else ''}", file, words, corpus, base)
        file.unlink()


def ngrams_of(arpa: Path) -> int:
    """The number of n-grams that the header of an ARPA file says."""
    with arpa.open(encoding="utf-8") as lines:
        counts = list(takewhile(str.strip, islice(lines, 1, None)))
    return sum(int(line.partition("=")[2]) for line in counts)


def lmplz_row(cut_offs: str, kenlm: Path, corpus: Path, work: Path, base: float) -> dict[str, Any]:
    """`lmplz --prune` on the training text with the vocabulary of --base."""
    vocabulary = set(load(work / "kn").vocabulary.words)
    text, arpa = work / "lmplz.txt", work / "lmplz.arpa"
    if not text.exists():
        with text.open("w") as out:
            for line in lines_of(text_of(corpus, "train")):
                out.write(" ".join(word if word in vocabulary else UNKNOWN for word in line.split()) + "\n")
    command = [kenlm / "lmplz", "-o", "5", "-S", "2G", "-T", work, "--prune", *cut_offs.split()]
    with text.open() as source, arpa.open("w") as target:
        subprocess.run(command, check=True, stdin=source, stdout=target)
    trie = work / "lmplz.trie"
    subprocess.run([kenlm / "build_binary", "-q", "8", "-b", "8", "-a", "22", "trie", arpa, trie], check=True)
    row = kenlm_row(f"lmplz --prune {cut_offs}", arpa, vocabulary, corpus, base, UNKNOWN)
    row |= {"bytes": trie.stat().st_size, "links": ngrams_of(arpa)}
    arpa.unlink()
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--models", nargs="+", default=["snm5", "small"])
    parser.add_argument("--base", default="snm5")
    parser.add_argument("--parts", nargs="+", type=int, default=[2, 4, 10, 30])
    parser.add_argument("--kenlm", type=Path)
    parser.add_argument("--arpa", action="store_true")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    rows = [row_of(given.base, whole(given.base, given.corpus, given.work), given.corpus, 0.0)]
    base, size = rows[0]["test"], rows[0]["bytes"]
    for name in [*given.models, "kn"]:
        path = whole(name, given.corpus, given.work)
        if name != given.base:
            rows.append(row_of(name, path, given.corpus, base))
        for part in given.parts:
            smaller = pruned(name, size // part, given.corpus, given.work)
            rows.append(row_of(f"{name}, 1/{part} of {given.base}", smaller, given.corpus, base))
            print(rows[-1], flush=True)
        if given.arpa:
            for row in arpa_rows(name, given.corpus.resolve(), given.work.resolve(), base):
                rows.append(row)
                print(row, flush=True)
    for cut_offs in CUT_OFFS if given.kenlm else ():
        rows.append(lmplz_row(cut_offs, given.kenlm, given.corpus, given.work, base))
        print(rows[-1], flush=True)
    report("pruning", given.corpus.name, rows, given.json)


if __name__ == "__main__":
    main()
