"""The commands that are killed and starved, and the files that they read."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from snm.cli.main import main
from tests.conftest import write_bigrams

FEATURES = "ngram(0..3) + skip(r=1..2, s=1..2, words=1..2) + class(words=1..2)"
SNM = ["--features", FEATURES, "--classes", "8", "--min-count", "1", "--gate", "4"]
MODEL, COUNTS, FILE = "model", "counts", "file"


@dataclass(frozen=True)
class Case:
    """A command that writes `output`; `{in}` and `{out}` of its arguments are the folders of inputs and outputs."""

    name: str
    arguments: list[str]
    kind: str = MODEL
    output: str = "m"

    def command(self, inputs: Path, box: Path, threads: int) -> list[str]:
        """The arguments of the command, which replaces what is there."""
        places = {"{in}": str(inputs), "{out}": str(box / self.output)}
        made = []
        for argument in self.arguments:
            for name, place in places.items():
                argument = argument.replace(name, place)
            made.append(argument)
        made += [] if self.name == "import" else ["--threads", str(threads)]
        return made + (["--force"] if self.kind != FILE else [])


def _train(*more: str) -> list[str]:
    return ["train", "{in}/train.txt", "-o", "{out}", *more]


CASES = [
    Case("train", _train(*SNM, "--folds", "0")),
    Case("train in folds", _train(*SNM, "--folds", "2")),
    Case("train by partitions", _train(*SNM, "--folds", "0", "--partitions", "3", "--slots", "8000000")),
    Case("train --resume", _train(*SNM, "--folds", "0", "--partitions", "3", "--resume")),
    Case("train kn", _train("--model", "kn", "--order", "4")),
    Case("train kn --resume", _train("--model", "kn", "--order", "4", "--resume")),
    Case("train kn --size", _train("--model", "kn", "--order", "4", "--size", "400K")),
    Case("train sources", ["train", "a={in}/train.txt", "b={in}/other.txt", "--dev", "{in}/dev.txt", "-o", "{out}",
                           "--features", "ngram(0..2)", "--min-count", "1"]),
    Case("train --counts", ["train", "--counts", "{in}/a.counts", "-o", "{out}", "--folds", "0", "--gate", "4"]),
    Case("mix", ["mix", "{in}/snm", "{in}/kn", "--dev", "{in}/dev.txt", "-o", "{out}"]),
    Case("mix --gated", ["mix", "{in}/snm", "{in}/kn", "--gated", "--dev", "{in}/dev.txt", "-o", "{out}"]),
    Case("prune", ["prune", "{in}/snm", "--size", "600K", "--dev", "{in}/dev.txt", "-o", "{out}"]),
    Case("prune kn --loss", ["prune", "{in}/kn", "--loss", "5%", "--dev", "{in}/dev.txt", "-o", "{out}"]),
    Case("adapt --dev", ["adapt", "{in}/snm", "--dev", "{in}/other.txt", "-o", "{out}"]),
    Case("adapt --text", ["adapt", "{in}/snm", "--text", "{in}/other.txt", "--min-count", "1", "-o", "{out}"]),
    Case("import", ["import", "{in}/kn.arpa", "-o", "{out}"]),
    Case("export", ["export", "{in}/kn", "{out}"], FILE, "m.arpa"),
    Case("export snm", ["export", "{in}/snm", "{out}", "--dev", "{in}/dev.txt", "--size", "300K"], FILE, "m.arpa"),
    Case("vocab", ["vocab", "{in}/train.txt", "-o", "{out}"], FILE, "m.txt"),
    Case("count", ["count", "{in}/other.txt", "--vocab", "{in}/words.txt", "--features", "ngram(0..3)", "-o", "{out}"],
         COUNTS),
    Case("merge", ["merge", "{in}/a.counts", "{in}/b.counts", "-o", "{out}"], COUNTS),
    Case("filter", ["filter", "{in}/kn", "{in}/train.txt", "-o", "{out}", "--max-ppl", "200"], FILE, "m.gz"),
    Case("filter --resume", ["filter", "{in}/kn", "{in}/train.txt", "-o", "{out}", "--keep", "30%", "--resume"], FILE,
         "m.txt"),
]  # fmt: skip


def write_inputs(folder: Path, sentences: int) -> Path:
    """The files that the commands read."""
    folder.mkdir(parents=True)
    write_bigrams(folder / "train.txt", 1, sentences, 300, 4)
    write_bigrams(folder / "other.txt", 2, max(60, sentences // 3), 320, 4)
    write_bigrams(folder / "dev.txt", 3, max(300, sentences // 4), 300, 4)
    shared = "--vocab", f"{folder}/words.txt", "--features", "ngram(0..3)"
    for command in (
        ("train", f"{folder}/train.txt", "-o", f"{folder}/snm", *SNM, "--folds", "0"),
        ("train", f"{folder}/train.txt", "-o", f"{folder}/kn", "--model", "kn", "--order", "4"),
        ("export", f"{folder}/kn", f"{folder}/kn.arpa"),
        ("vocab", f"{folder}/train.txt", "-o", f"{folder}/words.txt", "--min-count", "1"),
        ("count", f"{folder}/train.txt", "-o", f"{folder}/a.counts", *shared),
        ("count", f"{folder}/other.txt", "-o", f"{folder}/b.counts", *shared),
    ):
        main([*command, "--threads", "1"], standalone_mode=False)
    return folder


def made_by(path: Path) -> dict[str, bytes] | None:
    """What is at a path, without the times of a manifest; None where there is nothing."""
    if path.is_file():
        return {"": path.read_bytes()}
    if not path.is_dir():
        return None
    found = {file.relative_to(path).as_posix(): file.read_bytes() for file in path.rglob("*") if file.is_file()}
    for name in found:
        if name.endswith(".json"):
            with suppress(ValueError):  # a damaged one is compared as it is
                found[name] = json.dumps(_timeless(json.loads(found[name])), sort_keys=True).encode()
    return found


def _timeless(value: object) -> object:
    """A manifest without figures of time and memory, and without the checksum of a manifest that has some."""
    if isinstance(value, dict):
        changing = {"seconds", "peak_bytes", "memory", "checksum"}
        kept = {name: part for name, part in value.items() if name not in changing}
        return {name: None if name.endswith("manifest.json") else _timeless(part) for name, part in kept.items()}
    return value
