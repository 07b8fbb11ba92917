"""pyctcdecode and transformers with models of SNM, beside KenLM's own package.

pyctcdecode needs NumPy 1, so the Makefile makes an environment of its own for it, in which the same file runs again.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import snm
import snm.kenlm
from snm.errors import SettingsError, SnmError
from snm.settings import Settings
from tests.channel import LABELS, logits_of, piece_labels, piece_logits_of, write_sound_alikes
from tests.conftest import SMALL_SKIPS, train

ROOT = Path(__file__).parent.parent
PYTHON = Path(os.environ.get("SNM_PYCTCDECODE", ROOT / ".venv-pyctcdecode" / "bin" / "python"))
PAGE = f"{ROOT / 'tests' / 'test_code_blocks.py'}::test_the_blocks_of_a_page[docs/decoding.md]"
INSIDE = find_spec("pyctcdecode") is not None
inside = pytest.mark.skipif(not INSIDE, reason="runs in the environment of pyctcdecode")


@pytest.mark.skipif(INSIDE, reason="this is the environment of pyctcdecode")
@pytest.mark.parametrize("tests", [__file__, PAGE], ids=["adapter", "page"])
def test_in_the_environment_of_pyctcdecode(tests: str) -> None:
    """The page in a process of its own: it replaces kenlm before pyctcdecode imports it."""
    if not PYTHON.exists():
        pytest.skip(f"needs pyctcdecode, kenlm and transformers in {PYTHON.parent.parent} (make test installs them)")
    command = [str(PYTHON), "-m", "pytest", "-q", "-p", "no:cacheprovider", tests]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    run = subprocess.run(
        command, cwd=ROOT, env={**environment, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout[-5000:] + run.stderr[-2000:]
    assert " passed" in run.stdout


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sound_alikes(tmp_path_factory.mktemp("ctc") / "text.txt")


@pytest.fixture(scope="module")
def folder(text: Path) -> Path:
    path = text.parent / "small.model"
    train([text], path, Settings(features=SMALL_SKIPS, threads=1))
    return path


@pytest.fixture(scope="module")
def arpa(text: Path) -> Path:
    path = text.parent / "kn.arpa"
    snm.export_arpa(train([text], text.parent / "kn.model", Settings(model="kn", order=4, threads=1)), path)
    return path


@pytest.fixture(autouse=True)
def _installed() -> Iterator[None]:
    """pyctcdecode's module, with either package in the place of kenlm, and back."""
    before = sys.modules.get("kenlm")
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)
    sys.modules.pop("kenlm", None)
    if before is not None:
        sys.modules["kenlm"] = before


def with_module(name: str) -> Any:
    """pyctcdecode's module of language models, with the package kenlm or with ours in its place."""
    from pyctcdecode import decoder, language_model

    if name == "snm":
        snm.kenlm.install()
        module: Any = snm.kenlm
    else:
        sys.modules.pop("kenlm", None)
        module = pytest.importorskip("kenlm")
    language_model.kenlm = decoder.kenlm = module
    return language_model


def sentences(text: Path, noise: float = 0.25, n: int = 12) -> list[tuple[str, np.ndarray]]:
    random = np.random.default_rng(5)
    return [(line, logits_of(line, noise, random)) for line in text.read_text().split("\n")[:n]]


def errors_of(decoder: Any, given: list[tuple[str, np.ndarray]]) -> int:
    """Words that are not those of the text."""
    pairs = [(line.split(), decoder.decode(logits, 50).split()) for line, logits in given]
    return sum(a != b for true, found in pairs for a, b in zip(true, [*found, *[""] * len(true)], strict=False))


@inside
def test_a_script_with_kenlm_moves_by_one_line(text: Path, arpa: Path) -> None:
    """pyctcdecode's own `build_ctcdecoder` on an ARPA file: the same texts and scores with snm.kenlm as with kenlm."""
    from pyctcdecode import build_ctcdecoder

    found = {}
    for name in ("kenlm", "snm"):
        with_module(name)
        decoder = build_ctcdecoder(LABELS, str(arpa), alpha=0.6, beta=1.0)
        assert type(decoder._language_model._kenlm_model).__module__ == name.replace("snm", "snm.kenlm")
        found[name] = [decoder.decode_beams(logits, 30)[:5] for _, logits in sentences(text)]
    for theirs, ours in zip(found["kenlm"], found["snm"], strict=True):
        assert [beam[0] for beam in ours] == [beam[0] for beam in theirs]
        assert [beam[-1] for beam in ours] == pytest.approx([beam[-1] for beam in theirs], abs=1e-3)


@inside
def test_a_model_folder_in_place_of_the_arpa_file(text: Path, folder: Path) -> None:
    from pyctcdecode import build_ctcdecoder

    with_module("snm")
    words = snm.load(folder).vocabulary.words[3:]
    decoder = build_ctcdecoder(LABELS, str(folder), words, alpha=0.6, beta=1.0)
    without = build_ctcdecoder(LABELS)
    given = sentences(text)
    assert errors_of(decoder, given) < errors_of(without, given) / 3


@inside
@pytest.mark.parametrize("kind", ["folder", "arpa"])
def test_the_adapter_scores_as_pyctcdecode_does(text: Path, folder: Path, arpa: Path, kind: str) -> None:
    """The adapter beside pyctcdecode's own class over the same model: the same texts, totals and partial words."""
    from pyctcdecode import Alphabet, BeamSearchDecoderCTC

    from snm.integrations.pyctcdecode import SnmLanguageModel

    path = folder if kind == "folder" else arpa
    module, weights = with_module("snm"), {"alpha": 0.7, "beta": 0.5, "unk_score_offset": -6.0}
    ours = SnmLanguageModel(path)
    ours.reset_params(**weights)
    theirs = module.LanguageModel(snm.kenlm.Model(str(path)), ours.model.vocabulary.words[3:], **weights)
    assert ours.order == theirs.order
    for partial in ("", "a", "pa", "gardenx", "xyz", "nurs", "unheard-of-long-beginning"):
        assert ours.score_partial_token(partial) == pytest.approx(theirs.score_partial_token(partial))
    for boundary in (True, False):
        for one in (ours, theirs):
            one.reset_params(score_boundary=boundary)
        state, other = ours.get_start_state(), theirs.get_start_state()
        for word in ("the", "nurse", "zzz", "has", "", "</s>"):
            last, _ = ours.score(state, word, True)
            assert last == pytest.approx(theirs.score(other, word, True)[0], abs=1e-6)
            (score, state), (expected, other) = ours.score(state, word), theirs.score(other, word)
            assert score == pytest.approx(expected, abs=1e-6)
    decoders = [BeamSearchDecoderCTC(Alphabet.build_alphabet(LABELS), one) for one in (ours, theirs)]
    for _, logits in sentences(text, n=4):
        a, b = (decoder.decode_beams(logits, 20) for decoder in decoders)
        assert [(beam[0], beam[2]) for beam in a] == [(beam[0], beam[2]) for beam in b]
        assert [beam[-1] for beam in a] == pytest.approx([beam[-1] for beam in b], abs=1e-4)
    hot = decoders[0].decode(sentences(text)[0][1], 20, hotwords=["nurse"], hotword_weight=5.0)
    assert isinstance(hot, str)


@inside
def test_the_order_is_the_true_reach(text: Path, folder: Path) -> None:
    """pyctcdecode merges beams whose last order - 1 words are equal. With the order of the n-grams alone it would merge
    beams that the skip-grams tell apart."""
    from snm.integrations.pyctcdecode import SnmLanguageModel

    model = SnmLanguageModel(folder)
    assert model.order == 9
    head, other = "a b man has pat and my", "my b man has pat and my"
    states = []
    for words in (head, other):
        state = model.get_start_state()
        for word in words.split():
            _, state = model.score(state, word)
        states.append(model.score(state, "garden")[1])
    assert states[0] != model.get_start_state()
    assert (states[0] == states[1]) == (len(head.split()) + 1 > model.order - 1)


@inside
@pytest.mark.parametrize("kind", ["folder", "arpa"])
def test_saved_decoders_open_again(text: Path, folder: Path, arpa: Path, tmp_path: Path, kind: str) -> None:
    from pyctcdecode import Alphabet, BeamSearchDecoderCTC

    from snm.integrations.pyctcdecode import SnmLanguageModel

    with_module("snm")
    saved = SnmLanguageModel(folder if kind == "folder" else arpa, ["a", "the", "pat"], alpha=0.3)
    decoder = BeamSearchDecoderCTC(Alphabet.build_alphabet(LABELS), saved)
    decoder.save_to_dir(str(tmp_path))
    opened = BeamSearchDecoderCTC.load_from_dir(str(tmp_path))  # through snm.kenlm
    again = SnmLanguageModel.load_from_dir(str(tmp_path / "language_model"))
    assert opened._language_model.alpha == again.alpha == 0.3
    for _, logits in sentences(text, n=3):
        expected = decoder.decode_beams(logits, 20)
        for other in (opened, BeamSearchDecoderCTC(Alphabet.build_alphabet(LABELS), again)):
            found = other.decode_beams(logits, 20)
            assert [beam[0] for beam in found] == [beam[0] for beam in expected]
            assert [beam[-1] for beam in found] == pytest.approx([beam[-1] for beam in expected], abs=1e-4)


@inside
def test_wrong_arguments_of_the_adapter(folder: Path) -> None:
    from snm.integrations.pyctcdecode import SnmLanguageModel

    with pytest.raises(SettingsError, match="alpha is 'x'"):
        SnmLanguageModel(folder, alpha="x")  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="score_boundary is 1"):
        SnmLanguageModel(folder).reset_params(score_boundary=1)
    with pytest.raises(SettingsError, match="gamma is no parameter"):
        SnmLanguageModel(folder).reset_params(gamma=1.0)
    with pytest.raises(SnmError):
        SnmLanguageModel(folder / "missing")


@inside
def test_a_processor_of_transformers(text: Path, folder: Path, tmp_path: Path) -> None:
    """`Wav2Vec2ProcessorWithLM.from_pretrained` on a folder with an SNM model in the place of KenLM's file."""
    transformers = pytest.importorskip("transformers")
    from pyctcdecode import Alphabet, BeamSearchDecoderCTC

    from snm.integrations.pyctcdecode import SnmLanguageModel

    with_module("snm")
    tokens = ["<pad>", "|", *LABELS[2:], "<unk>"]
    (tmp_path / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(tokens)}))
    tokenizer = transformers.Wav2Vec2CTCTokenizer(str(tmp_path / "vocab.json"), bos_token=None, eos_token=None)
    extractor = transformers.Wav2Vec2FeatureExtractor()
    decoder = BeamSearchDecoderCTC(
        Alphabet.build_alphabet([*LABELS, "⁇"]), SnmLanguageModel(folder, alpha=0.6, beta=1.0)
    )
    kind = transformers.Wav2Vec2ProcessorWithLM
    kind(extractor, tokenizer, decoder).save_pretrained(str(tmp_path / "processor"))
    processor = kind.from_pretrained(str(tmp_path / "processor"))
    assert type(processor.language_model._kenlm_model) is snm.kenlm.Model
    for line, logits in sentences(text, noise=0.0, n=3):
        padded = np.pad(logits, ((0, 0), (0, 1)), constant_values=-50.0)
        assert processor.decode(padded).text == decoder.decode(padded)
        assert processor.decode(padded).text == line


@inside
@pytest.mark.parametrize("pieces", [False, True])
@pytest.mark.parametrize("hot", [None, ["nan", "her mister", "zebra"]])
def test_our_decoder_finds_the_same(text: Path, arpa: Path, pieces: bool, hot: list[str] | None) -> None:
    """`snm.decoding` beside pyctcdecode and kenlm: texts, frames and scores at three noises."""
    import pyctcdecode

    from snm import decoding

    with_module("kenlm")
    labels = piece_labels(text.read_text().split(), 80) if pieces else LABELS
    theirs = pyctcdecode.build_ctcdecoder(labels, str(arpa), alpha=0.6, beta=1.0)
    ours = decoding.build_ctcdecoder(labels, str(arpa), alpha=0.6, beta=1.0, compatible=True)
    random = np.random.default_rng(7)
    for i, line in enumerate(text.read_text().split("\n")[:24]):
        noise = (0.1, 0.25, 0.5)[i % 3]
        given = piece_logits_of(line, labels, noise, random) if pieces else logits_of(line, noise, random)
        assert ours.decode(given, 50, hotwords=hot) == theirs.decode(given, 50, hotwords=hot)
        if i % 4 == 0:
            found = ours.decode_beams(given, 50, hotwords=hot)[:10]
            expected = theirs.decode_beams(given, 50, hotwords=hot)[:10]
            assert [beam[-1] for beam in found] == pytest.approx([beam[-1] for beam in expected], abs=1e-3)
            assert [beam[0] for beam in found] == [beam[0] for beam in expected]
            assert found[0].text_frames == [(word, tuple(frames)) for word, frames in expected[0][2]]


@inside
def test_our_decoder_without_a_model_finds_the_same(text: Path) -> None:
    import pyctcdecode

    from snm import decoding

    theirs, ours = pyctcdecode.build_ctcdecoder(LABELS), decoding.build_ctcdecoder(LABELS)
    for _, given in sentences(text, 0.4, 10):
        assert ours.decode(given, hotwords=["bed"]) == theirs.decode(given, hotwords=["bed"])
