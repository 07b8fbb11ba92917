"""flashlight-text with models of SNM, beside its own KenLM; torchaudio's decoder where it installs."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import snm
from snm.errors import MissingExtra
from snm.settings import Settings
from tests.channel import LABELS, logits_of, write_sound_alikes
from tests.conftest import SMALL_SKIPS, train

flashlight = pytest.importorskip("flashlight.lib.text.decoder", reason="needs the package flashlight-text")


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sound_alikes(tmp_path_factory.mktemp("flashlight") / "text.txt")


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


@pytest.fixture(scope="module")
def words(folder: Path) -> list[str]:
    return ["<unk>", *snm.load(folder).vocabulary.words[3:]]


def dictionary_of(words: list[str]) -> Any:
    from flashlight.lib.text.dictionary import Dictionary

    dictionary = Dictionary()
    for word in words:
        dictionary.add_entry(word)
    dictionary.set_default_index(0)
    return dictionary


def decoder_of(lm: Any, words: list[str], beam: int = 100) -> Any:
    """A lexicon decoder whose words are spelled in the labels; spaces are the silence."""
    trie, start = flashlight.Trie(len(LABELS), 1), lm.start(False)
    for index, word in enumerate(words[1:], 1):
        letters = [LABELS.index(letter) for letter in word]
        trie.insert([*letters, 1], index, lm.score(start, index)[1])
    trie.smear(flashlight.SmearingMode.MAX)
    options = flashlight.LexiconDecoderOptions(
        beam_size=beam, beam_size_token=len(LABELS), beam_threshold=100.0, lm_weight=1.5, word_score=0.5,
        unk_score=-np.inf, sil_score=0.0, log_add=False, criterion_type=flashlight.CriterionType.CTC,
    )  # fmt: skip
    return flashlight.LexiconDecoder(options, trie, lm, 1, 0, 0, [], False)


def decode(decoder: Any, words: list[str], logits: np.ndarray) -> tuple[str, float]:
    logits = np.ascontiguousarray(logits)
    best = decoder.decode(logits.ctypes.data, *logits.shape)[0]
    return " ".join(words[i] for i in best.words if i >= 0), best.score


def sentences(text: Path, n: int = 12) -> list[tuple[str, np.ndarray]]:
    random = np.random.default_rng(5)
    return [(line, logits_of(line + " ", 0.4, random)) for line in text.read_text().split("\n")[:n]]


def test_an_arpa_file_decodes_as_with_kenlm(text: Path, arpa: Path, words: list[str]) -> None:
    kenlm = pytest.importorskip("flashlight.lib.text.decoder.kenlm", reason="needs flashlight-text with KenLM")
    from snm.integrations.flashlight import SnmLM

    dictionary = dictionary_of(words)
    theirs, ours = kenlm.KenLM(str(arpa), dictionary), SnmLM(arpa, dictionary)
    decoders = decoder_of(theirs, words), decoder_of(ours, words)
    for _, logits in sentences(text):
        expected, found = (decode(decoder, words, logits) for decoder in decoders)
        assert found[0] == expected[0]
        assert found[1] == pytest.approx(expected[1], abs=1e-3)


@pytest.mark.parametrize("kind", ["folder", "mixture"])
def test_a_model_folder_corrects_words(text: Path, folder: Path, arpa: Path, words: list[str], kind: str) -> None:
    from snm.integrations.flashlight import SnmLM

    path = folder
    if kind == "mixture":
        path = text.parent / "mixture.model"
        snm.mix([folder, text.parent / "kn.model"], [text], path)
    zero, lm = flashlight.ZeroLM(), SnmLM(path, words)
    errors = []
    for decoder in (decoder_of(zero, words), decoder_of(lm, words)):
        found = [(line.split(), decode(decoder, words, logits)[0].split()) for line, logits in sentences(text)]
        errors.append(sum(true != guess for true, guess in found))
    assert errors[1] < errors[0] / 2
    assert arpa.exists()


def test_scores_and_states(folder: Path, words: list[str]) -> None:
    """Scores are those of the model; equal states are one object, and different states are two."""
    from snm.integrations.flashlight import SnmLM

    lm, model = SnmLM(folder, words), snm.load(folder)
    sentence = "the nurse has unheard and"
    state, scores = lm.start(False), []
    for word in sentence.split():
        state, score = lm.score(state, words.index(word) if word in words else 0)
        scores.append(score)
    scores.append(lm.finish(state)[1])
    assert scores == pytest.approx([p for _, p in model.score_words([sentence])[0]], abs=1e-5)
    assert lm.start(False) is lm.start(False)
    assert lm.start(False) is not lm.start(True)
    first, _ = lm.score(lm.start(False), 3)
    assert lm.score(lm.start(False), 3)[0] is first
    assert lm.score(lm.start(False), 4)[0] is not first
    assert first.compare(first) == 0
    assert first.compare(lm.score(lm.start(False), 4)[0]) != 0
    long = lm.start(False), lm.score(lm.start(False), 5)[0]
    for _ in range(model.state_width):
        long = lm.score(long[0], 6)[0], lm.score(long[1], 6)[0]
    assert long[0] is long[1], "what is farther away than the model looks does not count"
    before = lm.score(lm.start(False), 3)[1]
    lm.forget()
    assert lm.score(lm.start(False), 3)[1] == before


def test_torchaudio(text: Path, folder: Path, words: list[str], tmp_path: Path) -> None:
    try:
        from torchaudio.models.decoder import ctc_decoder
    except (ImportError, OSError, RuntimeError) as error:
        with pytest.raises(MissingExtra, match="pip install torchaudio"):
            import_module("snm.integrations.torchaudio")
        pytest.skip(f"needs torchaudio, of which there is no build for this PyTorch here ({error})")
    from snm.integrations.torchaudio import SnmLM

    torch = pytest.importorskip("torch")
    files = {"lm_dict": words, "lexicon": [f"{word} {' '.join(word)} |" for word in words[1:]]}
    for name, lines in files.items():
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    tokens = ["-", "|", *LABELS[2:]]
    errors = []
    for lm in (None, SnmLM(folder, words)):
        decoder = ctc_decoder(
            str(tmp_path / "lexicon"), tokens, lm, str(tmp_path / "lm_dict"), lm_weight=1.5, word_score=0.5,
            beam_size=100, unk_word="<unk>",
        )  # fmt: skip
        given = sentences(text)
        found = [" ".join(decoder(torch.from_numpy(logits)[None])[0][0].words) for _, logits in given]
        errors.append(sum(line != guess for (line, _), guess in zip(given, found, strict=True)))
    assert errors[1] < errors[0] / 2
