"""Training by tasks: in a loop, by other programs, on a Ray cluster whose parts are killed, with an S3 server."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import IO

import numpy as np
import pytest

from snm import pipeline
from snm.adjustment.settings import TrainingSettings
from snm.cluster import scheduling, tasks, work
from snm.cluster.__main__ import main as run_task
from snm.cluster.driver import shards_for
from snm.cluster.runners import WaitingRunner
from snm.cluster.scheduling import in_order
from snm.engines import cluster as engine
from snm.errors import FormatError, MissingExtra, SettingsError
from snm.loading import load
from snm.progress import Notify
from snm.remote import Folder
from snm.settings import Settings
from tests.conftest import SMALL_SKIPS, write_bigrams

needs_ray = pytest.mark.skipif(find_spec("ray") is None or sys.platform == "win32", reason="needs Ray: pip install ray")
needs_s3 = pytest.mark.skipif(
    find_spec("moto") is None or find_spec("s3fs") is None, reason="needs an S3 server: pip install 'moto[server]' s3fs"
)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


S3_PORT = free_port()
S3 = {
    "AWS_ENDPOINT_URL": f"http://127.0.0.1:{S3_PORT}", "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_DEFAULT_REGION": "us-east-1",
}  # fmt: skip
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "RAY_USAGE_STATS_ENABLED": "0", **S3}


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Training text with long rows, and held-out text."""
    folder = tmp_path_factory.mktemp("texts")
    write_bigrams(folder / "train.txt", 1, sentences=6000, words=300, followers=60)
    write_bigrams(folder / "dev.txt", 2, sentences=400, words=300, followers=60)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


class Loop(WaitingRunner):
    """Does each task in this process, when it is waited for."""

    threads, slots = 2, 3

    def __init__(self, threads: int, slots: int, notify: Notify) -> None:
        self.done: list[str] = []

    def run(self, task: str, shards: int, folder: Folder) -> Iterator[int]:
        for shard in range(shards):
            self.done.append(task)
            tasks.perform(task, shard, shards, folder.where, folder.where)
            yield shard


@pytest.fixture
def looped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "WaitingRunner", Loop)


BASE = Settings(features="ngram(0..4)", threads=1, engine="cpu", min_count=1, memory=1 << 30, folds=0)
CASES = {
    "snm5": BASE,
    "folds": replace(BASE, folds=None),
    "skips-16bit-ungated": replace(BASE, features=SMALL_SKIPS, weight_bits=16, gate=0),
    "dev-passes": replace(BASE, training=TrainingSettings(passes=2)),
    "held-out": replace(BASE, features=SMALL_SKIPS, training=TrainingSettings(loss="multinomial", batch=512)),
    "classes-sample": replace(
        BASE, features="ngram(0..2) + class(r=1..2, s=0..0, words=1..2)", classes=16,
        training=TrainingSettings(events=20_000),
    ),
    "no-events-closed": replace(BASE, closed=True, training=TrainingSettings(passes=0)),
    "documents-sgd": replace(BASE, document=True, training=TrainingSettings(optimiser="sgd", loss="poisson")),
}  # fmt: skip


@pytest.mark.usefixtures("looped")
class TestLoop:
    @pytest.mark.parametrize(("case", "partitions"), [
        ("snm5", 1), ("snm5", 23), ("folds", 3), ("skips-16bit-ungated", None), ("dev-passes", None),
        ("held-out", None), ("classes-sample", 5), ("no-events-closed", 2), ("documents-sgd", None),
    ])  # fmt: skip
    def test_the_model_is_the_same(self, case: str, partitions: int | None, texts: Path, tmp_path: Path) -> None:
        settings, dev = CASES[case], texts / "dev.txt" if case == "dev-passes" else None
        pipeline.train(texts / "train.txt", tmp_path / "cpu", settings, dev=dev)
        shared = replace(settings, engine="tasks", work=str(tmp_path / "work"), partitions=partitions)
        pipeline.train(texts / "train.txt", tmp_path / "tasks", shared, dev=dev)
        assert contents(tmp_path / "tasks") == contents(tmp_path / "cpu")
        assert names(tmp_path) == ["cpu", "tasks"]

    def test_counts_of_events_on_disk(self, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("snm.engines.cpu.EVENTS_SHARE", 0.0005)  # several runs
        said: list[str] = []
        pipeline.train(texts / "train.txt", tmp_path / "cpu", BASE, notify=said.append)
        assert any("the counts of events need" in line for line in said)
        shared = replace(BASE, engine="tasks", work=str(tmp_path / "work"))
        pipeline.train(texts / "train.txt", tmp_path / "tasks", shared)
        assert contents(tmp_path / "tasks") == contents(tmp_path / "cpu")

    @pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
    def test_nothing_is_left_behind(
        self, error: type[BaseException], texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*arguments: object) -> None:
            raise error

        monkeypatch.setattr(pipeline, "train_adjustment", fail)
        with pytest.raises(error):
            pipeline.train(
                texts / "train.txt", tmp_path / "m", replace(BASE, engine="tasks", work=str(tmp_path / "work"))
            )
        assert names(tmp_path) == []

    def test_a_folder_that_is_not_empty(self, texts: Path, tmp_path: Path) -> None:
        (tmp_path / "note").touch()
        with pytest.raises(SettingsError, match="is not empty"):
            pipeline.train(texts / "train.txt", tmp_path / "m", replace(BASE, engine="tasks", work=str(tmp_path)))
        assert names(tmp_path) == ["note"]


class TestTasks:
    @pytest.fixture
    def folder(self, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
        """The folder of a training that was stopped before building."""
        monkeypatch.setattr(engine, "WaitingRunner", Loop)
        monkeypatch.setattr(Folder, "delete", lambda *arguments: None)

        def stop(*arguments: object) -> None:
            shutil.copytree(tmp_path / "work", tmp_path / "kept")
            raise KeyboardInterrupt

        monkeypatch.setattr(pipeline, "adjust", stop)
        with pytest.raises(KeyboardInterrupt):
            pipeline.train(
                texts / "train.txt", tmp_path / "m", replace(BASE, engine="tasks", work=str(tmp_path / "work"))
            )
        return Folder(tmp_path / "kept" / "0")

    def test_a_task_that_is_complete_is_not_done_again(self, folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
        before = contents(Path(folder.where))
        monkeypatch.setattr(tasks, "open_job", None)
        for name in ("size", "count"):
            tasks.perform(name, 1, 3 if name == "size" else 6, folder.where, folder.where)
        assert contents(Path(folder.where)) == before

    @pytest.mark.parametrize("damage", ["no mark", "cut mark", "cut file", "no file"])
    def test_a_task_that_is_not_complete_is_done_again(self, folder: Folder, damage: str) -> None:
        before = contents(Path(folder.where))
        mark, file = (Path(folder.path(f"count-00001-of-00006.{end}")) for end in ("json", "codes"))
        if damage == "no mark":
            mark.unlink()
        elif damage == "no file":
            file.unlink()
        else:
            cut = mark if damage == "cut mark" else file
            cut.write_bytes(cut.read_bytes()[:-9])
        assert run_task(["count", "--work", folder.where, "--shard", "1", "--shards", "6"]) == 0
        assert contents(Path(folder.where)) == before

    @pytest.mark.parametrize("file", ["count-00001-of-00006.chunks", "count-00001-of-00006.events"])
    def test_damaged_files_are_noticed(self, folder: Folder, file: str) -> None:
        data = bytearray(folder.read(file))
        data[len(data) // 2] ^= 1
        folder.write(file, bytes(data))
        with pytest.raises(FormatError, match="is damaged: its checksum"):
            _ = [*tasks.counts_of(1, 6, folder), *tasks.events_of(1, 6, folder)[1]]

    def test_errors_are_one_line(self, folder: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert run_task(["count", "--work", str(tmp_path), "--shard", "0", "--shards", "1"]) == 2
        assert "has no job.json" in capsys.readouterr().err
        assert run_task(["count", "--work", folder.where, "--shard", "3", "--shards", "3"]) == 2
        assert capsys.readouterr().err == "snm: shard 3 of 3: expected a number from 0 to 2\n"
        job = json.loads(folder.read(work.JOB))
        folder.write(work.JOB, json.dumps({**job, "version": "0.0.1"}).encode())
        assert run_task(["count", "--work", folder.where, "--shard", "0", "--shards", "9"]) == 2
        assert "install the same version on all machines" in capsys.readouterr().err

    def test_other_programs(self, texts: Path, tmp_path: Path) -> None:
        """As in a shell: `python -m snm.cluster all --work ... &`, and one of them is killed and started again."""
        command = [sys.executable, "-m", "snm.cluster", "all", "--work", str(tmp_path / "work"), "--shards", "2"]
        both = [subprocess.Popen([*command, "--shard", str(i)], env=ENVIRONMENT) for i in range(2)]
        try:
            shared = replace(BASE, engine="tasks", work=str(tmp_path / "work"))

            def restart(line: str) -> None:
                if line.startswith("waiting") and len(both) == 2:
                    both[1].kill()
                    both.append(subprocess.Popen([*command, "--shard", "1"], env=ENVIRONMENT))

            pipeline.train(texts / "train.txt", tmp_path / "tasks", shared, notify=restart)
            assert [process.wait(20) for process in both] == [0, -9, 0]
        finally:
            for process in both:
                process.kill()
                process.wait()
        pipeline.train(texts / "train.txt", tmp_path / "cpu", BASE)
        assert contents(tmp_path / "tasks") == contents(tmp_path / "cpu")
        assert names(tmp_path) == ["cpu", "tasks"]


class Simulated:
    """A pool of many machines that lose some tasks."""

    slots = 100

    def __init__(self, lose: Callable[[int], bool] = lambda shard: False) -> None:
        self.lose, self.random = lose, np.random.default_rng(1)
        self.started = self.most = 0
        self.running: dict[Hashable, int] = {}

    def submit(self, shard: int) -> Hashable:
        self.started += 1
        self.running[self.started] = shard
        self.most = max(self.most, len(self.running))
        return self.started

    def wait(self, handles: list[Hashable]) -> list[Hashable]:
        return [handles[self.random.integers(len(handles))]]

    def lost(self, handle: Hashable) -> Exception | None:
        return OSError("lost") if self.lose(self.running.pop(handle)) else None

    def cancel(self, handles: list[Hashable]) -> None:
        for handle in handles:
            del self.running[handle]


class TestScheduling:
    def test_ten_thousand_partitions(self) -> None:
        random = np.random.default_rng(2)
        pool = Simulated(lambda shard: bool(random.random() < 0.1))
        assert list(in_order(pool, 10_000)) == list(range(10_000))
        assert pool.most == scheduling.TASKS_PER_SLOT * pool.slots
        assert 10_500 < pool.started < 12_000
        assert not pool.running

    def test_a_task_that_is_always_lost_ends_the_training(self) -> None:
        pool = Simulated(lambda shard: shard == 70)
        with pytest.raises(OSError, match="lost"):
            list(in_order(pool, 1000))
        assert not pool.running

    def test_tasks_are_cancelled(self) -> None:
        pool = Simulated()
        numbers = in_order(pool, 1000)
        next(numbers)
        assert pool.running
        numbers.close()  # type: ignore[attr-defined]
        assert not pool.running

    def test_the_number_of_tasks(self) -> None:
        assert shards_for(10, 1000, 2) == 4
        assert shards_for(10, 1000, 3) == 6
        assert shards_for(10_500, 1000, 4) == 12


def test_without_ray(texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("snm.devices.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match="pip install ray"):
        pipeline.train(texts / "train.txt", tmp_path / "m", replace(BASE, engine="ray"))
    assert names(tmp_path) == []


def test_settings() -> None:
    with pytest.raises(SettingsError, match="name one with --work"):
        Settings(engine="tasks")
    with pytest.raises(SettingsError, match="engine ray is for SNM"):
        Settings(engine="ray", model="kn")


# ---------------------------------------------------------------------------------------------
# Ray


class Cluster:
    """A cluster of three nodes, see tests/ray_cluster.py."""

    def __init__(self, folder: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("ray_cluster.py"))],
            env={**ENVIRONMENT, "RAY_TMPDIR": str(folder)}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        self.address = self._line()
        assert self.address, "the cluster has not started"

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def do(self, command: str) -> None:
        stream: IO[str] | None = self.process.stdin
        assert stream is not None
        print(command, file=stream, flush=True)
        assert self._line() == "ok", command

    def train(self, text: Path | str, output: Path | str, *options: object) -> subprocess.Popen[str]:
        given = [text, "-o", output, "--engine", "ray", "--address", self.address, "--threads", 1, "--memory", "1G"]
        command = [sys.executable, "-m", "snm", "train", *given, "--min-count", 1, *options]
        return subprocess.Popen(
            [str(argument) for argument in command], env=ENVIRONMENT, stderr=subprocess.PIPE, text=True
        )

    def close(self) -> None:
        try:
            self.process.communicate(timeout=30)
        finally:
            self.process.kill()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    folder = Path("/tmp") / f"snm-ray-{os.getpid()}"  # sockets have short names
    folder.mkdir()
    made = Cluster(folder)
    try:
        yield made
    finally:
        made.close()
        shutil.rmtree(folder, ignore_errors=True)


def ends(process: subprocess.Popen[str], code: int = 0) -> str:
    _, said = process.communicate(timeout=120)
    assert process.returncode == code, said
    return said


def wait_for(folder: Path, pattern: str) -> None:
    deadline = time.monotonic() + 60
    while not list(folder.glob(pattern)):
        assert time.monotonic() < deadline, f"no {pattern}"
        time.sleep(0.005)


@pytest.fixture(scope="module")
def expected(texts: Path) -> dict[str, bytes]:
    """The files of the model of the CPU engine."""
    pipeline.train(texts / "train.txt", texts / "cpu", replace(BASE, features=SMALL_SKIPS)).close()
    return contents(texts / "cpu")


@needs_ray
class TestRay:
    OPTIONS = ("--features", SMALL_SKIPS, "--partitions", 12, "--folds", 0)

    def test_parts_of_the_cluster_are_killed_in_each_phase(
        self, cluster: Cluster, texts: Path, tmp_path: Path, expected: dict[str, bytes]
    ) -> None:
        training = cluster.train(texts / "train.txt", tmp_path / "m", *self.OPTIONS)
        for mark in ("job", "count-00000-of-00012", "build-00000-of-00012"):  # job.json: sizes come next
            wait_for(tmp_path, f".m.work.*/0/{mark}.json")
            cluster.do("kill-worker")
            cluster.do("kill-node")  # and its object store, which is a part of its raylet
            cluster.do("add")
        ends(training)
        assert contents(tmp_path / "m") == expected
        assert names(tmp_path) == ["m"]

    def test_two_jobs_at_once(self, cluster: Cluster, texts: Path, tmp_path: Path, expected: dict[str, bytes]) -> None:
        options = "--features", SMALL_SKIPS, "--partitions", 4, "--folds", 0
        both = [cluster.train(texts / "train.txt", tmp_path / name, *options) for name in ("a", "b")]
        for process in both:
            ends(process)
        assert contents(tmp_path / "a") == contents(tmp_path / "b") == expected
        assert names(tmp_path) == ["a", "b"]

    def test_interrupt(self, cluster: Cluster, texts: Path, tmp_path: Path) -> None:
        training = cluster.train(texts / "train.txt", tmp_path / "m", *self.OPTIONS)
        wait_for(tmp_path, ".m.work.*/0/count-00000-of-00012.json")
        training.send_signal(signal.SIGINT)
        assert "interrupted" in ends(training, 130)
        assert names(tmp_path) == []
        cluster.do("wait-free")

    def test_failures(self, cluster: Cluster, texts: Path, tmp_path: Path) -> None:
        said = ends(cluster.train(texts / "train.txt", tmp_path / "m", "--memory", "900G"), 2)
        assert "no machine of the Ray cluster has a CPU and 921,600 MB for a task" in said
        assert names(tmp_path) == []

    @needs_s3
    def test_text_and_model_in_an_object_store(
        self, cluster: Cluster, texts: Path, tmp_path: Path, expected: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with s3_server(monkeypatch):
            import s3fs

            store = s3fs.S3FileSystem()
            store.mkdir("bucket")
            store.put(str(texts / "train.txt"), "bucket/text/train.txt")
            ends(cluster.train("s3://bucket/text", "s3://bucket/models/m", *self.OPTIONS))
            found = {path.rsplit("/", 1)[-1]: store.cat_file(path) for path in store.find("bucket/models")}
            assert found == expected
            with load("s3://bucket/models/m") as model:
                assert model.manifest["kind"] == "snm"
            said = ends(cluster.train("s3://bucket/text", "s3://bucket/models/m", *self.OPTIONS), 2)
            assert "exists already" in said


@contextmanager
def s3_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An S3 server on this machine, which the environment names."""
    for name, value in S3.items():
        monkeypatch.setenv(name, value)
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(S3_PORT)]
    server = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 30
        while True:
            try:
                socket.create_connection(("127.0.0.1", S3_PORT), 1).close()
                break
            except OSError:
                assert time.monotonic() < deadline, "the server has not started"
                time.sleep(0.05)
        yield
    finally:
        server.kill()
        server.wait()
