"""What the benchmarks share: facts about the machine, timing of commands, models, tables.

Each script takes a corpus folder with train, valid and test text. Models, KenLM's files and their times are kept in a
work folder, and later runs use them again. KenLM's programs (lmplz, build_binary, query) are on the PATH, or in the
folder given with --kenlm.
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import platform
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

from snm.reproduction.tables import markdown_table
from snm.text.encoding import as_lines

ROOT = Path(__file__).parent.parent


def facts_of(corpus: str) -> dict[str, str]:
    """Hardware, versions, corpus and commit."""
    packages = " ".join(f"{name} {version(name)}" for name in ("numpy", "numba"))
    return {
        "cpu": f"{_cpu()}, {len(os.sched_getaffinity(0))} cores",
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 1e9:.0f} GB",
        "python": f"{platform.python_version()}, {packages}",
        "corpus": corpus,
        "commit": _commit(),
    }


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().split("\n"):
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    found = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    return found.stdout.strip() or "unknown"


def report(name: str, corpus: str, rows: list[dict[str, Any]], output: Path | None) -> None:
    """Print the table; write it to `output` as JSON if that is given."""
    facts = facts_of(corpus)
    print("\n".join(f"{key}: {value}" for key, value in facts.items()))
    print(f"\n{markdown_table(rows)}")
    if output is not None:
        output.write_text(json.dumps({"benchmark": name, **facts, "rows": rows}, indent=1) + "\n")


def first_words(text: Path, words: int, output: Path) -> Path:
    """Write the first lines of a text that have so many words, sentence ends counted."""
    seen = 0
    with open(output, "w") as file:
        for line in as_lines(text):
            if seen >= words:
                break
            file.write(line + "\n")
            seen += len(line.split()) + 1
    return output


def text_of(corpus: Path, part: str) -> Path:
    (found,) = corpus.glob(f"{part}.txt*")
    return found


def compared(what: str, measured: float, reference: float, asked: str, unit: str, ratio: float) -> dict[str, Any]:
    """A row of a table: our figure, the reference's, their ratio, and the ratio that is our goal."""
    return {"what": what, "unit": unit, "snm": measured, "reference": reference, "ratio": ratio, "asked": asked}


@dataclass
class Run:
    """Wall time, peak memory and standard output of a command."""

    seconds: float
    peak_bytes: int
    output: str


def timed(command: list[str | Path], **more: Any) -> Run:
    """Run and measure a command."""
    begun = time.perf_counter()
    with subprocess.Popen(
        [str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more
    ) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        output = child.stdout.read()
        errors = child.stderr.read()
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"{command[0]} failed:\n{errors}")
    return Run(time.perf_counter() - begun, usage.ru_maxrss * 1024, output)


class Bench:
    """The options of a script, its corpus, and the work folder with files that are made once."""

    def __init__(self, description: str | None, presets: str | None = None, **more: int | str) -> None:
        """`more`: further options and their defaults."""
        parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("corpus", type=Path, help="folder with train, valid and test text")
        parser.add_argument("--work", type=Path, default=ROOT / "bench", help="folder for models [default: bench]")
        parser.add_argument("--kenlm", type=Path, help="folder of KenLM's programs [default: the PATH]")
        parser.add_argument("--json", type=Path, help="write the table there too")
        if presets is not None:
            parser.add_argument("--presets", nargs="*", default=presets.split())
        for name, default in more.items():
            parser.add_argument(f"--{name}", type=type(default), default=default)
        self.options = parser.parse_args()
        self.corpus, self.work = self.options.corpus, self.options.work
        self.work.mkdir(parents=True, exist_ok=True)

    def text(self, part: str) -> Path:
        """The path of the uncompressed text, so that no program is timed while it decompresses."""
        packed, plain = text_of(self.corpus, part), self.work / f"{part}.txt"
        if packed.suffix != ".xz":
            return packed
        if not plain.exists():
            with lzma.open(packed) as unpacked:
                plain.write_bytes(unpacked.read())
        return plain

    @cached_property
    def scored(self) -> Path:
        """The valid and the test text in one file."""
        path = self.work / "scored.txt"
        if not path.exists():
            path.write_bytes(self.text("valid").read_bytes() + self.text("test").read_bytes())
        return path

    def program(self, name: str) -> Path:
        found = shutil.which(name, path=str(self.options.kenlm) if self.options.kenlm else None)
        if found is None:
            raise SystemExit(f"{name} not found; put KenLM's programs on the PATH, or give their folder with --kenlm")
        return Path(found)

    def lmplz(self) -> Run:
        """Run KenLM's training of order 5 on the same text, once; keep the ARPA file in the work folder."""
        command = ["-o", "5", "-S", "8G", "-T", self.work, "--skip_symbols"]
        files = ["--text", self.text("train"), "--arpa", self.work / "kenlm.arpa"]
        return self._once("kenlm.json", lambda: timed([self.program("lmplz"), *command, *files]))

    def kenlm(self, name: str, *options: str) -> Path:
        """A binary model of KenLM, made from its ARPA file once."""
        path = self.work / f"kenlm.{name}"
        if not path.exists():
            self.lmplz()
            timed([self.program("build_binary"), *options, self.work / "kenlm.arpa", path])
        return path

    def train(self, preset: str, *options: str, name: str | None = None) -> Run:
        """Run `snm train --preset`, once, after a run on little text that compiles the kernels."""
        name = name or preset
        model = self.work / f"{name}.model"

        def work() -> Run:
            few = self.work / "few.txt"
            with open(self.text("train"), encoding="utf-8") as lines:
                few.write_text("".join(line for line, _ in zip(lines, range(4000), strict=False)), encoding="utf-8")
            command = [sys.executable, "-m", "snm", "train", "--preset", preset, *options, "--force", "-o", model]
            timed([*command, few], cwd=ROOT)
            return timed([*command, self.text("train")], cwd=ROOT)

        return self._once(f"{name}.json", work)

    def model(self, preset: str) -> Path:
        self.train(preset)
        return self.work / f"{preset}.model"

    def _once(self, name: str, work: Any) -> Run:
        path = self.work / name
        if not path.exists():
            run = work()
            path.write_text(json.dumps({"seconds": run.seconds, "peak_bytes": run.peak_bytes, "output": run.output}))
        return Run(**json.loads(path.read_text()))

    def report(self, name: str, rows: list[dict[str, Any]]) -> None:
        report(name, self.corpus.name, rows, self.options.json)


def best_of(times: int, *works: Any) -> list[float]:
    """Seconds of the fastest run of each function; the functions take turns, so that other load slows down all."""
    found = []
    for _ in range(times):
        moments = [time.perf_counter()]
        for work in works:
            work()
            moments.append(time.perf_counter())
        found.append([end - begun for begun, end in pairwise(moments)])
    return [min(column) for column in zip(*found, strict=True)]
