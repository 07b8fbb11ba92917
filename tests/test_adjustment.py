"""Training the adjustment: reproducibility, losses, early stopping, samples of events, invalid settings."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import IO

import numpy as np
import pytest

import snm
from snm.adjustment.function import Adjustment
from snm.adjustment.metafeatures import MetafeatureSet
from snm.adjustment.settings import TrainingSettings
from snm.adjustment.training import TrainingReport, train_adjustment
from snm.errors import InputError, SettingsError
from snm.scoring.model import RowModel
from snm.settings import Settings
from snm.storage import ModelWriter
from snm.text.encoding import encode_files
from tests.conftest import SMALL_SKIPS, extractor_of, random_text, train, write_bigrams


def make(path: Path, corpus: Path, dev: tuple[Path, ...] = (), threads: int = 1, **training: object) -> RowModel:
    how = TrainingSettings(**training)  # type: ignore[arg-type]
    settings = Settings(features=SMALL_SKIPS, threads=threads, training=how, gate=0)
    return train([corpus], path, settings, dev=dev)


def ppl(model: RowModel, corpus: Path) -> float:
    return model.perplexity(encode_files([corpus], model.vocabulary)).ppl


@pytest.fixture(scope="module")
def longer_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text from random bigrams, with enough events that threads run at the same time."""
    return write_bigrams(tmp_path_factory.mktemp("longer") / "train.txt", 5, 4000, 300, 4)


def test_one_thread_is_reproducible_to_the_bit(longer_file: Path, tmp_path: Path) -> None:
    first, second = (make(tmp_path / name, longer_file) for name in "ab")
    assert first.manifest["files"] == second.manifest["files"]


def test_small_texts_are_reproducible_with_threads_too(longer_file: Path, tmp_path: Path) -> None:
    assert (
        make(tmp_path / "a", longer_file).manifest["files"]
        == make(tmp_path / "b", longer_file, threads=3).manifest["files"]
    )


def test_partitions_and_memory_do_not_change_the_model(longer_file: Path, tmp_path: Path) -> None:
    models = [
        train([longer_file], tmp_path / str(i), Settings(features=SMALL_SKIPS, threads=1, **how))  # type: ignore[arg-type]
        for i, how in enumerate(({}, {"partitions": 5}, {"memory": 600 << 20}))
    ]
    assert models[0].manifest["files"] == models[1].manifest["files"] == models[2].manifest["files"]


def test_threads_agree_within_two_percent_of_perplexity(
    longer_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("snm.pipeline.MIN_EVENTS_FOR_THREADS", 0)
    one, three = (make(tmp_path / str(n), longer_file, threads=n) for n in (1, 3))
    assert ppl(three, longer_file) == pytest.approx(ppl(one, longer_file), rel=0.02)
    for name in ("starts",):
        assert one.manifest["files"][f"{name}.npy"] == three.manifest["files"][f"{name}.npy"]


def test_annotations_on_disk_give_the_same_model(longer_file: Path, tmp_path: Path) -> None:
    """The counts of events take 4 bytes a feature; if they do not fit into memory, they are on disk, coded."""
    spec = "snm10-skip"
    small = Settings(features=spec, threads=1, memory=512 << 20, folds=0)
    assert small.memory > 4000 * 12 * 65 * 8  # about 25 MB: in memory by default
    models = [train([longer_file], tmp_path / "memory", small)]
    with pytest.MonkeyPatch.context() as patch:
        asked: list[IO[bytes]] = []
        temporary_file = ModelWriter.temporary_file

        def noted(self: ModelWriter) -> IO[bytes]:
            asked.append(temporary_file(self))
            return asked[-1]

        patch.setattr(ModelWriter, "temporary_file", noted)
        patch.setattr("snm.engines.cpu.EVENTS_SHARE", 0.01)
        models.append(train([longer_file], tmp_path / "disk", small))
    assert len(asked) == 1
    assert models[0].manifest["files"] == models[1].manifest["files"]


@pytest.mark.parametrize("loss", ["leave-one-out", "poisson", "multinomial"])
@pytest.mark.parametrize("optimiser", ["adagrad", "sgd"])
def test_every_loss_improves_on_relative_frequencies(
    loss: str, optimiser: str, longer_file: Path, tmp_path: Path
) -> None:
    lines = longer_file.read_text().split("\n")
    text, held_out = tmp_path / "text", tmp_path / "held-out"
    text.write_text("\n".join(lines[:3600]))
    held_out.write_text("\n".join(lines[3600:]))
    plain = make(tmp_path / "plain", text, passes=0)
    rate = {"multinomial": {"sgd": 1e-5}.get(optimiser)}.get(loss)
    if loss == "poisson":  # fits the training text itself, so it is measured there
        trained = make(tmp_path / "m", text, loss=loss, optimiser=optimiser)
        assert ppl(trained, text) < ppl(plain, text)
        return
    dev = (held_out,) if loss == "multinomial" else ()
    trained = make(tmp_path / "m", text, dev, loss=loss, optimiser=optimiser, rate=rate, batch=512)
    assert ppl(trained, held_out) < ppl(plain, held_out)


def test_multinomial_holds_out_a_slice_without_dev_text(longer_file: Path, tmp_path: Path) -> None:
    said: list[str] = []
    settings = Settings(threads=1, training=TrainingSettings(loss="multinomial"))
    train([longer_file], tmp_path / "m", settings, notify=said.append)
    assert any("held out" in message for message in said)


def test_training_stops_when_held_out_perplexity_rises(longer_file: Path, tmp_path: Path) -> None:
    lines = longer_file.read_text().split("\n")
    text, dev = tmp_path / "text", tmp_path / "dev"
    text.write_text("\n".join(lines[:3000]))
    dev.write_text("\n".join(lines[3000:]))
    model = make(tmp_path / "m", text, (dev,), passes=30, rate=0.3)
    figures = model.manifest["training"]
    seen = figures["dev_perplexities"]
    assert len(figures["losses"]) < 30, "it stopped"
    assert seen[-1] > min(seen)
    assert figures["best_pass"] == int(np.argmin(seen))
    assert ppl(model, dev) == pytest.approx(min(seen), rel=1e-3), "the best weights were kept"


def test_the_weights_before_a_worse_pass_are_restored(longer_file: Path, tmp_path: Path) -> None:
    model = make(tmp_path / "m", longer_file, (longer_file,), passes=2, rate=5.0)
    figures = model.manifest["training"]
    assert figures["best_pass"] == 0
    assert figures["dev_perplexities"][1] > figures["dev_perplexities"][0]
    assert ppl(model, longer_file) == pytest.approx(ppl(make(tmp_path / "plain", longer_file, passes=0), longer_file))


@pytest.mark.parametrize(("optimiser", "rate"), [("sgd", 1e3), ("adagrad", 1e38)])
def test_a_diverging_run_writes_no_model(longer_file: Path, tmp_path: Path, optimiser: str, rate: float) -> None:
    """With one pass, an error; with several and held-out text, the weights before the diverging pass are kept."""
    with pytest.raises(SettingsError, match="diverged"):
        make(tmp_path / "m", longer_file, optimiser=optimiser, rate=rate)
    assert not (tmp_path / "m").exists()
    kept = make(tmp_path / "k", longer_file, (longer_file,), passes=2, optimiser=optimiser, rate=rate)
    assert kept.manifest["training"]["best_pass"] == 0


def test_a_sample_of_events(longer_file: Path, tmp_path: Path) -> None:
    sampled = make(tmp_path / "m", longer_file, events=2000, metafeatures=MetafeatureSet.parse("all, -feature"))
    assert sampled.manifest["training"]["events"] == 2000
    plain = make(tmp_path / "plain", longer_file, passes=0)
    assert ppl(sampled, longer_file) != ppl(plain, longer_file)
    assert sampled.manifest["links"] == plain.manifest["links"], "counts are of the whole text"


def test_a_tiny_table_collides_and_still_sums_to_one(corpus_file: Path, tmp_path: Path) -> None:
    model = make(tmp_path / "m", corpus_file, slots=8)
    assert model.manifest["training"]["slots"] == 8
    assert model.distribution(model.context("the cat")).sum() == pytest.approx(1)


def test_a_vocabulary_file(corpus_file: Path, tmp_path: Path) -> None:
    words = tmp_path / "words"
    words.write_text("cat\nthe\nunicorn\n")
    model = train([corpus_file], tmp_path / "m", Settings(vocab=words, threads=1))
    assert model.vocabulary.words == ("<S>", "</S>", "<UNK>", "cat", "the", "unicorn")
    assert dict(model.next_words("the", k=5))["unicorn"] > 0, "never seen, still possible"


def test_unk_is_possible_where_the_text_has_none(corpus_file: Path, tmp_path: Path) -> None:
    model = train([corpus_file], tmp_path / "m", Settings(min_count=1, threads=1))
    assert model.manifest["text"]["oov"] == 0
    assert 0 < model.distribution(model.context("the"))[model.vocabulary.unknown] < 0.01


@pytest.mark.parametrize("text", ["word", "one\n\n\ntwo", "a a a a a a a a"])
@pytest.mark.parametrize("preset", ["snm5", "snm10-skip"])
def test_the_smallest_texts(text: str, preset: str, tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_text(text)
    model = train([path], tmp_path / "m", Settings(features=preset, min_count=1, threads=2))
    assert model.distribution(model.context(text.split()[0])).sum() == pytest.approx(1)
    assert np.isfinite(model.score("one two three"))


def test_one_sentence_cannot_be_held_out(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_text("one sentence")
    with pytest.raises(InputError, match="--dev"):
        train([path], tmp_path / "m", Settings(training=TrainingSettings(loss="multinomial")))


def test_empty_held_out_text_is_refused(corpus_file: Path, tmp_path: Path) -> None:
    path = tmp_path / "empty"
    path.write_text("\n")
    with pytest.raises(InputError, match="held-out"):
        make(tmp_path / "m", corpus_file, (path,))
    assert not (tmp_path / "m").exists()


def test_settings_that_exclude_each_other(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="exclude each other"):
        Settings(vocab=tmp_path, max_words=3)
    with pytest.raises(SettingsError, match="memory"):
        Settings(memory=5)


def test_zero_passes_keep_the_initial_weights() -> None:
    text = random_text(1)
    extractor = extractor_of("ngram(0..1)", text, 14)
    settings = TrainingSettings(passes=0)
    adjustment = Adjustment(extractor, settings, 64)
    assert train_adjustment(adjustment, settings, None, None, None) == TrainingReport()
    assert not adjustment.table[:, 0].any()


def test_the_public_names_exist() -> None:
    for name in snm.__all__:
        assert getattr(snm, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = snm.nonsense


def test_too_small_a_disk_is_reported_early(longer_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr("snm.disk.shutil.disk_usage", lambda path: usage._replace(free=1000))
    with pytest.raises(SettingsError, match="of disk at its peak"):
        make(tmp_path / "m", longer_file)
    assert not list(tmp_path.iterdir()), "nothing is left behind"


def test_training_can_use_fewer_events(longer_file: Path, tmp_path: Path) -> None:
    said: list[str] = []
    training = TrainingSettings(events=10_000)
    settings = Settings(order=5, threads=1, gate=0, training=training)
    made = train([longer_file], tmp_path / "m", settings, notify=said.append)
    assert any("drawn by sentence" in message for message in said)
    used = made.manifest["training"]["events_used"]
    assert used == pytest.approx(10_000, rel=0.01)
    assert used < made.manifest["text"]["tokens"]


def test_a_lost_update_of_an_exchange_loses_no_sum_of_squares() -> None:
    """Two threads exchange at the same time: one overwrites what the other added."""
    from snm.kernels.fast_training import exchange
    from snm.layouts.weights import PrivateWeights

    table = np.array([[0.5, 1.0], [0.7, 5e37]], np.float32)  # a shared weight, and the thread's private one
    own = PrivateWeights(np.int64(1), np.array([0]), np.array([0]), np.array([[0.5, 5e37]], np.float32))
    exchange(table, own)
    assert table.tolist() == pytest.approx(np.array([[0.7, 5e37], [0.7, 5e37]]))
    table[0] = 1.0, 2e38  # another thread has exchanged
    exchange(table, own)
    assert table[0].tolist() == pytest.approx([1.0, 2e38])
    assert own.before.tolist() == table[:1].tolist()
