"""Run commands that are killed and starved, and check what is left.

Each experiment is a process, forked from one in which all kernels are compiled. Its folder has an old output, or none,
and files that are not its own. After it, the output is absent, the old one or the new one, whole; and the same command
once more succeeds, says what it clears away, clears away no more, and writes the same bytes as if nothing had been.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import re
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from snm.cli.main import main
from tests.faults.cases import COUNTS, FILE, MODEL, Case, made_by, write_inputs
from tests.faults.shim import ERRORS, Shim

LIMIT = 90  # seconds of an experiment
LEAST_MEMORY = 256 << 10  # bytes that a process without memory may still have
KINDS = ("kill at a change", "kill at a time", "ENOSPC", "EIO", "full disk", "little memory")
FOREIGN = [".m.12345678/notes", ".other.0badcafe/data", ".other.0badcafe.lock", "m.notes", "tmp/snm-mine/file"]
"""Files beside the output that are not its own: no command may touch them."""
LEFT = re.compile(
    r"(\.snm-.*|\.m(\.[a-z]+)?\.[0-9a-f]{8}(\.old)?|\.m(\.[a-z]+)?(\.[0-9a-f]{8})?(\.work)?\.lock|tmp/.*)"
)
"""What a process that was killed may leave, until the next one."""


_STARTING = re.compile(r'threading.py", line \d+ in start$', re.MULTILINE)
"""Python waits for ever for a thread that has no memory to begin with (issue 140746 of CPython)."""


@dataclass
class Ended:
    """How a process ended."""

    code: int
    out: str
    seconds: float
    changes: list[str] = field(default_factory=list)
    grown: int = 0  # bytes of address space at its peak, above those at its begin

    @property
    def lines(self) -> list[str]:
        return [line for line in self.out.splitlines() if line.startswith("snm: ")]


@dataclass
class Known:
    """An undisturbed run of a case: what it makes, and how."""

    made: dict[str, bytes]
    changes: list[str]
    seconds: float
    grown: int
    bytes: int


class Campaign:
    def __init__(self, folder: Path, seed: int, sentences: int) -> None:
        self.folder, self.random = folder, Random(seed)
        self.inputs = write_inputs(folder / "in", sentences)
        self.known: dict[str, Known] = {}
        self.counts: Counter[tuple[str, str]] = Counter()
        self.ends: Counter[tuple[str, str]] = Counter()
        self.lost: list[str] = []

    def learn(self, case: Case) -> None:
        """Run a case in this process, which compiles its kernels, and once more to see what it does."""
        box = self.box(case, old=False)
        _call(case.command(self.inputs, box, 1), box)
        gc.collect()
        gc.freeze()  # else a collection in a child copies all pages of this process
        runs = []
        for threads in (2, 1):
            box = self.box(case, old=False)
            runs.append(run_forked(case.command(self.inputs, box, threads), box, Shim(str(box))))
            if runs[-1].code or box_names(box) != {case.output, *FOREIGN}:
                raise SystemExit(f"{case.name} fails undisturbed: {runs[-1]} {box_names(box)}")
        made = made_by(box / case.output)
        assert made is not None
        if case.kind == MODEL and (bad := self.faulty(box / case.output)):
            raise SystemExit(f"{case.name} writes a model that verify refuses: {bad}")
        self.known[case.name] = Known(
            made, runs[1].changes, runs[0].seconds, runs[0].grown, sum(map(len, made.values()))
        )

    def faulty(self, path: Path) -> str:
        """What `snm verify` says against a model, in a process of its own."""
        ended = run_forked(["verify", str(path), "--contexts", "5"], self.folder, None)
        return "" if ended.code == 0 else ended.out

    def box(self, case: Case, old: bool) -> Path:
        """A folder for an experiment, with an old output or none."""
        box = Path(tempfile.mkdtemp(dir=self.folder))
        fill(box, case, self.inputs, old)
        return box

    def small_disk(self, case: Case, old: bool) -> Path | None:
        """The same on a small disk, which the command may fill; None where it cannot be had, or is too small."""
        most = 3 * self.known[case.name].bytes
        disk = mount(self.folder, self.random.randrange(64 << 10, max(65 << 10, most)))
        if disk is not None:
            try:
                fill(disk, case, self.inputs, old)
            except OSError:
                unmount(disk)
                return None
        return disk

    # -----------------------------------------------------------------------------------------
    # experiments

    def experiment(self, case: Case, kind: str, number: int) -> None:
        """One fault. `number` chooses the change for the kinds that count them."""
        old, on_disk = bool(self.random.getrandbits(1)), kind == "full disk"
        box = self.small_disk(case, old) if on_disk else self.box(case, old)
        if box is None:
            return
        try:
            self.disturb(case, kind, number, box, old)
        finally:
            unmount(box) if on_disk else shutil.rmtree(box)

    def disturb(self, case: Case, kind: str, number: int, box: Path, old: bool) -> None:
        known, on_disk = self.known[case.name], kind == "full disk"
        before, command = made_by(box / case.output), case.command(self.inputs, box, 1)
        if kind == "kill at a time":
            ended = run_forked(command, box, None, kill_after=self.random.uniform(0, 1.1 * known.seconds))
        elif kind == "little memory":
            which = self.random.choice((resource.RLIMIT_AS, resource.RLIMIT_DATA))
            ended = run_forked(command, box, None, memory=(which, self.random.randint(LEAST_MEMORY, known.grown)))
        elif on_disk:
            ended = run_forked(command, box, None)
        else:
            action = "kill" if kind.startswith("kill") else kind
            ended = run_forked(command, box, Shim(str(box), number % len(known.changes), action))
        where = f"{case.name}, {kind} {number}, {'old' if old else 'new'}"
        self.counts[case.name, kind] += 1
        self.check(where, case, box, before, ended, kind)
        if on_disk:
            remount(box)
        self.check_next(where, case, box, ended, command)

    def check(self, where: str, case: Case, box: Path, before: Any, ended: Ended, kind: str) -> None:
        """What the process said, and what it has left."""
        found, new = made_by(box / case.output), self.known[case.name].made
        whole = found in (None, new, before)
        self.require(whole, where, f"the output is neither the old nor the new one: {differences(found, new)}")
        self.require(found is not None or before is None, where, "the old output is lost")
        if ended.code == -signal.SIGKILL and kind.startswith("kill"):
            self.ends[kind, "killed"] += 1
            return
        if kind == "little memory" and ended.code == -signal.SIGKILL and _STARTING.search(ended.out):
            self.ends[kind, "waited in Python's own Thread.start"] += 1
            return
        self.require("Traceback" not in ended.out and "Exception ignored" not in ended.out, where, ended.out[-3000:])
        self.require(ended.code in (0, 1, 2), where, f"ended with {ended.code}: {ended.out[-1000:]}")
        if ended.code == 0:
            self.ends[kind, "succeeded"] += 1
            self.require(found == new, where, "success without the new output")
        else:
            self.ends[kind, "ended with a line"] += 1
            self.require(len(ended.lines) == 1, where, f"one line expected: {ended.out[-2000:]}")
        left = box_names(box) - {*FOREIGN, case.output, f"{case.output}.work"}
        kept = {name for name in left if name in ended.out and made_by(box / name) == new}  # said, and whole
        self.require(left == kept, where, f"left behind: {left - kept}; {ended.out[-500:]}")
        for name in kept:
            shutil.rmtree(box / name) if (box / name).is_dir() else (box / name).unlink()

    def check_next(self, where: str, case: Case, box: Path, ended: Ended, command: list[str]) -> None:
        """The same command once more."""
        left = box_names(box) - {*FOREIGN, case.output, f"{case.output}.work"}
        strange = {name for name in left if not LEFT.fullmatch(name)}
        self.require(not strange, where, f"left behind: {strange}")
        again = run_forked(command, box, Shim(str(box)))
        self.require(again.code == 0, where, f"the next run ended with {again.code}: {again.out[-1000:]}")
        self.require(made_by(box / case.output) == self.known[case.name].made, where, "the next run's output differs")
        stays = box_names(box) - {*FOREIGN, case.output}
        self.require(not stays, where, f"the next run leaves {stays} of {left}")
        self.require({*FOREIGN} <= box_names(box), where, "a file of somebody else is gone")
        folders = {name for name in left if not name.endswith(".lock")}
        said = sum("left behind" in line or "complete now" in line for line in again.out.splitlines())
        self.require(said >= len(folders) > 0 or not folders, where, f"nothing is said of {folders}: {again.out}")

    def require(self, condition: bool, where: str, what: str) -> None:
        if not condition:
            self.lost.append(f"{where}: {what}")
            print(f"LOST {self.lost[-1]}", file=sys.stderr, flush=True)

    def run(self, case: Case, kinds: list[str], count: int) -> None:
        """`count` experiments of each kind for a case; if there are fewer changes of the disk, each of them once."""
        self.learn(case)
        known = self.known[case.name]
        for kind in kinds:
            if kind == "little memory" and known.grown < 4 * LEAST_MEMORY:
                continue  # it takes no more than what this process has freed
            numbers = list(range(count))
            if kind in ("kill at a change", *ERRORS):
                changes = list(range(len(known.changes)))
                numbers = changes if len(changes) <= count else self.random.sample(changes, count)
            for number in numbers:
                self.experiment(case, kind, number)


# ---------------------------------------------------------------------------------------------
# boxes and disks


def fill(box: Path, case: Case, inputs: Path, old: bool) -> None:
    """Make what is there before an experiment: files of others, and an old output."""
    for name in FOREIGN:
        (box / name).parent.mkdir(parents=True, exist_ok=True)
        (box / name).write_text("not yours")
    if old and case.kind == FILE:
        (box / case.output).write_text("the old one\n")
    elif old:
        shutil.copytree(inputs / ("b.counts" if case.kind == COUNTS else "kn"), box / case.output)


def box_names(box: Path) -> set[str]:
    """What is in a box: names, and those of the folder of temporary files, and of the files of others."""
    found = {path.name for path in box.iterdir() if path.name not in ("tmp", "said")}
    found |= {f"tmp/{path.name}" for path in (box / "tmp").iterdir()}
    folders = {str(Path(name).parent) for name in FOREIGN if "/" in name}
    return found - folders | {name for name in FOREIGN if (box / name).exists()}


def differences(found: dict[str, bytes] | None, wanted: dict[str, bytes]) -> list[str]:
    found = found or {}
    return [name for name in sorted({*found, *wanted}) if found.get(name) != wanted.get(name)][:5]


def mount(folder: Path, size: int) -> Path | None:
    """A new small disk in memory; None where this user may not make one."""
    disk = Path(tempfile.mkdtemp(dir=folder))
    command = ["mount", "-t", "tmpfs", "-o", f"size={size >> 10}k", "tmpfs", str(disk)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True, check=False).returncode:
        disk.rmdir()
        return None
    return disk


def remount(disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,size=100m", str(disk)], check=True)


def unmount(disk: Path) -> None:
    subprocess.run(["umount", str(disk)], check=True)
    disk.rmdir()


# ---------------------------------------------------------------------------------------------
# processes


def run_forked(
    arguments: list[str], box: Path, shim: Shim | None, kill_after: float | None = None,
    memory: tuple[int, int] | None = None,
) -> Ended:  # fmt: skip
    """Run a command in a fork of this process."""
    read, write = os.pipe()
    with tempfile.TemporaryFile() as said:
        begun = time.monotonic()
        child = os.fork()
        if not child:
            _child(arguments, box, shim, memory, said.fileno(), write)
        os.close(write)
        code = _wait(child, kill_after)
        seconds = time.monotonic() - begun
        with os.fdopen(read) as report:
            grown, *changes = report.read().splitlines() or ["0"]
        said.seek(0)
        return Ended(code, said.read().decode(errors="replace"), seconds, changes, int(grown))


def _wait(child: int, kill_after: float | None) -> int:
    """Wait for a child, and kill it after a time."""
    handle = os.pidfd_open(child)
    if not select.select([handle], [], [], LIMIT if kill_after is None else kill_after)[0]:
        os.kill(child, signal.SIGKILL)
    os.close(handle)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _child(
    arguments: list[str], box: Path, shim: Shim | None, memory: tuple[int, int] | None, said: int, report: int
) -> None:
    """The forked process, which does not return."""
    code = 70
    try:
        null = os.open(os.devnull, os.O_RDONLY)
        for old, new in ((null, 0), (said, 1), (said, 2)):
            os.dup2(old, new)
        sys.stdout, sys.stderr = (open(n, "w", encoding="utf-8", closefd=False) for n in (1, 2))  # noqa: SIM115
        before = _of_status("VmSize")
        if memory is not None:
            which, more = memory
            size = before if which == resource.RLIMIT_AS else _of_status("VmData")
            faulthandler.dump_traceback_later(LIMIT * 2 // 3)
            resource.setrlimit(which, (size + more, size + more))
        if shim is not None:
            shim.install()
        code = _call(arguments, box)
        if memory is None:
            grown = _of_status("VmPeak") - before
            changes = shim.changes if shim is not None else []
            os.set_blocking(report, True)
            _send(report, "\n".join([str(grown), *changes]))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _send(report: int, text: str) -> None:
    """Through a pipe that nobody reads before this process ends: as much as it takes."""
    with os.fdopen(report, "w") as stream:
        stream.write(text[:60_000])


def _of_status(name: str) -> int:
    found = re.search(rf"{name}:\s+(\d+)", Path("/proc/self/status").read_text())
    assert found is not None
    return 1024 * int(found[1])


def _call(arguments: list[str], box: Path) -> int:
    """Run a command in this process; its temporary files are in the box."""
    before = os.environ.get("TMPDIR")
    os.environ["TMPDIR"], tempfile.tempdir = str(box / "tmp"), None
    try:
        main(arguments)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    finally:
        tempfile.tempdir = None
        os.environ.pop("TMPDIR") if before is None else os.environ.update(TMPDIR=before)
    return 0
