"""Neural models: the tests of every language model, trees, NumPy against PyTorch, checkpoints, errors."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import snm
from snm.baselines.neural.checkpoints import checkpoint_folder
from snm.baselines.neural.classes import WordClasses
from snm.baselines.neural.model import NeuralModel
from snm.baselines.neural.settings import NetworkSettings
from snm.baselines.neural.training import make_network
from snm.baselines.neural.tree import Tree
from snm.errors import FormatError, MissingExtra, SettingsError
from snm.evaluation import verify
from snm.kernels import tree as tree_kernels
from snm.layouts.tokens import BEGIN, UNKNOWN
from snm.model import LanguageModel
from snm.pipeline import train
from snm.progress import Advance
from snm.settings import Settings
from snm.storage import sealed
from snm.text.encoding import encode_files, encode_lines
from tests.conftest import random_text, vocabulary_of
from tests.test_cli import fails, ok
from tests.test_model import LanguageModelTests

torch = pytest.importorskip("torch")

SMALL = NetworkSettings(hidden=12, passes=4, rate=0.02, batch=128, dropout=0.1, slots=1 << 14)
FAMILIES = {
    "hsme": Settings(model="hsme", network=replace(SMALL, rate=0.5, batch=64), threads=1, engine="cpu"),
    "rnn": Settings(model="rnn", order=4, network=SMALL, threads=1, engine="cpu"),
    "lstm": Settings(model="rnn", network=replace(SMALL, cell="lstm", slots=None), threads=1, engine="cpu"),
    "lstm over classes": Settings(
        model="rnn", network=replace(SMALL, cell="lstm", softmax="classes", slots=None), threads=1, engine="cpu"
    ),
    "lstm below a tree": Settings(
        model="rnn", network=replace(SMALL, cell="lstm", softmax="tree"), threads=1, engine="cpu"
    ),
}


CLOSED = "rnn", "lstm", "lstm over classes"


@pytest.fixture(scope="module")
def models(corpus_file: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("neural")
    wanted = {**FAMILIES, **{f"closed {name}": replace(FAMILIES[name], closed=True) for name in CLOSED}}
    for name, settings in wanted.items():
        with pytest.MonkeyPatch.context() as patch:
            if "classes" in name:  # of few words, several are in a class only if the classes are few
                patch.setattr("snm.baselines.neural.training.CLASSES", 6)
                for module in ("classes", "two_level"):
                    patch.setattr(f"snm.baselines.neural.{module}.SIZES", (2, 3))
            train(corpus_file, folder / name, settings)
    return {path.name: path for path in folder.iterdir()}


class NeuralTests(LanguageModelTests):
    family: str

    @pytest.fixture
    def model(self, models: dict[str, Path]) -> LanguageModel:
        return snm.load(models[self.family])

    def test_sentences_are_independent(self, model: LanguageModel) -> None:
        """But for the order in which products are added up, which depends on a sentence's row."""
        found = model.score_sentences(["a dog eats", self.SENTENCE])[1]
        assert found == pytest.approx(model.score(self.SENTENCE), rel=1e-6)

    def test_training_lowers_perplexity(self, model: LanguageModel, corpus_file: Path, tmp_path: Path) -> None:
        text = encode_files(corpus_file, model.vocabulary)
        counts = np.bincount(text.tokens[text.tokens != BEGIN])
        p = counts[counts > 0] / text.events
        assert model.perplexity(text).ppl < 0.6 * np.exp(-(p * np.log(p)).sum())

    def test_verify(self, model: LanguageModel) -> None:
        assert verify(model.path, contexts=20).worst < 1e-6

    def test_numpy_and_torch_scores_agree(self, model: LanguageModel, corpus_file: Path) -> None:
        from snm.baselines.neural.batches import score
        from snm.baselines.neural.networks import Network, Shape

        assert isinstance(model, NeuralModel)
        network = Network(Shape(**model.shape), model.output.grouping, "cpu")
        network.fill(model.arrays)
        tokens = encode_lines(
            ["the cat sees purple fish", "a dog", "the old man likes the cat"], model.vocabulary
        ).tokens
        assert score(network, tokens, network.table is not None) == pytest.approx(model.probabilities(tokens), rel=5e-4)

    def test_a_score_does_not_depend_on_other_sentences(self, model: LanguageModel) -> None:
        """For any row of a batch, and any lengths of the others: but for the order in which products are added up."""
        alone = model.score(self.SENTENCE)
        others = ["the cat " * (1 + i % 7) for i in range(40)]
        for place in (0, 5, 23, 40):
            found = model.score_sentences([*others[:place], self.SENTENCE, *others[place:]])[place]
            assert found == pytest.approx(alone, rel=1e-6)


class TestHsme(NeuralTests):
    family = "hsme"


class TestRnn(NeuralTests):
    family = "rnn"


class TestLstm(NeuralTests):
    family = "lstm"


class TestLstmOverClasses(NeuralTests):
    family = "lstm over classes"

    def test_classes_have_several_words(self, model: LanguageModel) -> None:
        assert np.diff(np.load(model.path / "class_starts.npy")).max() > 1


class TestClosedLstmOverClasses(NeuralTests):
    family = "closed lstm over classes"


class TestLstmBelowATree(NeuralTests):
    family = "lstm below a tree"


class TestClosedRnn(NeuralTests):
    family = "closed rnn"


class TestClosedLstm(NeuralTests):
    family = "closed lstm"

    def test_unknown_words_are_not_predicted(self, model: LanguageModel) -> None:
        assert model.distribution(model.context("the"))[UNKNOWN] == 0


# ---------------------------------------------------------------------------------------------
# the tree


@given(st.lists(st.integers(0, 50), min_size=4, max_size=60), st.integers(1, 5), st.booleans())
def test_a_tree_has_a_path_to_every_word(counts: list[int], classes: int, closed: bool) -> None:
    never = UNKNOWN if closed else BEGIN
    tree, odds = Tree.build(np.array(counts), np.arange(len(counts)) % classes, never)
    assert len(tree) == len(odds) == len(counts) - 2 - closed
    starts, steps = tree.paths()
    ways = {tuple(steps[a:b]) for a, b in pairwise(starts)} - {()}
    assert len(ways) == len(tree) + 1, "no two words have one way"
    assert sum(2.0 ** -len(way) for way in ways) == 1
    assert (tree.node_up[1:] >> 1 < np.arange(1, len(tree))).all(), "parents precede children"


def test_a_tree_of_one_class_is_a_huffman_tree() -> None:
    counts = np.array([0, 1, 1, 2, 4, 8, 16])
    tree, odds = Tree.build(counts, np.zeros(7, np.int64), BEGIN)
    starts, _ = tree.paths()
    assert np.diff(starts).tolist() == [0, 5, 5, 4, 3, 2, 1]
    assert np.abs(odds) == pytest.approx([0] * 5), "the counts are powers of two"


def test_words_of_a_class_share_a_node() -> None:
    counts, classes = np.array([0, 1, 2, 30, 5, 29, 6]), np.array([0, 0, 0, 1, 1, 2, 2])
    starts, steps = Tree.build(counts, classes, BEGIN)[0].paths()
    ways = [[step >> 1 for step in steps[a:b]] for a, b in pairwise(starts)]
    assert ways[3][0] == ways[4][0] != ways[5][0] == ways[6][0]


def test_numba_and_torch_hash_contexts_alike() -> None:
    from snm.baselines.neural.networks import hash_contexts

    tokens = random_text(3, 1, 300_000, 30).tokens
    hashes = np.empty((len(tokens), 9), np.uint64)
    tree_kernels.hash_contexts(tokens, BEGIN, hashes)
    other = hash_contexts(torch.from_numpy(tokens[:-1].astype(np.int64))[None], 9)[0].numpy().view(np.uint64)
    assert np.array_equal(hashes[1:], other)
    assert len(np.unique(hashes[hashes != 0][9:])) > 9


# ---------------------------------------------------------------------------------------------
# gradients


def test_the_step_of_the_features_follows_the_derivative_of_the_loss() -> None:
    """The first AdaGrad step with initial squares of 0 is the rate, against the sign of the derivative."""
    from snm.baselines.neural.batches import cut_sentences, inputs_and_targets
    from snm.baselines.neural.networks import Features

    text = random_text(5, 30, 12)
    network, _ = make_network("hsme", SMALL, 3, 1, text, vocabulary_of(14), "cpu")
    table = network.table
    assert table is not None
    table.normal_(generator=torch.Generator().manual_seed(1))
    inputs, targets = inputs_and_targets(
        torch.from_numpy(text.tokens.astype(np.int32)), cut_sentences(text.tokens, 50), BEGIN
    )

    def loss() -> float:
        return float(network.loss(inputs, targets, None, Features(network, inputs, scaled=True)).double().sum())

    features = Features(network, inputs)
    network.loss(inputs, targets, None, features).sum().backward()
    start, squares = table.clone(), torch.zeros_like(table)
    features.step(0.5, 1.0, torch.zeros_like(table), squares)
    used = torch.nonzero(squares)[:, 0]
    assert len(used) > 100
    slope = (start - table).sign()[used] * squares[used].sqrt()
    assert (start - table).abs()[used].numpy() == pytest.approx(0.5, rel=1e-4)
    table.copy_(start)
    for slot, expected in list(zip(used.tolist(), slope.tolist(), strict=True))[::17]:
        table[slot] = start[slot] + 0.01
        above = loss()
        table[slot] = start[slot] - 0.01
        assert (above - loss()) / 0.02 == pytest.approx(expected, rel=0.01, abs=1e-3)
        table[slot] = start[slot]


@pytest.mark.parametrize("softmax", ["tree", "adaptive", "classes"])
def test_rare_nodes_and_tails_are_scored_like_frequent_ones(softmax: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With nodes outside the matrix product and with tails of the softmax, probabilities sum to one."""
    monkeypatch.setattr("snm.baselines.neural.networks.CUTS", (5, 9))
    text = random_text(5, 30, 12)
    how = replace(SMALL, softmax=softmax, slots=1 << 14 if softmax == "tree" else None)
    losses = []
    for dense in (1024, 3):
        monkeypatch.setattr("snm.baselines.neural.networks.DENSE_NODES", dense)
        network, _ = make_network("rnn", how, None, 1, text, vocabulary_of(14), "cpu")
        with torch.no_grad():
            for p in network.parameters():
                p.add_(torch.randn(p.shape, generator=torch.Generator().manual_seed(2)))
        inputs = torch.tensor([[0, 3, 4]]).expand(13, 3)
        targets = torch.full((13, 3), -1)
        targets[:, 2] = torch.arange(1, 14)
        loss = network.loss(inputs, targets, network.states(inputs), None).reshape(13, 3)
        assert float(torch.exp(-loss[:, 2]).sum().detach()) == pytest.approx(1, abs=1e-5)
        assert (loss[:, :2] == 0).all()
        losses.append(loss.detach().numpy())
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_batches_contain_every_event_once() -> None:
    from snm.baselines.neural.batches import cut_sentences, inputs_and_targets, make_batches

    text = random_text(1, 50, 12, 40)
    tokens = torch.from_numpy(text.tokens.astype(np.int32))
    for random in (None, np.random.default_rng(1)):
        seen = []
        for part in make_batches(cut_sentences(text.tokens, 7), 30, random):
            inputs, targets = inputs_and_targets(tokens, part, BEGIN)
            assert inputs.shape[1] <= 7
            assert inputs.numel() <= 30
            seen += list(zip(inputs[targets >= 0].tolist(), targets[targets >= 0].tolist(), strict=True))
        pairs = zip(text.tokens[:-1].tolist(), text.tokens[1:].tolist(), strict=True)
        assert sorted(seen) == sorted((a, b) for a, b in pairs if b != BEGIN)


# ---------------------------------------------------------------------------------------------
# checkpoints


class StoppedError(Exception):
    pass


def stopping_after(steps: int):  # type: ignore[no-untyped-def]
    """A `Progress` that raises StoppedError after a number of training steps."""
    left = steps

    @contextmanager
    def progress(label: str, total: int) -> Iterator[Advance]:
        def advance(n: int) -> None:
            nonlocal left
            left -= label.startswith("pass") and n > 0
            if left < 0:
                raise StoppedError

        yield advance

    return progress


@pytest.mark.parametrize("family", ["hsme", "rnn", "lstm"])
def test_a_resumed_run_gives_the_same_model(
    family: str, models: dict[str, Path], corpus_file: Path, tmp_path: Path
) -> None:
    settings = replace(FAMILIES[family], network=replace(FAMILIES[family].network, checkpoint=1e-9))
    for steps in (3, 12):  # stopped in the first pass, and in the second, after resuming
        with pytest.raises(StoppedError):
            train(corpus_file, tmp_path / "m", settings, progress=stopping_after(steps))
        assert checkpoint_folder(tmp_path / "m").exists()
    said: list[str] = []
    model = train(corpus_file, tmp_path / "m", settings, notify=said.append)
    assert any("resuming from" in line for line in said)
    assert not checkpoint_folder(tmp_path / "m").exists()
    other = snm.load(models[family])
    assert model.manifest["files"] == other.manifest["files"], "to the last bit"
    assert model.manifest["training"] == other.manifest["training"]


def test_the_checkpoint_of_another_run_is_refused(corpus_file: Path, tmp_path: Path) -> None:
    settings = replace(FAMILIES["hsme"], network=replace(SMALL, checkpoint=1e-9))
    with pytest.raises(StoppedError):
        train(corpus_file, tmp_path / "m", settings, progress=stopping_after(3))
    with pytest.raises(SettingsError, match=r"of another run: seed was 1, is 2; .* delete it"):
        train(corpus_file, tmp_path / "m", replace(settings, seed=2))
    (tmp_path / "other").write_text("a b c\nd e f\na a a\n" * 20)
    with pytest.raises(SettingsError, match="text was"):
        train(tmp_path / "other", tmp_path / "m", settings)
    (checkpoint_folder(tmp_path / "m") / "state.json").write_text("{")
    with pytest.raises(FormatError, match="is not a checkpoint"):
        train(corpus_file, tmp_path / "m", settings)


# ---------------------------------------------------------------------------------------------
# the commands


def test_train_info_verify_and_ppl(models: dict[str, Path], corpus_file: Path, tmp_path: Path) -> None:
    given = ("--hidden", 8, "--passes", 1, "--engine", "cpu", "--threads", 1, "--quiet")
    ok("train", corpus_file, "-o", tmp_path / "m", "--model", "rnn", "--order", 3, "--slots", 4096, *given)
    ok("train", corpus_file, "-o", tmp_path / "l", "--model", "rnn", "--cell", "lstm", "--dev", corpus_file, *given)
    assert "RNN of 8 units with maximum entropy" in ok("info", tmp_path / "m")
    assert "LSTM of 8 units, an adaptive softmax" in ok("info", tmp_path / "l")
    assert json.loads(ok("ppl", tmp_path / "m", corpus_file, "--json"))["ppl"] > 1
    assert len(ok("next", tmp_path / "m", "the", "-k", 3).split("\n")) == 4
    assert ok("generate", tmp_path / "l", "--seed", 1)
    assert "differs from 1 by at most" in ok("verify", tmp_path / "l", "--contexts", 5)
    ok("mix", tmp_path / "m", models["hsme"], "--dev", corpus_file, "-o", tmp_path / "mixed")
    assert "weight" in ok("info", tmp_path / "mixed")


def test_an_untrained_network_predicts_word_frequencies(corpus_file: Path, tmp_path: Path) -> None:
    for name in ("hsme", "lstm"):
        settings = FAMILIES[name]
        model = train(corpus_file, tmp_path / name, replace(settings, network=replace(settings.network, passes=0)))
        text = encode_files(corpus_file, model.vocabulary)
        counts = np.bincount(text.tokens)
        p = model.distribution(model.context("the cat"))
        assert p[3:] == pytest.approx(counts[3:] / text.events, rel=0.3)


def test_invalid_settings_are_refused(
    models: dict[str, Path], corpus_file: Path, tmp_path: Path, model_path: Path
) -> None:
    out = ("-o", tmp_path / "m")
    for arguments, expected in (
        (("--model", "rnn", "--loss", "poisson"), "--loss would have no effect"),
        (("--model", "rnn", "--memory", "1G"), "--memory would have no effect"),
        (("--model", "hsme", "--hidden", "5"), "--hidden would have no effect"),
        (("--model", "kn", "--hidden", "5"), "--hidden would have no effect"),
        (("--model", "kn", "--passes", "5"), "--passes would have no effect"),
        (("--model", "rnn", "--cell", "lstm", "--order", "3"), "--order would have no effect"),
        (("--model", "rnn", "--document"), "--document would have no effect"),
        (("--model", "rnn", "--dropout", "1"), "dropout is 1.0; expected 0 or more, and below 1"),
        (("--model", "rnn", "--rate", "0"), "rate is 0.0"),
        (("--model", "rnn", "--checkpoint", "-1"), "checkpoint is -60"),
        (("--model", "hsme", "--slots", "1000"), "expected a power of two"),
    ):
        assert expected in fails("train", corpus_file, *out, *arguments)
    with pytest.raises(SettingsError, match="softmax 'flat' is not known; expected one of tree, adaptive, classes"):
        NetworkSettings(softmax="flat")
    with pytest.raises(SettingsError, match="documents are for SNM"):
        Settings(model="rnn", document=True)
    with pytest.raises(SettingsError, match="a network with softmax 'adaptive' has no n-gram features"):
        train(corpus_file, tmp_path / "m", replace(FAMILIES["lstm"], order=3))
    assert "only a neural model can use a GPU for scoring" in fails("ppl", model_path, corpus_file, "--engine", "gpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_no_gpu(models: dict[str, Path], corpus_file: Path, tmp_path: Path) -> None:
    line = fails("train", corpus_file, "-o", tmp_path / "m", "--model", "rnn", "--engine", "gpu")
    assert "PyTorch finds no GPU" in line
    assert "PyTorch finds no GPU" in fails("ppl", models["rnn"], corpus_file, "--engine", "gpu")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("family", FAMILIES)
def test_cpu_and_gpu_agree(family: str, corpus_file: Path, tmp_path: Path) -> None:
    settings = replace(FAMILIES[family], network=replace(FAMILIES[family].network, dropout=0.0))  # devices draw apart
    model = train(corpus_file, tmp_path / "cpu", settings)
    trained = train(corpus_file, tmp_path / "gpu", replace(settings, engine="gpu"))
    text = encode_files(corpus_file, model.vocabulary)
    assert trained.perplexity(text).ppl == pytest.approx(model.perplexity(text).ppl, rel=0.05)
    expected = model.probabilities(text.tokens)
    model.move_to("gpu")
    assert model.probabilities(text.tokens) == pytest.approx(expected, rel=1e-2)


def test_without_torch(corpus_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("snm.baselines.neural.settings.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"training a neural model.* pip install torch .* extra 'neural'"):
        train(corpus_file, tmp_path / "m", FAMILIES["rnn"])


def test_scoring_needs_no_torch(models: dict[str, Path], corpus_file: Path) -> None:
    code = (
        "import sys; sys.modules['torch'] = None; import snm; from pathlib import Path\n"
        "for path in sys.argv[2:]: print(snm.load(path).perplexity(open(sys.argv[1])).ppl > 1)"
    )
    paths = [models[name] for name in ("hsme", "rnn", "lstm")]
    done = subprocess.run([sys.executable, "-c", code, corpus_file, *paths], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True"] * 3


def test_only_networks_import_torch() -> None:
    modules = "snm.cli, snm.pipeline, snm.reproduction.workspace, snm.baselines.neural.rnn"
    code = f"import sys, {modules}; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_a_damaged_model_is_refused(models: dict[str, Path], tmp_path: Path) -> None:
    import shutil

    shutil.copytree(models["rnn"], tmp_path / "m")
    manifest = json.loads((tmp_path / "m" / "manifest.json").read_text())
    manifest["arrays"]["nodes"] = [3, 5]
    (tmp_path / "m" / "manifest.json").write_bytes(sealed(manifest))
    with pytest.raises(FormatError, match="damaged"):
        snm.load(tmp_path / "m")


def test_the_slow_reader_agrees_on_classes(models: dict[str, Path]) -> None:
    from snm.reference.format import read_model

    for name in ("lstm over classes", "closed lstm over classes"):
        fast, slow = snm.load(models[name]), read_model(models[name])
        context = fast.context("the cat")
        found = [slow.probability(context.tolist(), word) for word in range(len(fast.vocabulary))]
        assert found == pytest.approx(fast.distribution(context).tolist(), rel=5e-4, abs=1e-9)


@given(arrays(np.int64, st.integers(4, 60), elements=st.integers(0, 50)), st.integers(1, 9))
def test_classes_have_every_word_once(counts: np.ndarray, learned: int) -> None:
    classes = WordClasses.build(counts, np.arange(len(counts)) % learned)
    assert classes.is_whole()
    row_of = np.argsort(classes.places)
    for c in range(len(classes)):
        words = row_of[classes.starts[c] : classes.starts[c + 1]]
        assert len(set((words % learned).tolist())) == 1
        assert (np.diff(counts[words]) <= 0).all()


def test_the_loss_over_two_levels() -> None:
    """And its gradients, of classes of several sizes, against softmaxes over all classes and over each class."""
    from snm.baselines.neural.two_level import TwoLevel

    random, words, width = np.random.default_rng(1), 900, 6
    counts = 100_000 // (np.arange(words) + 1)
    learned = np.concatenate([np.arange(3), random.integers(3, 7, words - 3)])
    classes = WordClasses.build(counts, learned)
    assert len(set(np.diff(classes.starts).tolist())) > 3
    two_level = TwoLevel(classes, [BEGIN], torch.device("cpu"))
    torch.manual_seed(1)
    given = [torch.randn(size) for size in ((400, width), (words, width), (words,), (len(classes), width + 1))]
    targets = torch.from_numpy(random.integers(-1, words, 400))
    targets[targets == BEGIN] = -1

    def plain(z: Any, vectors: Any, biases: Any, of_classes: Any) -> Any:
        rows = two_level.places[targets.clamp(min=0)]
        scores = z @ of_classes[:, :-1].T + of_classes[:, -1] + two_level.banned
        of_words = (z @ vectors.T + biases).split(np.diff(classes.starts).tolist(), 1)
        logs = torch.cat([torch.log_softmax(part, 1) for part in of_words], 1)
        event = torch.arange(len(targets))
        found = torch.log_softmax(scores, 1)[event, two_level.class_of_row[rows]] + logs[event, rows]
        return torch.where(targets < 0, 0, -found)

    made = []
    for loss in (lambda *p: two_level.loss(p[0], targets, *p[1:]), plain):
        parameters = [tensor.clone().requires_grad_() for tensor in given]
        losses = loss(*parameters)
        losses.sum().backward()
        made.append([losses, *(p.grad.to_dense() for p in parameters if p.grad is not None)])
    assert len(made[0]) == len(made[1]) == 5
    for a, b in zip(*made, strict=True):
        assert torch.allclose(a, b, atol=1e-4)
