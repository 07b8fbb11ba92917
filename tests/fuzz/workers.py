"""Processes that open hostile models, and are watched: their time, their memory, and how they end."""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import re
import resource
import select
import shutil
import signal
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from tests.fuzz.mutations import Files, Mutant, mutate, mutate_arpa, read_files
from tests.fuzz.uses import ASKED, import_arpa, remove_files, use, write_files

SECONDS = 20  # of processor time that a model may take
MORE_MEMORY = 96 << 20  # bytes that may be taken whatever the size: kernels, scratch memory, the vocabulary
ADDRESS_SPACE = 8 << 30  # more than a process has when it begins
KEPT = 50  # failures whose files are kept


@dataclass(frozen=True)
class Seed:
    """A model that is changed."""

    name: str
    folder: Path
    files: dict[str, bytes]


@dataclass
class Figures:
    """What has come of the models so far."""

    tried: Counter[str] = field(default_factory=Counter)  # by seed
    outcomes: Counter[str] = field(default_factory=Counter)
    failures: list[dict[str, Any]] = field(default_factory=list)
    slowest: float = 0.0
    largest: int = 0  # bytes of memory beyond twice the model
    restarts: int = 0


class Campaign:
    """Models and ARPA files, in two processes that are forked from this one, in which kernels are compiled."""

    def __init__(self, seeds: Path, folder: Path, seed: int, workers: int = 2) -> None:
        self.folder, self.seed, self.workers = folder, seed, workers
        self.models = [Seed(p.name, p, read_files(p)) for p in sorted((seeds / "models").iterdir())]
        self.arpas = [(p.name, p.read_bytes()) for p in sorted((seeds / "arpa").iterdir())]
        self.plain = [seed.files for seed in self.models]
        self.figures = Figures()

    def warm_up(self) -> None:
        """Compile all kernels: every unchanged model is used in every way, and answers."""
        box = self.box("warm")
        for seed in self.models:
            for _ in range(1 if "counts/counts.json" in seed.files else 2):
                if use(seed.folder, box / "out", Random(1), len(ASKED)) == "refused":
                    raise SystemExit(f"the unchanged model {seed.name} is refused")
        for name, data in self.arpas:
            (box / "m.arpa").write_bytes(data)
            if import_arpa(box / "m.arpa", box / "out", Random(1)) != "answered":
                raise SystemExit(f"the unchanged file {name} is refused")

    def box(self, name: str) -> Path:
        """A folder for a model, and for what it writes."""
        box = self.folder / name
        for part in ("in", "out", "tmp"):
            (box / part).mkdir(parents=True, exist_ok=True)
        return box

    def mutant(self, kind: str, number: int) -> tuple[str, Mutant, Random]:
        """The model or ARPA file of a number: always the same."""
        random = Random(f"{self.seed} {kind} {number}")
        if kind == "arpa":
            name, data = random.choice(self.arpas)
            return name, mutate_arpa(random, data), random
        seed = random.choice(self.models)
        return seed.name, mutate(random, seed.files, self.plain), random

    def try_one(self, kind: str, number: int, box: Path) -> dict[str, Any]:
        """What comes of one model."""
        name, mutant, random = self.mutant(kind, number)
        remove_files(box / "in")
        remove_files(box / "out")
        size = write_files(box / "in", mutant.files)
        result: dict[str, Any] = {"kind": kind, "number": number, "seed": name, "done": mutant.done}
        forget_peak()
        before, begun = of_status("VmRSS"), time.process_time()
        try:
            run, path = (import_arpa, box / "in" / "m.arpa") if kind == "arpa" else (use, box / "in")
            result["outcome"] = run(path, box / "out", random)
        except BaseException as error:
            frames = traceback.extract_tb(error.__traceback__)
            result["outcome"] = "failed"
            result["error"] = f"{type(error).__name__}: {str(error)[:300]}"
            result["where"] = [f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in frames[-5:]]
        result["seconds"] = round(time.process_time() - begun, 3)
        result["memory"] = max(0, of_status("VmHWM") - before - 2 * size)
        if result["memory"] > MORE_MEMORY and result["outcome"] != "failed":
            result |= {"outcome": "failed", "error": f"{result['memory']:,} bytes beyond twice its {size:,}"}
        return result

    # -----------------------------------------------------------------------------------------

    def run(self, kind: str, count: int, first: int = 0) -> None:
        """Try the models with the numbers from `first` on."""
        gc.collect()
        gc.freeze()  # else a collection in a child copies all pages of this process
        ways = [_Way(self, kind, w, iter(range(first + w, first + count, self.workers))) for w in range(self.workers)]
        while any(way.alive for way in ways):
            ready, _, _ = select.select([way.pipe for way in ways if way.alive], [], [], 1.0)
            for way in ways:
                if way.alive:
                    way.watch(way.pipe in ready)

    def add(self, result: dict[str, Any]) -> None:
        figures = self.figures
        figures.tried[result["seed"]] += 1
        figures.outcomes[f"{result['kind']}: {result['outcome']}"] += 1
        figures.slowest = max(figures.slowest, result.get("seconds", 0))
        figures.largest = max(figures.largest, result.get("memory", 0))
        if result["outcome"] == "failed":
            figures.failures.append(result)
            if len(figures.failures) <= KEPT:
                kept = self.folder / "failures" / f"{result['kind']} {result['number']}"
                _, mutant, _ = self.mutant(result["kind"], result["number"])
                write_files(kept, _plain(mutant.files))


class _Way:
    """A process that tries some of the models; another takes its place if it dies."""

    def __init__(self, campaign: Campaign, kind: str, name: int, numbers: Any) -> None:
        self.campaign, self.kind, self.numbers = campaign, kind, numbers
        self.box = campaign.box(f"{kind} {name}")
        self.alive, self.current = False, -1
        self._start()

    def _start(self) -> None:
        self.left = list(self.numbers)
        self.alive = bool(self.left)
        if not self.alive:
            return
        self.pipe, writing = os.pipe()
        self.pid, self._rest, self.current = os.fork(), b"", -1
        if not self.pid:
            os.close(self.pipe)
            _child(self.campaign, self.kind, self.left, self.box, writing)
        os.close(writing)
        self.numbers = iter(self.left)

    def watch(self, ready: bool) -> None:
        """Take its results; end it if a model takes too long; start another if it has ended."""
        data = os.read(self.pipe, 1 << 20) if ready else None
        for line in self._lines(data or b""):
            found = json.loads(line)
            if "begun" in found:
                self.current, self.since = found["begun"], cpu_seconds(self.pid)
                next(self.numbers)
            else:
                self.current = -1
                self.campaign.add(found)
        if data == b"":
            self._ended(os.waitpid(self.pid, 0)[1])
        elif self.current >= 0 and cpu_seconds(self.pid) - self.since > SECONDS:
            os.kill(self.pid, signal.SIGKILL)

    def _lines(self, data: bytes) -> list[bytes]:
        *lines, self._rest = (self._rest + data).split(b"\n")
        return lines

    def _ended(self, status: int) -> None:
        os.close(self.pipe)
        if self.current >= 0:
            name, mutant, _ = self.campaign.mutant(self.kind, self.current)
            how = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"exit {os.WEXITSTATUS(status)}"
            how = f"more than {SECONDS} s" if how == f"signal {int(signal.SIGKILL)}" else how
            self.campaign.add({
                "kind": self.kind, "number": self.current, "seed": name, "done": mutant.done, "outcome": "failed",
                "error": how,
            })  # fmt: skip
        self.campaign.figures.restarts += 1
        self._start()


def _child(campaign: Campaign, kind: str, numbers: list[int], box: Path, writing: int) -> None:
    """The forked process, which does not return."""
    faulthandler.disable()  # this process, whose signals are counted, writes no tracebacks of pytest's
    tempfile.tempdir = str(box / "tmp")
    size = of_status("VmSize") + ADDRESS_SPACE
    resource.setrlimit(resource.RLIMIT_AS, (size, size))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        with os.fdopen(writing, "wb", buffering=0) as pipe:
            for number in numbers:
                pipe.write(f'{{"begun": {number}}}\n'.encode())
                pipe.write(json.dumps(campaign.try_one(kind, number, box)).encode() + b"\n")
    except BaseException:
        traceback.print_exc()
        os._exit(70)
    os._exit(0)


def _plain(files: Files) -> Files:
    return {name: data for name, data in files.items() if isinstance(data, bytes)}


def forget_peak() -> None:
    """Set the peak of this process's memory to what it has."""
    Path("/proc/self/clear_refs").write_text("5")


def of_status(name: str) -> int:
    """Bytes that Linux says of this process."""
    found = re.search(rf"{name}:\s+(\d+)", Path("/proc/self/status").read_text())
    assert found is not None
    return 1024 * int(found[1])


def cpu_seconds(pid: int) -> float:
    """Processor time of a process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def clear(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
