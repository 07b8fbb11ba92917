"""Small models of every kind, which are changed: those of tests/golden, and newly trained ones.

python -m tests.fuzz.seeds FOLDER [--quick]
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from snm import hybrids, mixing, pipeline
from snm.baselines.neural.settings import NetworkSettings
from snm.exporting import export_arpa
from snm.loading import load
from snm.pruning.models import prune
from snm.settings import Settings
from tests.conftest import write_bigrams

GOLDEN = Path(__file__).parents[1] / "golden"
SKIPS = "ngram(0..3) + skip(r=1..2, s=1, words=1..2) + class(r=1, a=0)"
Maker = Callable[[Path, Path], object]
"""Makes a model from the texts in a folder."""


def _train(**how: object) -> Maker:
    plain = {"min_count": 2, "threads": 1, "gate": 4, "folds": 0, "classes": 8}
    settings = Settings(**{**plain, **how})  # type: ignore[arg-type]
    return lambda texts, made: pipeline.train(texts / "train.txt", made, settings)


def _with_fields(texts: Path, made: Path) -> object:
    features = "ngram(0..2) + side(speaker, a=0..1)"
    how = Settings(features=features, fields="speaker", min_count=1, threads=1, gate=4, folds=0)
    return pipeline.train(texts / "fields.txt", made, how)


def _prune(name: str, links: int) -> Maker:
    return lambda texts, made: prune(made.parent / name, made, links=links)


def _network(model: str, **how: object) -> Maker:
    network = NetworkSettings(hidden=6, passes=1, **how)  # type: ignore[arg-type]
    settings = Settings(model=model, order=3, min_count=2, threads=1, network=network)
    if how.get("softmax") in ("adaptive", "classes"):
        settings = Settings(model=model, min_count=2, threads=1, network=network)
    return lambda texts, made: pipeline.train(texts / "train.txt", made, settings, dev=texts / "dev.txt")


def _count(texts: Path, made: Path) -> object:
    how = Settings(vocab=texts / "words.txt", features="ngram(0..2) + skip(r=1, s=1, a=0)", threads=1)
    return pipeline.count_text(texts / "train.txt", made, how)


def _mix(*names: str, gated: bool = False) -> Maker:
    mixed = hybrids.mix_gated if gated else mixing.mix
    return lambda texts, made: mixed([made.parent / name for name in names], texts / "dev.txt", made)


def _sources(texts: Path, made: Path) -> object:
    how = Settings(features="ngram(0..2)", min_count=1, threads=1, gate=4)
    sources = {"a": texts / "train.txt", "b": texts / "other.txt"}
    return pipeline.train(sources, made, how, dev=texts / "dev.txt")


QUICK: dict[str, Maker] = {
    "skips": _train(features=SKIPS),
    "16bit": _train(features=SKIPS, weight_bits=16, gate=0),
    "closed": _train(features="ngram(0..2)", closed=True, document=True),
    "cache": _train(features="ngram(0..2) + cache(a=0..1, words=30, half=10)"),
    "long": _train(features="ngram(0..1) + skip(r=1, s=1, a=0)", min_count=1, prune=1),
    "characters": _train(features="ngram(0..3)", tokenizer="characters"),
    "bytes": _train(features="ngram(0..3)", tokenizer="bytes"),
    "fields": _with_fields,
    "kn": _train(model="kn", order=4),
    "kn closed": _train(model="kn", order=3, closed=True),
    "unigrams": _train(model="kn", order=1),
    "katz": _train(model="katz", order=3),
    "sbo": _train(model="sbo", order=3),
    "pruned": _prune("skips", 1200),
    "kn pruned": _prune("kn", 800),
    "counts": _count,
    "mix": _mix("skips", "kn"),
    "mix of mixes": _mix("mix", "sbo"),
    "sources": _sources,
    "gated": _mix("skips", "kn", gated=True),
}  # fmt: skip
NETWORKS: dict[str, Maker] = {
    "hsme": _network("hsme"),
    "rnn": _network("rnn"),
    "lstm tree": _network("rnn", cell="lstm", softmax="tree"),
    "lstm": _network("rnn", cell="lstm", softmax="adaptive"),
    "lstm classes": _network("rnn", cell="lstm", softmax="classes"),
    "hybrid": _mix("skips", "lstm classes", gated=True),
    "mix of networks": _mix("skips", "hsme", "rnn"),
}


def write_texts(folder: Path) -> Path:
    folder.mkdir(parents=True)
    write_bigrams(folder / "train.txt", 1, 150, 90, 4)
    write_bigrams(folder / "other.txt", 2, 60, 120, 4)
    write_bigrams(folder / "dev.txt", 3, 260, 95, 4)
    lines = (folder / "other.txt").read_text().splitlines()
    marked = (f"speaker={'abc'[i % 3]} {line}\n" for i, line in enumerate(lines))
    (folder / "fields.txt").write_text("".join(marked))
    words = sorted({word for line in lines for word in line.split()})
    (folder / "words.txt").write_text("".join(f"{word}\n" for word in words))
    return folder


def make_seeds(folder: Path, makers: Iterable[dict[str, Maker]]) -> None:
    """Write models, and ARPA files, to a folder."""
    for path in sorted((GOLDEN / "format3").iterdir()):
        if path.is_dir():
            shutil.copytree(path, folder / "models" / f"golden {path.name}")
    (folder / "arpa").mkdir()
    shutil.copy(GOLDEN / "kneser-ney.arpa", folder / "arpa")
    texts = write_texts(folder / "texts")
    for some in makers:
        for name, make in some.items():
            make(texts, folder / "models" / name)
    for name in ("kn", "katz", "sbo", "unigrams"):
        with load(folder / "models" / name) as model:
            export_arpa(model, folder / "arpa" / f"{name}.arpa")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.seeds")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--quick", action="store_true", help="without neural models")
    chosen = parser.parse_args()
    make_seeds(chosen.folder, [QUICK] if chosen.quick else [QUICK, NETWORKS])


if __name__ == "__main__":
    main()
