"""Every code block of the README, the tutorials and the other pages is run, or says what it needs."""

from __future__ import annotations

import gzip
import json
import lzma
import shutil
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import snm
from tests.code_blocks import LANGUAGES, NEVER, OPTIONAL, Runner, alike, blocks_of, missing
from tests.test_hub import hub  # noqa: F401

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCKS = {page.relative_to(ROOT).as_posix(): blocks for page in PAGES if (blocks := blocks_of(page, ROOT))}
RUN = [page for page, blocks in BLOCKS.items() if any(b.language != "text" for b in blocks)]
NEEDS = sorted({need for blocks in BLOCKS.values() for block in blocks for need in block.needs})


class Supplies:
    """The models and texts that how-to pages speak of and do not make, by their names. Each is made once."""

    def __init__(self, folder: Path, lines: int) -> None:
        self.folder = folder
        random = np.random.default_rng(5)
        parts = [
            ["the cat", "a dog", "she", "the old man"],
            ["sees", "likes", "said"],
            ["fish", "nothing", "a sentence"],
        ]
        self.lines = [" ".join(random.choice(part) for part in parts) for _ in range(lines)]
        chinese = [
            ["我们", "他们", "老师", "学生", "她的朋友"],
            ["喜欢", "常常", "不想"],
            ["读书", "写信", "吃饭", "看电影"],
        ]
        self.chinese = ["".join(random.choice(part) for part in chinese) for _ in range(500)]

    def __call__(self, name: str) -> None:
        """Make `name` in the current folder, if it is a name of something that can be made."""
        maker = self.maker_of(Path(name).name)
        if maker is None:
            return
        made = self.folder / maker.__name__ / Path(name).name
        if not made.exists():
            made.parent.mkdir(exist_ok=True)
            maker(made)
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        if made.is_dir():
            shutil.copytree(made, name)
        else:
            shutil.copy(made, name)

    def maker_of(self, name: str) -> Callable[[Path], object] | None:
        whole = {"nbest.jsonl": self.lists, "dev.jsonl": self.lists, "zh.txt": self.zh, "zh-test.txt": self.zh}
        endings = {
            ".model": self.snm, ".arpa": self.arpa, ".txt": self.text, ".jsonl": self.records, ".parquet": self.parquet,
            ".counts": self.counts,
        }  # fmt: skip
        if name in whole:
            return whole[name]
        if name.startswith(("kn", "other", "general")) and name.endswith(".model"):
            return self.kn
        plain = name.removesuffix(".xz").removesuffix(".gz").removesuffix(".zst")
        return next((maker for ending, maker in endings.items() if plain.endswith(ending)), None)

    def snm(self, path: Path) -> None:
        """An SNM whose gate is small, of all lines."""
        snm.train(iter(self.lines), path, snm.Settings(features="ngram(0..3) + skip(r=1, s=1, words=1..2)", threads=1))

    def kn(self, path: Path) -> None:
        snm.train(iter(self.lines), path, snm.Settings(model="kn", order=3, threads=1))

    def arpa(self, path: Path) -> None:
        self("kn.model")
        with snm.load("kn.model") as model:
            snm.export_arpa(model, path)

    def text(self, path: Path) -> None:
        self.write(path, "".join(f"{line}\n" for line in self.lines))

    def zh(self, path: Path) -> None:
        self.write(path, "".join(f"{line}\n" for line in self.chinese))

    def records(self, path: Path) -> None:
        self.write(path, "".join(json.dumps({"text": line}) + "\n" for line in self.lines))

    def lists(self, path: Path) -> None:
        """Utterances, each with a wrong hypothesis that sounds better than the right one."""
        lists = []
        for number, line in enumerate(self.lines[:40]):
            nbest = [{"text": f"{line} zork", "acoustic": -1.0}, {"text": line, "acoustic": -1.5}]
            lists.append({"id": f"u{number}", "reference": line, "nbest": nbest})
        self.write(path, "".join(json.dumps(one) + "\n" for one in lists))

    def parquet(self, path: Path) -> None:
        import pyarrow
        from pyarrow import parquet

        parquet.write_table(pyarrow.table({"text": self.lines}), path)

    def counts(self, path: Path) -> None:
        snm.count_text(iter(self.lines), path, snm.Settings(features="snm3", threads=1))

    @staticmethod
    def write(path: Path, text: str) -> None:
        if path.suffix == ".zst":
            import zstandard

            path.write_bytes(zstandard.compress(text.encode()))
        else:
            packers: dict[str, Callable[[bytes], bytes]] = {".xz": lzma.compress, ".gz": gzip.compress}
            path.write_bytes(packers.get(path.suffix, bytes)(text.encode()))


@pytest.fixture(scope="module")
def all_supplies(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Supplies]:
    return cache(lambda lines: Supplies(tmp_path_factory.mktemp("supplies"), lines))


@pytest.fixture
def supplies(page: str, all_supplies: Callable[[int], Supplies]) -> Supplies:
    return all_supplies(60 if page == "docs/neural.md" else 400)  # networks of a thousand units take their time


def names_of(page: str) -> dict[str, Any]:
    """What the Python of a how-to page has from elsewhere, such as an acoustic model's logits."""
    letters = ["", " ", *"abcdefghijklmnopqrstuvwxyz"]
    logits = np.random.default_rng(1).normal(size=(20, len(letters)))
    if page == "docs/decoding.md":
        return {
            "labels": letters, "logits": logits, "many_logits": [logits, logits[:9]], "unigrams": ["cat", "fish"],
            "tokens": ["the", "cat", "fish"], "parents": _tensor([0, 1]), "chosen": _tensor([2, 0]),
            "word_dictionary": _dictionary(["the", "cat", "fish"]),
        }  # fmt: skip
    if page == "docs/sources.md":
        return {"sentences": ["she likes fish", "the cat said nothing"] * 50}
    if page == "docs/filtering.md" and not missing("datasets"):
        import datasets

        return {"rows": datasets.Dataset.from_dict({"text": ["she likes fish", "zork", "the cat sees fish"]})}
    return {}


def _tensor(values: list[int]) -> Any:
    if missing("torch"):
        return None
    import torch

    return torch.tensor(values)


def _dictionary(words: list[str]) -> Any:
    if missing("flashlight"):
        return None
    from flashlight.lib.text.dictionary import Dictionary

    return Dictionary(words)


@pytest.mark.filterwarnings("ignore:Use .content:DeprecationWarning")  # the client of the Hub, of its own
@pytest.mark.parametrize("page", RUN)
def test_the_blocks_of_a_page(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, supplies: Supplies, request: pytest.FixtureRequest
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    tutorial = page.startswith("docs/tutorials/")
    request.addfinalizer(partial(_put_back, sys.modules.get("kenlm")))
    if page == "docs/tutorials/gpu.md" and missing("a GPU") and not missing("torch"):
        import torch

        monkeypatch.setattr("snm.devices.find_gpu", lambda: torch.device("cpu"))  # the GPU engine runs there too
    if page == "docs/hub.md" and not missing("huggingface_hub"):
        server = request.getfixturevalue("hub")
        supplies("my.model")
        files = {file.name: file.read_bytes() for file in Path("my.model").iterdir()}
        server.commit("owner/name", files)
    with ExitStack() as opened:
        runner = Runner(
            {} if tutorial else names_of(page),
            None if tutorial else supplies,
            lambda arguments: opened.enter_context(served(arguments)),
        )
        skipped = False
        for block in BLOCKS[page]:
            # what a skipped block would have printed is not looked for
            skipped = any(map(missing, block.needs)) or (skipped and block.info.startswith("text"))
            if not skipped:
                runner.run(block)


def _put_back(kenlm: Any) -> None:
    """Undo what `snm.kenlm.install()` did."""
    if kenlm is not None:
        sys.modules["kenlm"] = kenlm
    elif sys.modules.get("kenlm") is sys.modules.get("snm.kenlm"):
        sys.modules.pop("kenlm", None)


def served(arguments: list[str]) -> Any:
    """A server of the models of `snm serve`."""
    from tests.serving import serving

    models = {}
    for argument in arguments:
        name, _, path = argument.rpartition("=")
        models[name or Path(path).stem] = snm.load(path)
    return serving(models)


@pytest.mark.parametrize("need", NEEDS)
def test_what_blocks_need(need: str) -> None:
    """Blocks that were not run are named in the summary of the tests."""
    places = [block.place for blocks in BLOCKS.values() for block in blocks if need in block.needs]
    if missing(need):
        pytest.skip(f"no {need}: not run: {', '.join(places)}")


def test_every_block_says_what_it_is() -> None:
    for page in PAGES:
        blocks = BLOCKS.get(page.relative_to(ROOT).as_posix(), [])
        assert page.read_text().count("\n```") == 2 * len(blocks) - page.read_text().startswith("```"), page
        for block in blocks:
            assert block.language in LANGUAGES, f"{block.place} begins with ```{block.info}"
            assert "needs" not in block.comments or block.needs, block.place
            assert set(block.needs) <= NEVER | OPTIONAL, block.place
            if block.language == "text" and not block.info.endswith('"prints"'):
                assert not block.comments
                assert not any(line.startswith(("snm ", "$ snm ")) for line in block.code.split("\n")), block.place


def test_indented_blocks_are_no_code() -> None:
    for page in PAGES:
        for before, line in zip(page.read_text().split("\n"), page.read_text().split("\n")[1:], strict=False):
            assert before or not line.startswith(("    snm ", "    $ ", "    import ", "    python ")), (
                f"{page}: {line}"
            )


def test_tutorials_make_what_they_use() -> None:
    pages = [page for page in RUN if page.startswith("docs/tutorials/")]
    assert len(pages) >= 10
    for page in pages:
        assert not NEVER & {need for block in BLOCKS[page] for need in block.needs}, page


def test_outputs_are_compared() -> None:
    assert alike("perplexity 12.34\n  … 5 words", "perplexity  12.35\nmore\n5 words\n")
    assert alike("a  1,000 …", "a 1,001 and so on")
    assert not alike("perplexity 12.34", "perplexity 13.34")
    assert not alike("perplexity", "complexity")
    assert alike("…", "")
