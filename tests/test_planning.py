"""Forecasts of counts and disk, and `snm plan`."""

from __future__ import annotations

import gzip
import json
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner

from snm import disk
from snm.adjustment.settings import TrainingSettings
from snm.cli.main import main
from snm.counts.counting import Counter
from snm.counts.forecast import chosen_buckets, code_sizes, forecast
from snm.engines.cpu import spill_phases
from snm.errors import InputError, SettingsError
from snm.features.extraction import Extractor
from snm.features.specification import FeatureSpec
from snm.kernels import event_codes
from snm.layouts.keys import KeyLayout
from snm.pipeline import train
from snm.planning.growth import continued
from snm.planning.plan import plan
from snm.planning.sample import take_sample
from snm.planning.timing import straight
from snm.progress import Advance, silent
from snm.settings import Settings
from snm.text.encoding import Text, read_corpus


def random_lines(n: int, seed: int = 1, words: int = 3000) -> list[str]:
    random = np.random.default_rng(seed)
    ranks = np.minimum(random.zipf(1.2, (n, 12)), words)
    return [" ".join(f"w{rank}" for rank in line[: random.integers(3, 13)]) for line in ranks]


@pytest.fixture(scope="module")
def random_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("planning") / "random.txt"
    path.write_text("\n".join(random_lines(30_000)) + "\n")
    return path


def read(path: Path, spec: str) -> tuple[Text, Extractor]:
    text, vocabulary = read_corpus([path], 1)
    parsed = FeatureSpec(spec)
    layout = KeyLayout.for_work(len(vocabulary), len(parsed.types), text.events * len(parsed.templates))
    return text, Extractor(parsed, layout, vocabulary)


class TestForecast:
    @pytest.mark.parametrize("prune", [1, 2])
    def test_all_buckets_give_the_true_counts(self, random_file: Path, prune: int) -> None:
        text, extractor = read(random_file, "ngram(0..3) + skip(r=1, s=1..2, words=1..2)")
        found = forecast(text, extractor, prune, chosen=1 << extractor.layout.bucket_bits)
        counter = Counter(text, extractor, 1 << 30, prune=prune)
        parts = list(counter)
        assert found.features == counter.links
        assert found.rows == sum(part.rows for part in parts)
        assert found.links == sum(part.links for part in parts)
        assert found.rows_by_type.tolist() == sum(part.by_type[0] for part in parts)[: len(found.rows_by_type)].tolist()
        coded = sum(part.codes.nbytes for part in parts)
        assert found.codes_bytes == pytest.approx(coded, rel=0.01)

    @pytest.mark.parametrize("share", [4, 8])
    def test_some_buckets_give_nearly_the_true_counts(self, random_file: Path, share: int) -> None:
        text, extractor = read(random_file, "ngram(0..4)")
        buckets = 1 << extractor.layout.bucket_bits
        true, found = (forecast(text, extractor, chosen=n) for n in (buckets, buckets // share))
        assert found.features == true.features
        for name, tolerance in (("rows", 0.05), ("links", 0.1), ("codes_bytes", 0.1), ("events_bytes", 0.15)):
            assert getattr(found, name) == pytest.approx(getattr(true, name), rel=tolerance), name

    def test_threads_and_small_parts_change_nothing(self, random_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        text, extractor = read(random_file, "ngram(0..3)")
        expected = forecast(text, extractor, chosen=40)
        monkeypatch.setattr("snm.counts.forecast.WALKED_TOKENS", 1 << 12)
        monkeypatch.setattr("snm.counts.forecast.HELD_LINKS", 1 << 10)
        found = forecast(text, extractor, chosen=40, threads=3)
        assert found.links_by_type.tolist() == expected.links_by_type.tolist()
        assert (found.codes_bytes, found.events_bytes) == (expected.codes_bytes, expected.events_bytes)

    def test_a_text_without_features(self, tmp_path: Path) -> None:
        (tmp_path / "one.txt").write_text("a\n")
        text, extractor = read(tmp_path / "one.txt", "ngram(0..2)")
        few = forecast(text, extractor, chosen=1)
        assert few.rows >= 0
        assert forecast(text, extractor, prune=5, chosen=1 << extractor.layout.bucket_bits).rows > 0

    def test_the_chosen_buckets(self, random_file: Path) -> None:
        text, extractor = read(random_file, "ngram(0..3)")
        assert chosen_buckets(text, extractor, 1 << 40) == 1 << extractor.layout.bucket_bits
        assert chosen_buckets(text, extractor, 1) == 1

    def test_the_sizes_of_codes(self) -> None:
        pairs = [(0, 0), (1, 1), (19, 1), (20, 10), (100, 3), (900, 800)]
        values = np.array([f << 16 | c for f, c in pairs], np.uint32)
        for i, size in enumerate(code_sizes(np.array(pairs).T)):
            out = np.empty(5, np.uint8)
            assert event_codes.encode_values(values, np.array([i]), np.array([1]), out) == size, pairs[i]


class TestDisk:
    def test_a_training_that_does_not_fit_ends_before_counting(
        self, random_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("snm.disk.free_bytes", lambda folder: 100_000)
        begun: list[str] = []

        def progress(label: str, total: int) -> AbstractContextManager[Advance]:
            begun.append(label)
            return silent(label, total)

        for settings in (Settings(order=3, gate=0, threads=1), Settings(model="kn", order=3, threads=1)):
            with pytest.raises(
                SettingsError, match=r"needs about \d+ MB of disk at its peak, 0 MB are free: free some"
            ):
                train([random_file], tmp_path / "m", settings, progress=progress)
        assert set(begun) == {"reading", "forecasting"}
        assert not list(tmp_path.iterdir())

    def test_the_forecast_is_reported(self, random_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("snm.pipeline.MIN_EVENTS_FOR_FORECAST", 1)
        said: list[str] = []
        train([random_file], tmp_path / "m", Settings(order=3, gate=0, threads=1), notify=said.append).close()
        assert [message for message in said if "of disk at its peak" in message]

    def test_short_texts_are_not_forecast(self, random_file: Path, tmp_path: Path) -> None:
        said: list[str] = []
        train([random_file], tmp_path / "m", Settings(order=2, gate=0, threads=1), notify=said.append).close()
        assert not [message for message in said if "of disk at its peak" in message]

    def test_spilled_links_take_a_share_of_the_disk(self) -> None:
        assert spill_phases(599, 100, None, 10_000) == (0, 0)
        assert spill_phases(600, 100, None, 10_000) == (1, 600)
        assert spill_phases(2000, 100, None, 9_000) == (1, 2000)
        assert spill_phases(20_000, 100, None, 9_000) == (6, 3600)
        assert spill_phases(1000, 1000, 50, 9_000) == (1, 1000)

    def test_what_the_stages_of_an_snm_take(self, random_file: Path) -> None:
        text, extractor = read(random_file, "ngram(0..2)")
        f, settings = forecast(text, extractor), Settings(order=3)
        stages = disk.snm_stages(f, settings, disk.Spill(), True, False)
        assert stages["counting"] == stages["training"] == f.counts_bytes + f.events_bytes
        spilled = disk.snm_stages(f, settings, disk.Spill(2, 10**9), True, False)
        assert spilled["counting"] == 10**9 + stages["counting"] / 2
        assert disk.snm_stages(f, settings, disk.Spill(), True, True)["counting again"] == f.counts_bytes

    @pytest.mark.parametrize("model", ["kn", "katz", "sbo"])
    def test_what_a_backoff_model_takes(self, random_file: Path, tmp_path: Path, model: str) -> None:
        text, extractor = read(random_file, "ngram(0..2)")
        f, settings = forecast(text, extractor), Settings(model=model, order=3, min_count=1, threads=1)
        made = train([random_file], tmp_path / "m", settings)
        assert made.manifest["links"] == pytest.approx(f.links + f.words, rel=0.01)
        size = sum(entry["bytes"] for entry in made.manifest["files"].values())
        assert disk.backoff_bytes(f) == pytest.approx(size, rel=0.1)
        assert disk.backoff_stages(f, settings, disk.Spill())["writing"] == disk.backoff_bytes(f)


class TestGrowth:
    def test_heaps_law_continues(self) -> None:
        values = [np.array([1000 * n**0.6, 5.0 * n]) for n in (1, 2, 4, 8)]
        assert continued(values, 3.5) == pytest.approx([1000 * (8 * 2**3.5) ** 0.6, 5 * 8 * 2**3.5], rel=0.02)

    def test_a_text_that_repeats_itself(self) -> None:
        """Sentences drawn again and again from 1000: the number of distinct ones saturates."""
        values = [1000 * (1 - np.exp(-np.array([n]) / 1000)) for n in (25, 50, 100, 200)]
        assert continued(values, 3)[0] == pytest.approx(1000 * (1 - np.exp(-1.6)), rel=0.1)

    def test_what_does_not_exist_does_not_grow(self) -> None:
        assert continued([np.zeros(1)] * 4, 5)[0] == 0
        assert continued([np.array([7.0])] * 4, 5)[0] == 7

    def test_a_straight_line(self) -> None:
        assert straight(np.array([1.0]), np.array([3.0]), 1, 2, 10) == pytest.approx([19])
        assert straight(np.array([3.0]), np.array([3.0]), 2, 2, 10) == pytest.approx([15])
        assert straight(np.array([3.0]), np.array([2.0]), 1, 5, 100) == pytest.approx([2])


class TestSample:
    def test_a_small_text_is_taken_as_a_whole(self, random_file: Path, tmp_path: Path) -> None:
        sample = take_sample([str(random_file)], tmp_path, 1 << 26, Settings())
        assert (sample.whole, sample.ratio) == (True, 1.0)
        assert sorted(b"".join(sample.pieces).split(b"\n")) == sorted(random_file.read_bytes().split(b"\n"))

    def test_pieces_are_whole_lines_from_all_of_the_text(self, tmp_path: Path) -> None:
        lines = [f"line{i} is here" for i in range(50_000)]
        (tmp_path / "text").write_text("\n".join(lines))
        sample = take_sample([str(tmp_path / "text")], tmp_path, 1 << 17, Settings(min_count=1))
        assert sample.bytes == pytest.approx(1 << 17, rel=0.05)
        assert sample.ratio == pytest.approx((tmp_path / "text").stat().st_size / sample.bytes)
        taken = b"".join(sample.pieces).decode().split("\n")[:-1]
        assert set(taken) <= set(lines)
        quarter = [int(line.split()[0][4:]) for line in b"".join(sample.pieces[:16]).decode().split("\n")[:-1]]
        assert np.histogram(quarter, 4, (0, 50_000))[0] == pytest.approx(len(quarter) / 4, rel=0.1)

    def test_compressed_files_are_sampled_from_their_beginning(self, random_file: Path, tmp_path: Path) -> None:
        (tmp_path / "a.gz").write_bytes(gzip.compress(random_file.read_bytes() * 4))
        sample = take_sample([str(tmp_path / "a.gz")], tmp_path, 1 << 18, Settings())
        assert not sample.whole
        assert sample.text_bytes == pytest.approx(4 * random_file.stat().st_size, rel=0.35)
        whole = take_sample([str(tmp_path / "a.gz")], tmp_path, 1 << 28, Settings())
        assert (whole.whole, whole.text_bytes) == (True, 4 * random_file.stat().st_size)

    def test_one_long_line_is_cut_between_words(self, tmp_path: Path) -> None:
        (tmp_path / "long").write_text("größe " * 400_000)
        sample = take_sample([str(tmp_path / "long")], tmp_path, 1 << 18, Settings(min_count=1))
        assert set(b" ".join(sample.pieces).decode().split()) == {"größe"}

    def test_bad_text(self, tmp_path: Path) -> None:
        (tmp_path / "bad").write_bytes(b"a b\nc \xff d\n")
        with pytest.raises(InputError, match=r"in a sample of .*bad: line \d+: invalid UTF-8"):
            take_sample([str(tmp_path / "bad")], tmp_path, 1 << 20, Settings())


class TestPlan:
    @pytest.mark.parametrize("model", ["snm", "kn"])
    def test_a_plan_and_what_then_happens(self, random_file: Path, tmp_path: Path, model: str) -> None:
        settings = Settings(model=model, order=4, threads=1, gate=0)
        made = plan([str(random_file)], tmp_path, settings)
        assert not list(tmp_path.iterdir()), "nothing is left behind"
        model_made = train([random_file], tmp_path / "m", settings)
        m = model_made.manifest
        assert made.tokens == m["text"]["tokens"]
        assert made.words == m["vocabulary"]["words"]
        assert made.rows == pytest.approx(m["rows"], rel=0.05)
        assert made.links == pytest.approx(m["links"], rel=0.05)
        assert made.model_bytes == pytest.approx(sum(e["bytes"] for e in m["files"].values()), rel=0.25)
        assert made.memory <= settings.memory
        assert made.disk > made.model_bytes
        assert set(made.seconds_by_stage) >= {"reading", "counting", "writing"}

    def test_a_sample_of_a_longer_text(self, tmp_path: Path) -> None:
        path = tmp_path / "text"
        path.write_text("\n".join(random_lines(120_000, 2)) + "\n")
        settings = Settings(order=4, threads=1, gate=0, training=TrainingSettings(events=100_000))
        made = plan(path, tmp_path, settings, sample=1 << 20)
        m = train([path], tmp_path / "m", settings).manifest
        assert made.sample_bytes < made.text_bytes / 3
        assert made.tokens == pytest.approx(m["text"]["tokens"], rel=0.02)
        assert made.rows == pytest.approx(m["rows"], rel=0.25)
        assert made.links == pytest.approx(m["links"], rel=0.25)

    def test_nodes(self, random_file: Path, tmp_path: Path) -> None:
        one, four = (plan(random_file, tmp_path, Settings(order=3, gate=0, threads=1), nodes=n) for n in (1, 4))
        assert (one.tasks, one.moved_bytes) == (1, 0)
        assert four.tasks == 4
        assert four.moved_bytes > 4 * 4 * four.tokens

    def test_held_out_text_and_a_gate(self, random_file: Path, tmp_path: Path) -> None:
        made = plan(random_file, tmp_path, Settings(order=3, threads=1))
        assert {"folds", "gating"} <= set(made.seconds_by_stage)
        assert "counting again" not in made.seconds_by_stage
        made = plan(random_file, tmp_path, Settings(order=3, threads=1, folds=0))
        assert {"gating", "counting again"} <= set(made.seconds_by_stage)
        assert "folds" not in made.seconds_by_stage
        given = plan(random_file, tmp_path, Settings(order=3, threads=1), dev=random_file)
        assert "counting again" not in given.seconds_by_stage

    def test_mistakes(self, random_file: Path, tmp_path: Path) -> None:
        with pytest.raises(SettingsError, match=r"network \(rnn\) cannot be planned"):
            plan(random_file, tmp_path, Settings(model="rnn"))
        with pytest.raises(SettingsError, match="several nodes are for SNM"):
            plan(random_file, tmp_path, Settings(model="kn"), nodes=2)
        with pytest.raises(SettingsError, match="expected 1 or more"):
            plan(random_file, tmp_path, nodes=0)
        with pytest.raises(SettingsError, match=r"sample is 5; expected"):
            plan(random_file, tmp_path, sample=5)


class TestCommand:
    def run(self, *arguments: object) -> SimpleNamespace:
        found = CliRunner().invoke(main, ["plan", *map(str, arguments), "--threads", "1"])
        return SimpleNamespace(code=found.exit_code, out=found.stdout, err=found.stderr)

    def test_a_table(self, random_file: Path, tmp_path: Path) -> None:
        found = self.run(random_file, "-o", tmp_path / "model", "--order", 3, "--gate", 0, "--nodes", 2)
        assert found.code == 0, found.err
        names = [line.split("  ")[0] for line in found.out.split("\n") if line and not line.startswith(" ")]
        assert names == [
            "text", "tokens", "vocabulary", "rows", "links", "partitions", "memory", "disk", "model", "time", "nodes",
        ]  # fmt: skip
        assert not list(tmp_path.iterdir())

    def test_json(self, random_file: Path) -> None:
        found = self.run(random_file, "--model", "katz", "--order", 3, "--json")
        assert found.code == 0, found.err
        assert json.loads(found.out)["nodes"] == 1

    def test_mistakes(self, random_file: Path, tmp_path: Path) -> None:
        (tmp_path / "empty").write_text("")
        for arguments, message in (
            ((tmp_path / "missing",), "no such file"),
            ((tmp_path / "empty",), "no words"),
            (("-",), "can be read only once"),
            ((random_file, "--preset", "nonsense"), "no preset 'nonsense'"),
            ((random_file, "--model", "kn", "--gate", 3), "--gate would have no effect"),
            ((random_file, "--model", "hsme"), "cannot be planned"),
            ((random_file, "--nodes", 0), "--nodes"),
            ((random_file, "--sample", "1K"), "sample is 1,024"),
            ((random_file, "--dev", "-"), "can be read only once"),
        ):
            found = self.run(*arguments)
            assert found.code == 2
            assert message in found.err, arguments
