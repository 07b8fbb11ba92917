"""Texts as tokens whose characters are known, for the completions API: the tokens of a prompt join to the prompt."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from snm.layouts.tokens import BEGIN, END, UNKNOWN
from snm.model import IDS, LanguageModel
from snm.server.limits import Refusal
from snm.text.encoding import are_targets
from snm.text.fields import MARK, others
from snm.text.vocabulary import ALIASES_OF_UNKNOWN, Vocabulary, split_words

_WHITE = " \t\n\v\f\r"
_PIECES = re.compile(r"[ \t\r\v\f]*(?:\n[ \t\r\v\f\n]*|[^ \t\r\v\f\n]+|$)")
_OPENING, _CLOSING = ("<s>", "<S>"), ("</s>", "</S>")
IMPROBABLE = -9999.0
"""Stands for the log probability of what has none: OpenAI's servers write this number too."""


@dataclass(frozen=True)
class Prompt:
    """The words and sentence ends of a text. The last sentence is not finished, unless a line end follows it."""

    pieces: list[str]
    """The characters of each token, with the white space before it."""
    ids: list[int]
    """Of each piece; `</S>` for a line end."""
    tokens: np.ndarray
    """The ids, with `<S>` where a sentence or document begins, also at the end, and fields before lines.
    (tokens,) uint32"""
    first_field: int
    """The first id of a field's value."""

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    @property
    def context(self) -> np.ndarray:
        """What the next word follows, from the last `<S>` on."""
        return self.tokens[np.flatnonzero(self.tokens == BEGIN)[-1] :]

    @property
    def places(self) -> np.ndarray:
        """The index into `tokens` of each piece."""
        return np.flatnonzero(are_targets(self.tokens, self.first_field))


def prompt_of_text(text: str, vocabulary: Vocabulary) -> Prompt:
    """The tokens of a text with one sentence a line; blank lines, where `<S>` opens documents, separate these."""
    _refuse_tokenizer(vocabulary)
    pieces, ids, tokens, waiting = list[str](), list[int](), [BEGIN], ""
    opens = True  # whether fields may come here
    for match in _PIECES.finditer(text):
        waiting += match[0]
        word = match[0].strip(_WHITE)
        is_end = word in _CLOSING or (not word and "\n" in match[0] and not opens)
        value = _field(word, vocabulary) if opens else None
        if value is not None:
            tokens.append(value)
        elif is_end or (word and word not in _OPENING):
            ids.append(END if is_end else _known(word, vocabulary))
            tokens.append(ids[-1])
            pieces.append(waiting)
            if is_end and (not vocabulary.document or waiting.count("\n") > 1):
                tokens.append(BEGIN)
            waiting, opens = "", is_end
    if waiting and pieces:
        pieces[-1] += waiting
    return Prompt(pieces, ids, np.array(tokens, IDS), vocabulary.first_field)


def _refuse_tokenizer(vocabulary: Vocabulary) -> None:
    """Refuse a model whose tokens are not words: their characters are not known one by one."""
    if vocabulary.tokenizer is not None:
        raise Refusal(
            400, "model: it has a tokenizer, whose pieces completions do not know; ask for scores, perplexity, next "
            "words, explanations or generated sentences"
        )  # fmt: skip


def words_of(text: str, vocabulary: Vocabulary) -> list[str]:
    """The words of a line; the pieces, where the model has a tokenizer."""
    return split_words(text) if vocabulary.tokenizer is None else vocabulary.tokenizer.pieces(text)


def context_of(text: str, model: LanguageModel) -> np.ndarray:
    """What the next word after a text follows: of several lines, the last one counts. (words,) uint32"""
    if model.vocabulary.tokenizer is not None:
        return model.context(text.rpartition("\n")[2])
    return prompt_of_text(text, model.vocabulary).context


def _field(word: str, vocabulary: Vocabulary) -> int | None:
    """The id of a field's value, such as `speaker=ann`; None if it is a word."""
    name, separator, _ = word.partition("=")
    if not separator or name not in vocabulary.fields:
        return None
    return vocabulary.ids.get(MARK + word, vocabulary.ids[others(name)])


def _known(word: str, vocabulary: Vocabulary) -> int:
    found = vocabulary.ids.get(word, UNKNOWN)
    return found if found < vocabulary.first_field else UNKNOWN


def prompt_of_ids(ids: Sequence[int], vocabulary: Vocabulary) -> Prompt:
    """The same for a text of word ids; the id of `</S>` ends a sentence."""
    _refuse_tokenizer(vocabulary)
    wrong = [i for i in ids if not END <= i < vocabulary.first_field]
    if wrong:
        raise Refusal(
            404, f"prompt: {wrong[0]} is no word's id; expected whole numbers from 1 to {vocabulary.first_field - 1}"
        )
    words, pieces, tokens = vocabulary.words, list[str](), [BEGIN]
    for i in ids:
        joint = "" if not pieces or pieces[-1].endswith("\n") else " "
        pieces.append("\n" if i == END else joint + words[i])
        tokens.append(i)
        if i == END and not vocabulary.document:
            tokens.append(BEGIN)
    return Prompt(pieces, list(ids), np.array(tokens, IDS), vocabulary.first_field)


def log_probabilities(model: LanguageModel, prompt: Prompt) -> list[float]:
    """ln P of each piece; words outside the vocabulary are spelled where the model can."""
    p = model.probabilities(prompt.tokens)[prompt.places]
    with np.errstate(divide="ignore"):
        logs = np.log(p) + spellings(model, prompt)
    return [bounded(value) for value in logs.tolist()]


def spellings(model: LanguageModel, prompt: Prompt) -> np.ndarray:
    """ln P(string | `<UNK>`) of the words outside the vocabulary, 0 for the others. (pieces,) float64"""
    found = np.zeros(len(prompt.ids))
    if model.spelling is None or model.vocabulary.closed:
        return found
    words = [(i, _word(piece)) for i, piece in enumerate(prompt.pieces) if prompt.ids[i] == UNKNOWN]
    words = [(i, word) for i, word in words if word not in ALIASES_OF_UNKNOWN]
    if words:
        data = [word.encode() for _, word in words]
        ends = np.cumsum([len(word) for word in data])
        spans = np.stack([ends - [len(word) for word in data], ends], axis=1).ravel().astype(np.int64)
        found[[i for i, _ in words]] = model.spelling.log_probabilities(b"".join(data), spans)
    return found


def _word(piece: str) -> str:
    return re.split(r"[ \t-\r]", piece.strip(_WHITE))[-1]


def bounded(log_p: float) -> float:
    return log_p if math.isfinite(log_p) else IMPROBABLE
