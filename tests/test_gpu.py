"""The GPU engine against the kernels and the reference: on the CPU device everywhere, on a GPU where there is one."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import snm
from snm import pipeline
from snm.adjustment.function import Adjustment, AdjustmentFunction
from snm.adjustment.metafeatures import MetafeatureSet
from snm.adjustment.settings import TrainingSettings
from snm.counts.counting import Counter, unigram_counts
from snm.devices import device_of, find_gpu, has_gpu
from snm.engines import make
from snm.errors import MissingExtra, SettingsError
from snm.features.extraction import Extractor
from snm.features.families import feature_family
from snm.gate.fitting import GateEvents, fit
from snm.kernels.adjustment import GROUP_EVENTS
from snm.kernels.counts import pack_count, unpack_count
from snm.layouts.counts import Counts
from snm.layouts.matrix import ARRAYS
from snm.layouts.tokens import BEGIN
from snm.matrix.reading import open_matrix
from snm.matrix.writing import MatrixWriter
from snm.settings import Settings
from snm.storage import ModelWriter
from snm.text.encoding import Text, encode_files
from snm.text.sampling import draw_sentences, sample_sentences
from snm.text.vocabulary import Vocabulary
from tests.conftest import (
    SMALL_SKIPS,
    entry_of,
    extractor_of,
    parts_of,
    random_text,
    store_of,
    text_of,
    train,
    write_bigrams,
)
from tests.test_cli import fails
from tests.test_parity import METAFEATURES, WORDS, all_counts, annotated, reference_counts
from tests.test_parity import key as reference_key

torch = pytest.importorskip("torch")
if not has_gpu():
    os.environ["TRITON_INTERPRET"] = "1"  # Triton kernels run in Python; must be set before they are imported

from snm.engines.gpu import GpuEngine  # noqa: E402
from snm.tensors import counts as counting  # noqa: E402
from snm.tensors import events as tensor_events  # noqa: E402
from snm.tensors import packing, steps  # noqa: E402
from snm.tensors.adjustment import TensorAdjustment  # noqa: E402
from snm.tensors.counts import TensorCounter  # noqa: E402
from snm.tensors.events import TensorEvents  # noqa: E402
from snm.tensors.features import TokenBlocks  # noqa: E402
from snm.tensors.gate import TensorGateTrainer  # noqa: E402
from snm.tensors.matrix import TensorMatrixWriter  # noqa: E402

CLASS_SPEC = "ngram(0..2) + class(r=1..3, a=0..1) + class(r=1, s=1..3, a=0, tied) + skip(r=1, s=1, a=0)"
CLASSES = np.array([0, 1, 2, *(3 + i % 3 for i in range(WORDS - 3))], np.uint16)


@pytest.fixture(params=["cpu", "cuda"])
def device(request: pytest.FixtureRequest) -> Any:
    if request.param == "cuda" and not torch.cuda.is_available():
        if os.environ.get("SNM_TEST_GPU"):
            pytest.fail("PyTorch finds no GPU")
        pytest.skip("needs a GPU")
    return torch.device(request.param)


@pytest.fixture
def with_triton(device: Any) -> Any:
    """A device on which Triton kernels can run; on a CPU they are interpreted."""
    pytest.importorskip("triton", reason="needs Triton")
    if device.type == "cpu" and has_gpu():
        pytest.skip("where a GPU is, Triton's kernels are compiled for it")
    return device


def joined(parts: list[Counts]) -> tuple[np.ndarray, ...]:
    """Features, totals, lengths of rows, targets and counts of parts put end to end."""
    lengths = [np.diff(part.offsets) for part in parts]
    names = ("features", "feature_counts", "targets", "link_counts")
    return (*(np.concatenate([getattr(part, name) for part in parts]) for name in names), np.concatenate(lengths))


def annotated_on(device: Any, text: Text, extractor: Extractor, chosen: np.ndarray | None = None) -> TensorEvents:
    blocks = TokenBlocks(text.tokens, extractor, device)
    events = TensorEvents(blocks, unigram_counts(text, extractor), chosen)
    for _ in TensorCounter(blocks, 1 << 30, 3, events=events):
        pass
    return events


class TestCounting:
    @pytest.mark.parametrize("spec", [SMALL_SKIPS, "snm5-skip-only", "snm10-skip", CLASS_SPEC])
    def test_keys_and_counts_equal_those_of_the_kernels(self, device: Any, spec: str) -> None:
        text = random_text(3, 100, WORDS - 2, 30)
        extractor = extractor_of(spec, text, WORDS, classes=CLASSES if spec == CLASS_SPEC else None)
        blocks = TokenBlocks(text.tokens, extractor, device)
        blocks.block = 777
        for start, stop in blocks.blocks():
            found = blocks.keys(start, stop).cpu().numpy().view(np.uint64)
            assert np.array_equal(found, extractor.keys(text.tokens, start, stop))
        for partitions, prune in ((1, 1), (3, 2)):
            expected = parts_of(Counter(text, extractor, 1 << 30, prune=prune))
            counter = TensorCounter(blocks, 1 << 30, partitions, prune=prune)
            made = parts_of(counter)
            assert counter.done == pytest.approx(1)
            assert counter.links == Counter(text, extractor, 1 << 30).links
            for one, other in zip(joined(expected), joined(made), strict=True):
                assert np.array_equal(one, other)
                assert one.dtype == other.dtype

    @pytest.mark.parametrize("spec", [SMALL_SKIPS, CLASS_SPEC])
    def test_triton_keys_equal_those_of_the_kernels(self, with_triton: Any, spec: str) -> None:
        text = random_text(3, 20, WORDS - 2, 30)
        extractor = extractor_of(spec, text, WORDS, classes=CLASSES if spec == CLASS_SPEC else None)
        blocks = TokenBlocks(text.tokens, extractor, with_triton)
        blocks.block, blocks.triton = 150, True
        for start, stop in blocks.blocks():
            found = blocks.keys(start, stop).cpu().numpy().view(np.uint64)
            assert np.array_equal(found, extractor.keys(text.tokens, start, stop))

    @pytest.mark.parametrize("some", [False, True])
    def test_triton_links_equal_those_of_pytorch(self, with_triton: Any, some: bool) -> None:
        text = random_text(3, 20, WORDS - 2, 30)
        extractor = extractor_of(SMALL_SKIPS, text, WORDS)
        chosen = np.isin(np.cumsum(text.tokens == BEGIN), (2, 3, 11)) if some else None
        made = []
        for triton in (False, True):
            blocks = TokenBlocks(text.tokens, extractor, with_triton)
            blocks.block, blocks.triton = 150, triton
            events = TensorEvents(blocks, unigram_counts(text, extractor), chosen)
            counter = TensorCounter(blocks, 1 << 30, 2, events=events)
            made.append((counter.bucket_sizes, *joined(parts_of(counter)), events.values[:-1].cpu().numpy()))
        assert np.count_nonzero(made[0][-1]) > 0
        for one, other in zip(*made, strict=True):
            assert np.array_equal(one, other)

    def test_counts_equal_the_reference(self, device: Any) -> None:
        text = random_text(4)
        extractor = extractor_of(SMALL_SKIPS, text, WORDS)
        expected = {
            (reference_key(extractor, feature), target): n
            for feature, row in reference_counts(text, extractor).items()
            for target, n in row.items()
            if feature[1]
        }
        features, _, targets, counts, lengths = joined(
            parts_of(TensorCounter(TokenBlocks(text.tokens, extractor, device), 1 << 30, 2))
        )
        pairs = zip(np.repeat(features, lengths).tolist(), targets.tolist(), strict=True)
        assert dict(zip(pairs, counts.tolist(), strict=True)) == expected

    def test_the_memory_limit_chooses_the_partitions(self) -> None:
        text = random_text(3, 200, WORDS - 2, 30)
        blocks = TokenBlocks(text.tokens, extractor_of("snm5", text, 1 << 14), torch.device("cpu"))
        assert len(TensorCounter(blocks, 1 << 30).ranges) == 1
        little = TensorCounter(blocks, 200_000)
        assert len(little.ranges) > 2
        assert all(
            little.bucket_sizes[a:b].sum() * counting.BYTES_PER_LINK <= 200_000 or b - a == 1 for a, b in little.ranges
        )

    def test_parts_are_cut_between_buckets(self, device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        text = random_text(3, 200, WORDS - 2, 30)
        blocks = TokenBlocks(text.tokens, extractor_of("snm5", text, 1 << 14), device)
        whole = joined(parts_of(TensorCounter(blocks, 1 << 30)))
        monkeypatch.setattr(counting, "LINKS_PER_PART", 100)
        parts = parts_of(TensorCounter(blocks, 1 << 30))
        assert len(parts) > 10
        assert all(part.offsets[0] == 0 and part.offsets[-1] == len(part.targets) for part in parts)
        assert all(np.array_equal(a, b) for a, b in zip(whole, joined(parts), strict=True))

    @pytest.mark.parametrize("spec", [SMALL_SKIPS, "snm10-skip"])
    def test_annotations_equal_those_of_the_kernels(self, device: Any, spec: str) -> None:
        text = random_text(3, 200, WORDS - 2, 30)
        extractor = extractor_of(spec, text, WORDS)
        expected = annotated(text, extractor)
        events = annotated_on(device, text, extractor)
        values = expected.values()
        found = events.values[:-1].cpu().numpy().view(np.uint32).reshape(values.shape)
        assert np.array_equal(found, values)
        assert events.mean_features(True) == pytest.approx(expected.mean_features(True))
        assert len(events) == len(expected)

    def test_annotations_of_sampled_sentences_equal_those_of_the_kernels(self, device: Any) -> None:
        text = random_text(3, 200, WORDS - 2, 30)
        extractor = extractor_of(SMALL_SKIPS, text, WORDS)
        sample = sample_sentences(text, 500, 1)
        chosen = np.concatenate([drawn for _, drawn in draw_sentences(text, 500, 1)])
        events = annotated_on(device, text, extractor, chosen)
        assert np.array_equal(events.tokens.host_tokens, sample.tokens)
        values = annotated(text, extractor).values()[chosen]
        assert np.array_equal(events.values[:-1].cpu().numpy().view(np.uint32).reshape(values.shape), values)

    def test_packed_counts_equal_those_of_the_kernels(self) -> None:
        numbers = [*range(1, 9000), *(2**k + d for k in range(14, 32) for d in (-1, 0, 1, 12345) if 2**k + d < 2**32)]
        packed = packing.pack_count(torch.tensor(numbers))
        assert packed.tolist() == [int(entry_of(pack_count)(np.uint32(n))) for n in numbers]
        unpacked = packing.unpack_count(packed)
        assert unpacked.tolist() == [int(entry_of(unpack_count)(np.uint32(p))) for p in packed.tolist()]


def adjustments(
    extractor: Extractor, settings: TrainingSettings, device: Any, slots: int = 1 << 20
) -> tuple[Adjustment, TensorAdjustment]:
    """The same adjustment function, with random weights, for the kernels and on a device."""
    one, other = Adjustment(extractor, settings, slots), TensorAdjustment(extractor, settings, slots, device)
    one.start = other.start = -0.7
    one.table[:, 0] = np.random.default_rng(0).normal(0, 0.1, slots)
    other.restore(torch.from_numpy(one.weights()).to(device))
    return one, other


NAMES = [f"{len(m.masks())}masks-{m.link_buckets}" for m in METAFEATURES]


class TestTraining:
    @pytest.mark.parametrize("loss", ["leave-one-out", "poisson"])
    @pytest.mark.parametrize("metafeatures", METAFEATURES, ids=NAMES)
    def test_steps_of_a_group_equal_those_of_the_kernels(
        self, device: Any, metafeatures: MetafeatureSet, loss: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """With batches as large as the kernels' groups, SGD takes the same steps."""
        monkeypatch.setattr(tensor_events, "MIN_BATCH", GROUP_EVENTS)
        monkeypatch.setattr(tensor_events, "BATCH_SHARE", 1 << 40)
        text = random_text(5, 5)
        assert len(text.tokens) > 3 * GROUP_EVENTS
        extractor = extractor_of(SMALL_SKIPS, text, WORDS)
        settings = TrainingSettings(metafeatures=metafeatures, loss=loss, optimiser="sgd", rate=0.02)
        one, other = adjustments(extractor, settings, device, 1 << 22)  # few fall onto one: copies would be two
        before = one.weights()
        losses = (
            annotated(text, extractor).train(one, settings, 1, lambda n: None),
            annotated_on(device, text, extractor).train(other, settings, 1, lambda n: None),
        )
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)
        moved = one.weights() - before
        assert np.abs(moved).max() > 0.01
        assert np.abs(other.weights().cpu().numpy() - before - moved).max() < 3e-6

    def test_a_batch_takes_one_adagrad_step_by_its_summed_gradient(self, device: Any) -> None:
        text = random_text(6)
        extractor = extractor_of(SMALL_SKIPS, text, WORDS)
        events = annotated_on(device, text, extractor)

        def taken(optimiser: str, rate: float, sizes: list[int]) -> tuple[Any, Any]:
            """The decrease of each weight, and the table."""
            settings = TrainingSettings(optimiser=optimiser, metafeatures=MetafeatureSet.parse("all"))
            _, adjustment = adjustments(extractor, settings, device)
            before = adjustment.weights()
            stepper = steps.stepper_for(adjustment, True, rate)
            stepper.take(events.prepare(adjustment, True, 0, len(events)), sizes)
            return before - adjustment.table[:, 0], adjustment.table

        n = len(events)
        gradient, _ = taken("sgd", 1.0, [n])
        moved, table = taken("adagrad", 0.1, [n])
        assert float(gradient.abs().max()) > 1
        assert torch.allclose(moved, 0.1 * gradient / torch.sqrt(table[:, 1]), atol=1e-5)
        _, alone = taken("adagrad", 1e-12, [1] * n)
        assert float(alone[:, 1].max()) > 2
        assert torch.allclose(table[:, 1], alone[:, 1], rtol=1e-3), "squares of the gradients of links, batched or not"

    @pytest.mark.parametrize("optimiser", ["adagrad", "sgd"])
    @pytest.mark.parametrize("loss", ["leave-one-out", "poisson"])
    @pytest.mark.parametrize("buckets", [("single", "half"), ("single", "double"), ("double", "double")])
    def test_triton_steps_equal_those_of_pytorch(
        self, with_triton: Any, buckets: tuple[str, str], loss: str, optimiser: str
    ) -> None:
        from snm.tensors.triton_adjustment import TritonStepper

        text = random_text(7, 8)
        extractor = extractor_of(SMALL_SKIPS, text, WORDS)
        metafeatures = MetafeatureSet.parse(
            "lean, target, feature-count+link-count", feature_buckets=buckets[0], link_buckets=buckets[1]
        )
        settings = TrainingSettings(metafeatures=metafeatures, loss=loss, optimiser=optimiser)
        events = annotated_on(with_triton, text, extractor)
        made: list[tuple[Any, float]] = []
        for kind in (steps.PlainStepper, TritonStepper):
            _, adjustment = adjustments(extractor, settings, with_triton)
            stepper = kind(adjustment, loss == "leave-one-out", 0.001 if optimiser == "sgd" else 0.1)
            prepared = events.prepare(adjustment, loss == "leave-one-out", 0, len(events))
            stepper.take(prepared, [1, 20, len(events) - 21])
            made.append((adjustment.table, stepper.loss()))
        (plain, loss_1), (triton, loss_2) = made
        assert loss_1 == pytest.approx(loss_2, rel=1e-5)
        assert torch.allclose(plain, triton, rtol=1e-4, atol=1e-5)

    def test_batches_grow_with_the_events_seen(self) -> None:
        ranges = list(tensor_events._schedule(10_000_000, 8192))
        assert [start for start, _, _ in ranges] == [0, *(stop for _, stop, _ in ranges[:-1])]
        assert ranges[-1][1] == 10_000_000
        assert all(sum(sizes) == stop - start for start, stop, sizes in ranges)
        sizes = [size for _, _, sizes in ranges for size in sizes]
        assert sizes[0] == tensor_events.MIN_BATCH
        assert max(sizes) == 8192
        assert sizes[:-1] == sorted(sizes[:-1])


class TestRows:
    @pytest.mark.parametrize("loss", ["leave-one-out", "poisson"])
    @pytest.mark.parametrize("metafeatures", METAFEATURES, ids=NAMES)
    def test_weights_equal_those_of_the_kernels(self, device: Any, metafeatures: MetafeatureSet, loss: str) -> None:
        text = random_text(5)
        extractor = extractor_of(SMALL_SKIPS, text, WORDS)
        settings = TrainingSettings(metafeatures=metafeatures, loss=loss)
        one, other = adjustments(extractor, settings, device)
        assert other.singles() == pytest.approx(one.singles(), rel=1e-6)
        counts = all_counts(text, extractor)
        for expected, found in zip(one.weigh(counts), other.weigh(counts), strict=True):
            assert np.allclose(found, expected, rtol=1e-6, atol=0)

    @pytest.mark.parametrize("loss", ["leave-one-out", "poisson"])
    @pytest.mark.parametrize(("words", "bits"), [(200, 8), (40_000, 8), (40_000, 16), (70_000, 8), (70_000, 16)])
    def test_pages_equal_those_of_the_kernels(
        self, device: Any, words: int, bits: int, loss: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """All kinds of rows: inline, short, summed, long, wide; parts end anywhere."""
        random = np.random.default_rng(2)
        often = [[words - 2, 5, 6, words - 1, 9]] * 30
        text = text_of([*random.integers(3, words, (300, 20)).tolist(), *often])
        extractor = extractor_of(SMALL_SKIPS, text, words)
        monkeypatch.setattr("snm.matrix.writing.PAGES_PER_BATCH", 100)
        made = []
        one, other = adjustments(extractor, TrainingSettings(loss=loss), device, 1 << 16)
        adjustment: AdjustmentFunction
        for kind, adjustment, together in ((MatrixWriter, one, 1 << 21), (TensorMatrixWriter, other, 500)):
            with ModelWriter(tmp_path / kind.__name__) as writer:
                counts = store_of(text, extractor, tmp_path / f"counts of {kind.__name__}")
                unigrams = unigram_counts(text, extractor)
                how = kind(writer, extractor, adjustment, 1, together).write(
                    unigrams, counts, bits // 8, lambda n: None
                )
                writer.close()
                pages = open_matrix(writer.load, how, extractor)
                made.append((how, {name: np.array(getattr(pages, name)) for name in ARRAYS}))
        (expected_how, expected), (how, found) = made
        assert how == expected_how
        assert len(found["long_links"]) > 100
        for name in ARRAYS:
            if expected[name].dtype.kind == "f":
                assert np.allclose(found[name], expected[name], rtol=1e-5, atol=0)
            else:
                assert found[name].shape == expected[name].shape
                # a weight between two codes may be rounded to either
                assert np.count_nonzero(found[name] != expected[name]) < 1e-3 * found[name].size + 1

    def test_the_gate_equals_that_of_numpy(self, device: Any) -> None:
        random = np.random.default_rng(3)
        n, slots = 3000, 4
        sums = random.random((n, slots)).astype(np.float32) * (random.random((n, slots)) < 0.7)
        sums[:, 0] = 1
        weights = (sums * random.random((n, slots))).astype(np.float32)
        events = GateEvents(
            random.integers(0, 80, (n, slots)).astype(np.uint8), np.ones((n, slots), np.float32), sums, weights
        )
        expected, report = fit(events, 8)
        found, other = fit(events, 8, trainer=lambda flat: TensorGateTrainer(flat, events, device))
        assert report.helps
        assert other.ungated == pytest.approx(report.ungated, rel=1e-5)
        assert other.perplexities == pytest.approx(report.perplexities, rel=1e-3)
        assert found == pytest.approx(expected, abs=0.02)


@pytest.fixture
def on_device(device: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`engine="gpu"` means this device."""
    monkeypatch.setattr("snm.devices.find_gpu", lambda: device)
    return device


@pytest.fixture(scope="module")
def bigrams(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("bigrams")
    return write_bigrams(folder / "train.txt", 1, 1500, 100, 6), write_bigrams(folder / "test.txt", 2, 300, 100, 6)


@feature_family("before_last", span=2)
def before_last(vocabulary: Vocabulary) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    def keys(tokens: np.ndarray, position: np.ndarray) -> np.ndarray:
        made = np.zeros((1, len(tokens)), np.uint64)
        made[0, 2:] = np.where(position[2:] > 1, tokens[:-2].astype(np.uint64) + np.uint64(1), np.uint64(0))
        return made

    return keys


class TestPipeline:
    @pytest.mark.parametrize(
        "settings",
        [
            Settings(features="snm5", threads=1),
            Settings(order=1, threads=1, gate=0),  # a gate over one row changes nothing
            Settings(features=SMALL_SKIPS, threads=1, partitions=3, weight_bits=16),
            Settings(features="snm3", threads=1, training=TrainingSettings(passes=3, events=8_000), prune=1),
            Settings(features="snm3", threads=1, training=TrainingSettings(loss="poisson", optimiser="sgd")),
            Settings(features="snm3", threads=1, training=TrainingSettings(loss="multinomial")),
            Settings(features="small", threads=1, classes=8, closed=True),
        ],
        ids=["snm5", "unigrams", "skips", "passes", "sgd", "multinomial", "small"],
    )
    def test_models_of_both_engines_agree(
        self, on_device: Any, settings: Settings, bigrams: tuple[Path, Path], tmp_path: Path
    ) -> None:
        found = {}
        for engine in ("cpu", "gpu"):
            model = train(bigrams[0], tmp_path / engine, replace(settings, engine=engine), dev=bigrams[1])
            found[engine] = model, model.perplexity(encode_files(bigrams[1], model.vocabulary)).ppl
        (cpu, expected), (gpu, ppl) = found["cpu"], found["gpu"]
        assert ppl == pytest.approx(expected, rel=0.005)
        assert {k: cpu.manifest[k] for k in ("rows", "links")} == {k: gpu.manifest[k] for k in ("rows", "links")}
        assert cpu.manifest.keys() == gpu.manifest.keys()
        assert [m.manifest["training"]["engine"] for m in (cpu, gpu)] == ["cpu", "gpu"]
        assert gpu.manifest["files"].keys() == cpu.manifest["files"].keys()

    def test_backoff_models_of_both_engines_are_the_same_bytes(
        self, on_device: Any, bigrams: tuple[Path, Path], tmp_path: Path
    ) -> None:
        files = [
            train(bigrams[0], tmp_path / engine, Settings(model="kn", threads=1, engine=engine)).manifest["files"]
            for engine in ("cpu", "gpu")
        ]
        assert files[0] == files[1]

    def test_families_of_features(self, on_device: Any, bigrams: tuple[Path, Path], tmp_path: Path) -> None:
        settings = Settings(features="ngram(0..2) + family(before_last)", threads=1)
        cpu, gpu = (train(bigrams[0], tmp_path / e, replace(settings, engine=e)) for e in ("cpu", "gpu"))
        assert cpu.manifest["links"] == gpu.manifest["links"]

    def test_events_are_sampled_to_fit_the_card(
        self, on_device: Any, bigrams: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(GpuEngine, "_memory", lambda self: (1 << 22, 1 << 18))
        said: list[str] = []
        settings = Settings(features="snm5", threads=1, engine="gpu")
        pipeline.train(bigrams[0], tmp_path / "m", settings, notify=said.append)
        assert any("learned from about 6,553 tokens drawn by sentence" in line for line in said)

    def test_running_out_of_gpu_memory_is_a_one_line_error(
        self, on_device: Any, bigrams: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(*arguments: Any) -> None:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 6.48 GiB")

        monkeypatch.setattr(TensorCounter, "count", full)
        settings = Settings(features="snm3", threads=1, engine="gpu")
        with pytest.raises(SettingsError, match="the GPU's memory is used up; take more --partitions"):
            pipeline.train(bigrams[0], tmp_path / "m", settings)
        assert not list(tmp_path.iterdir())


class TestChoice:
    def test_a_missing_gpu_is_a_one_line_error(
        self, corpus_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        line = fails("train", corpus_file, "-o", tmp_path / "m", "--engine", "gpu")
        assert "engine gpu: PyTorch finds no GPU here; take --engine cpu, or leave it out" in line
        monkeypatch.setattr("snm.devices.find_spec", lambda name: None)
        with pytest.raises(MissingExtra, match="the GPU engine"):
            find_gpu()
        with pytest.raises(SettingsError, match="engine 'tpu' is not known; expected one of auto, cpu, gpu"):
            Settings(engine="tpu")

    @pytest.mark.parametrize(
        ("engine", "tokens", "there", "name"),
        [
            ("auto", 10**9, True, "gpu"),
            ("auto", 10**9, False, "cpu"),
            ("auto", 1000, True, "cpu"),
            ("cpu", 10**9, True, "cpu"),
            ("gpu", 1000, True, "gpu"),
        ],
    )
    def test_auto_chooses_an_engine(
        self, engine: str, tokens: int, there: bool, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("snm.devices.has_gpu", lambda: there)
        monkeypatch.setattr("snm.devices.find_gpu", lambda: torch.device("cpu"))
        made: Any = make(Settings(engine=engine), tokens, snm.progress.silent, lambda message: None)
        assert made.name == name
        assert device_of(engine) == "cpu"

    def test_has_gpu_is_what_pytorch_reports(self, monkeypatch: pytest.MonkeyPatch) -> None:
        library: Callable[[str], object] = lambda name: object()  # noqa: E731
        monkeypatch.setattr("ctypes.CDLL", library)
        for there in (True, False):
            monkeypatch.setattr(torch.cuda, "is_available", lambda there=there: there)
            assert has_gpu() is there
