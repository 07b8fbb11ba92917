"""Several processes and threads at the same time: readers of a model that is replaced, and cold caches of kernels."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

import snm
from snm import storage
from snm.errors import FormatError
from snm.storage import ModelWriter, link_files, read_manifest
from tests.conftest import train
from tests.test_kernel_cache import PACKAGE, SCRIPT

GOLDEN = Path(__file__).parent / "golden" / "format3"
LINE = "the old stone was in the river"


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """A context in which nobody can write to a folder: by its mode or, for root, by a mount."""
    if sys.platform == "win32":
        pytest.skip("Windows has no folders that are only read")
    if os.geteuid():
        for path in (folder, *folder.rglob("*")):
            path.chmod(path.stat().st_mode & ~0o222)
        yield
        for path in (folder, *folder.rglob("*")):
            path.chmod(path.stat().st_mode | 0o200)
        return
    mount = [shutil.which("mount") or "mount", "--bind", str(folder), str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("root can write everywhere, and cannot mount here")
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", str(folder)], check=True)
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def replace(path: Path, source: Path) -> None:
    """Replace a model by another, as a training does."""
    with ModelWriter(path, force=True) as writer:
        link_files(source, writer.folder, [storage.MANIFEST])
        manifest = read_manifest(source)
        writer.finish({name: value for name, value in manifest.items() if name not in ("format", "version", "files")})


class TestReaders:
    @pytest.fixture
    def models(self, tmp_path: Path) -> list[Path]:
        """Two mixtures whose folders have the same names, and two models of one kind."""
        for name, other in (("a", "backoff"), ("b", "snm-cache")):
            snm.mix([GOLDEN / "snm", GOLDEN / other], iter([LINE, "a cat"] * 20), tmp_path / name).close()
        return [tmp_path / "a", tmp_path / "b", GOLDEN / "snm", GOLDEN / "snm-long-rows"]

    @pytest.mark.parametrize("readers", [6])
    def test_a_reader_sees_the_old_model_or_the_new_one(self, readers: int, models: list[Path], tmp_path: Path) -> None:
        path, ended, failed, seen = tmp_path / "m", threading.Event(), list[BaseException](), set[float]()
        answers = {snm.load(model).score(LINE): model for model in models}
        assert len(answers) == len(models)
        replace(path, models[0])
        first = snm.load(path)

        def read() -> None:
            try:
                while not ended.is_set():
                    with snm.load(path) as model:
                        score = model.score(LINE)
                        assert score in answers
                        assert {model.score(LINE) for _ in range(3)} == {score}
                        seen.add(score)
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=read) for _ in range(readers)]
        for thread in threads:
            thread.start()
        for turn in range(20):
            replace(path, models[turn % len(models)])
        ended.set()
        for thread in threads:
            thread.join()
        assert failed == []
        assert len(seen) > 1
        assert answers[first.score(LINE)] == models[0], "what was mapped stays as it was"
        assert sorted(item.name for item in tmp_path.iterdir()) == ["a", "b", "m"]

    @pytest.mark.parametrize(
        "use",
        [
            lambda model, path: snm.prune(model, path, size=1 << 40),
            lambda model, path: model.adapt(iter(["the old stone"] * 400), path),
        ],
        ids=["prune", "adapt"],
    )
    def test_files_of_a_model_that_was_replaced_are_not_mixed(
        self, use: Callable[[Any, Path], object], model_path: Path, corpus_file: Path, tmp_path: Path
    ) -> None:
        shutil.copytree(model_path, tmp_path / "m")
        with snm.load(tmp_path / "m") as model:
            train(corpus_file, tmp_path / "m", snm.Settings(features="ngram(0..2)", threads=1), force=True).close()
            with pytest.raises(FormatError, match="was replaced by another model while it was used"):
                use(model, tmp_path / "n")
        assert [item.name for item in tmp_path.iterdir()] == ["m"]


class TestThreads:
    """Threads that use one model get the answers of one thread."""

    def answers(self, model: snm.LanguageModel) -> list[Any]:
        lines = [LINE, "a cat", "the narrow stone holds the bright letter", ""]
        found: list[Any] = [model.score_sentences(lines[:3]), model.score_words(lines[:3])]
        found += [model.next_words(line, k=5) for line in lines] + [model.generate(seed=3, max_words=8)]
        found.append(model.perplexity(iter(lines)).logprob10)
        if isinstance(model, snm.StatefulModel):
            state = model.start()
            for word in LINE.split():
                log10_p, state = model.step(state, word)
                found.append(log10_p)
        if type(model).explain is not snm.LanguageModel.explain:
            found.append([word.probability for word in model.explain(LINE)])
        return found

    @pytest.mark.parametrize("kind", sorted(path.stem for path in GOLDEN.glob("*.json")))
    def test_many_threads_on_one_model(self, kind: str) -> None:
        expected, model = self.answers(snm.load(GOLDEN / kind)), snm.load(GOLDEN / kind)
        barrier = threading.Barrier(8)

        def work(_: int) -> list[list[Any]]:
            barrier.wait()  # the first answers, which make what the model keeps, at the same time
            return [self.answers(model) for _ in range(2)]

        with ThreadPoolExecutor(8) as pool:
            for made in pool.map(work, range(8)):
                assert made == [expected] * 2


class TestColdCaches:
    def start(self, folder: Path, **how: Any) -> subprocess.Popen[str]:
        environment = {name: value for name, value in os.environ.items() if name not in ("NUMBA_CACHE_DIR", "HOME")}
        environment |= {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"} | how.pop("environment", {})
        return subprocess.Popen(
            [sys.executable, "-c", SCRIPT], cwd=folder, env=environment, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, **how,
        )  # fmt: skip

    def answer(self, process: subprocess.Popen[str]) -> list[str]:
        """The keys that a kernel computed, and how often its code came from the cache."""
        out, error = process.communicate(timeout=300)
        assert process.returncode == 0, error
        return out.rsplit(maxsplit=2)

    def test_processes_that_compile_the_same_kernel_at_the_same_time(self, tmp_path: Path) -> None:
        shutil.copytree(PACKAGE, tmp_path / "snm", ignore=shutil.ignore_patterns("__pycache__", "*.nb?"))
        together = [self.start(tmp_path, environment={"NUMBA_CACHE_DIR": str(tmp_path / "cache")}) for _ in range(4)]
        keys = {self.answer(process)[0] for process in together}
        assert len(keys) == 1
        after = self.answer(self.start(tmp_path, environment={"NUMBA_CACHE_DIR": str(tmp_path / "cache")}))
        assert after == [keys.pop(), "1", "0"], "the cache is whole"

    @pytest.mark.parametrize("writable", [True, False])
    def test_a_package_that_may_not_be_written(self, writable: bool, tmp_path: Path) -> None:
        """As one that root installed; `writable`: the temporary folder."""
        package, temporary = tmp_path / "site", tmp_path / "tmp"
        shutil.copytree(PACKAGE, package / "snm", ignore=shutil.ignore_patterns("__pycache__", "*.nb?"))
        temporary.mkdir()
        with ExitStack() as resources:
            for folder in (package,) if writable else (package, temporary):
                resources.enter_context(read_only(folder))
            where = {"TMPDIR": str(temporary), "HOME": str(package), "XDG_CACHE_HOME": str(package)}
            first = self.answer(self.start(package, environment=where))
            assert first[1:] == ["0", "1"]
            again = self.answer(self.start(package, environment=where))
            assert again[0] == first[0]
            assert again[1] == "1" or not writable
            assert not list(package.rglob("*.nb?"))
