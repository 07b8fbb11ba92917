"""Capabilities together: pruning, caches, sources, adaptation, spelling, export, and the surface of kenlm."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import snm
from snm.errors import SettingsError
from snm.evaluation import verify
from snm.manifest import SPELLING
from tests.test_cli import ok

TEXTS = {"train": (1, 700), "dev": (2, 250), "other": (3, 300)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts in documents, with rare words, and a model with a cache."""
    made = tmp_path_factory.mktemp("combinations")
    for name, (seed, sentences) in TEXTS.items():
        random = np.random.default_rng(seed)
        lines = []
        for i in range(sentences):
            words = [f"w{n}" for n in random.zipf(1.4, 12) % 90] + [f"rare{random.integers(10**6)}"]
            lines += [""] * (i % 10 == 0) + [" ".join(words)]
        (made / f"{name}.txt").write_text("\n".join(lines) + "\n")
    settings = snm.Settings(features="ngram(0..2) + cache(words=50)", document=True, threads=1, engine="cpu")
    snm.train(made / "train.txt", made / "cache", settings, dev=made / "dev.txt").close()
    return made


@pytest.fixture(scope="module")
def plain(folder: Path) -> Path:
    """A model without a cache."""
    settings = snm.Settings(features="ngram(0..2)", threads=1, engine="cpu")
    snm.train(folder / "train.txt", folder / "plain", settings, dev=folder / "dev.txt").close()
    return folder / "plain"


@pytest.fixture(scope="module")
def joined(folder: Path) -> Path:
    """A model of two sources."""
    settings = snm.Settings(features="ngram(0..2)", threads=1, engine="cpu")
    texts = {"a": folder / "train.txt", "b": folder / "other.txt"}
    snm.train(texts, folder / "joined", settings, dev=folder / "dev.txt").close()
    return folder / "joined"


class TestCaches:
    def test_pruned(self, folder: Path, tmp_path: Path) -> None:
        whole = snm.load(folder / "cache")
        links = int(whole.manifest["links"])
        pruned = snm.prune(whole, tmp_path / "m", links=links // 2, dev=folder / "dev.txt")
        assert set(pruned.manifest["requires"]) == {"cache", "orphans"}
        assert pruned.manifest["links"] <= links // 2
        assert verify(tmp_path / "m", folder / "dev.txt", contexts=50).worst < 1e-5

    def test_adapted(self, folder: Path, tmp_path: Path) -> None:
        adapted = snm.adapt(folder / "cache", tmp_path / "m", dev=folder / "other.txt")
        assert adapted.manifest["requires"] == ["cache"]
        assert verify(tmp_path / "m", folder / "dev.txt", contexts=50).worst < 1e-5

    def test_neither_sources_nor_ngrams(self, folder: Path, tmp_path: Path) -> None:
        with pytest.raises(SettingsError, match="a cache, which several sources cannot have; give dev"):
            snm.adapt(folder / "cache", tmp_path / "m", text=folder / "other.txt")
        settings = snm.Settings(features="ngram(0..1) + cache()")
        texts = {"a": folder / "train.txt", "b": folder / "other.txt"}
        with pytest.raises(SettingsError, match="a cache is not for several sources"):
            snm.train(texts, tmp_path / "m", settings, dev=folder / "dev.txt")
        with pytest.raises(SettingsError, match="a cache, which an ARPA file cannot have"):
            snm.export_arpa(snm.load(folder / "cache"), tmp_path / "m.arpa", text=folder / "dev.txt")

    def test_in_the_place_of_kenlm(self, folder: Path) -> None:
        model = snm.kenlm.Model(str(folder / "cache"))
        expected = snm.load(folder / "cache").score("w1 w2 w1 w2 w3")
        assert model.score("w1 w2 w1 w2 w3") == pytest.approx(expected, rel=1e-5)
        assert [length for _, length, _ in model.full_scores("w1 w2 w1")][-1] >= 1


class TestSpelling:
    @pytest.mark.parametrize("kind", ["snm", "kn"])
    def test_a_smaller_model_spells_as_the_whole_one(
        self, kind: str, folder: Path, plain: Path, tmp_path: Path
    ) -> None:
        if kind == "kn":
            plain = tmp_path / "kn"
            snm.train(folder / "train.txt", plain, snm.Settings(model="kn", order=3, threads=1)).close()
        whole = snm.load(plain)
        pruned = snm.prune(whole, tmp_path / "m", links=int(0.7 * whole.manifest["links"]), dev=folder / "dev.txt")
        assert (tmp_path / "m" / SPELLING).read_bytes() == (plain / SPELLING).read_bytes()
        for model in (whole, pruned):
            spelled, plainly = (model.score("rare1", spelled=flag) for flag in (True, False))
            assert spelled < plainly
        difference = whole.score("rare1", spelled=True) - whole.score("rare1")
        assert pruned.score("rare1", spelled=True) - pruned.score("rare1") == pytest.approx(difference, rel=1e-6)

    def test_a_size_counts_the_spelling_model(self, folder: Path, plain: Path, tmp_path: Path) -> None:
        size = int(0.8 * sum(entry["bytes"] for entry in snm.load(plain).manifest["files"].values()))
        for path in (tmp_path / "pruned", tmp_path / "trained"):
            if path.name == "pruned":
                snm.prune(plain, path, size=size)
            else:
                settings = snm.Settings(features="ngram(0..2)", threads=1, engine="cpu", size=size)
                snm.train(folder / "train.txt", path, settings, dev=folder / "dev.txt").close()
            assert 0 < (path / SPELLING).stat().st_size <= size / 16
            snm.verify(path, contexts=5)
            assert sum(file.stat().st_size for file in path.iterdir()) <= size


class TestSources:
    def test_exported_and_in_the_place_of_kenlm(self, joined: Path, folder: Path, tmp_path: Path) -> None:
        ok("export", joined, tmp_path / "m.arpa", "--text", folder / "dev.txt", "--order", "2")
        arpa, model = snm.load(tmp_path / "m.arpa"), snm.kenlm.Model(str(joined))
        dev = snm.load(joined).perplexity(folder / "dev.txt").ppl
        assert arpa.perplexity(folder / "dev.txt").ppl < 2 * dev
        assert model.score("w1 w2 w3") == pytest.approx(snm.load(joined).score("w1 w2 w3"), rel=1e-5)

    def test_what_several_sources_cannot_do(self, joined: Path, folder: Path, tmp_path: Path) -> None:
        with pytest.raises(SettingsError, match="cannot be pruned; train its sources"):
            snm.prune(joined, tmp_path / "m", links=100)
        texts = {"a": folder / "train.txt", "b": folder / "other.txt"}
        with pytest.raises(SettingsError, match="size is not for several sources"):
            snm.train(texts, tmp_path / "m", snm.Settings(size=10_000), dev=folder / "dev.txt")

    def test_text_is_filtered(self, joined: Path, folder: Path, tmp_path: Path) -> None:
        ok("filter", joined, folder / "other.txt", "-o", tmp_path / "kept.txt", "--keep", "50%")
        kept = (tmp_path / "kept.txt").read_text().splitlines()
        lines = (folder / "other.txt").read_text().splitlines()
        assert 0 < len(kept) < len(lines)
        assert set(kept) <= set(lines)
