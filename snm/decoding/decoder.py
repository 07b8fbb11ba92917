"""The decoder: `build_ctcdecoder` with pyctcdecode's arguments, and `Decoder` with its methods."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np

from snm import parallel
from snm.arguments import MAX_THREADS, choice, flag, real_number, shown, whole_number
from snm.decoding.labels import LabelSet, label_set
from snm.decoding.logits import log_probabilities
from snm.decoding.results import Beam
from snm.decoding.scores import WordScores
from snm.decoding.search import BeamSearch, Task, make_arrays
from snm.decoding.streaming import Stream
from snm.decoding.tries import hot_words_of, lexicon_of, phrases_of
from snm.errors import SettingsError
from snm.layouts.decoding import HotWords, Limits, Search
from snm.loading import load
from snm.model import LanguageModel
from snm.system import default_threads

ALPHA, BETA, UNKNOWN_OFFSET = 0.5, 1.5, -10.0
BEAM_WIDTH, PRUNE, MIN_TOKEN, HOTWORD_WEIGHT = 100, -10.0, -5.0, 10.0
HotwordList = Iterable[str] | Mapping[str, float] | None
_KEPT_HOT_WORDS = 16  # automata of hot words that a decoder keeps


def build_ctcdecoder(
    labels: Sequence[str], kenlm_model_path: str | Path | LanguageModel | None = None,
    unigrams: Collection[str] | None = None, alpha: float = ALPHA, beta: float = BETA,
    unk_score_offset: float = UNKNOWN_OFFSET, lm_score_boundary: bool = True, *, blank: str | int | None = None,
    lexicon: str = "open", level: str = "word", compatible: bool = False,
) -> Decoder:  # fmt: skip
    """A CTC decoder: pyctcdecode's `build_ctcdecoder` over any model that scores word by word.

    - `labels`: of the logits' columns.
    - `kenlm_model_path`: a model folder, an ARPA file, an open model, or none.
    - `unigrams`: the words that count as known, if these are not all words of the model.
    - `alpha`: weight of the model; `beta`: added for each word; `unk_score_offset`: added to log10 P of unknown words.
    - `lm_score_boundary`: whether texts are whole sentences.
    - `blank`: the label or index of the blank, where it is not "", `[PAD]`, `<pad>` or `_`.
    - `lexicon`: `open`, or `closed` if only known words may be found.
    - `level`: `word`, or `token` if the words of the model are the labels.
    - `compatible`: repeat a fault of pyctcdecode, for the same texts: a text that ends with a space pays for one more,
      unknown word.
    """
    model = kenlm_model_path
    if model is not None and not isinstance(model, LanguageModel):
        if not isinstance(model, str | os.PathLike):
            raise SettingsError(f"kenlm_model_path is {shown(model)}; expected a path, an open model of snm, or None")
        model = load(model)
    return Decoder(
        label_set(labels, blank), model, unigrams, alpha=alpha, beta=beta, unk_score_offset=unk_score_offset,
        lm_score_boundary=lm_score_boundary, lexicon=lexicon, level=level, compatible=compatible,
    )  # fmt: skip


class Decoder:
    """Decodes logits. Threads may share it. It can be pickled: the copy opens the model again."""

    def __init__(
        self, labels: LabelSet, model: LanguageModel | None = None, unigrams: Collection[str] | None = None, *,
        alpha: float = ALPHA, beta: float = BETA, unk_score_offset: float = UNKNOWN_OFFSET,
        lm_score_boundary: bool = True, lexicon: str = "open", level: str = "word", compatible: bool = False,
    ) -> None:  # fmt: skip
        """See `build_ctcdecoder`."""
        self._set = labels
        self._scores = None if model is None else WordScores(model)
        self._open = choice("lexicon", lexicon, ("open", "closed")) == "open"
        by_token = choice("level", level, ("word", "token")) == "token"
        if isinstance(unigrams, str):
            raise SettingsError(f"unigrams is {shown(unigrams)}; expected a list of words")
        self._compatible = flag("compatible", compatible)
        self._given = {
            "labels": labels, "model": model, "unigrams": unigrams, "lexicon": lexicon, "level": level,
            "compatible": compatible,
        }  # fmt: skip
        self._known = self._known_words(unigrams, by_token)
        self._task_labels = labels.arrays(self._token_ids() if by_token else None)
        self._texts = [text.replace("▁", " ") for text in labels.names] if by_token else labels.texts()
        self._separator = "" if by_token else " "
        self._lexicon = lexicon_of({} if by_token else self._known)
        self._idle: list[Search] = []  # arrays that no search uses
        self._hot: list[tuple[Any, float, HotWords]] = []  # hot words as they were given, and their automata
        self.alpha, self.beta, self.unk_score_offset, self.lm_score_boundary = ALPHA, BETA, UNKNOWN_OFFSET, True
        self.reset_params(alpha, beta, unk_score_offset, lm_score_boundary)

    def _known_words(self, unigrams: Collection[str] | None, by_token: bool) -> dict[str, int]:
        ids = {} if self._scores is None else self._scores.ids()
        if by_token and (self._scores is None or unigrams is not None or not self._open):
            raise SettingsError(
                "level='token' needs a model of the labels, and neither unigrams nor lexicon='closed'; see level='word'"
            )
        if unigrams is not None:
            ids = {word: ids.get(word, -1) for word in unigrams if word in ids or self._scores is None}
            if not ids:
                raise SettingsError("the model has none of the unigrams; expected words of the model, in the same case")
            if self._scores is None:
                ids = {word: i for i, word in enumerate(ids)}
        if not self._open and not ids:
            raise SettingsError("lexicon='closed' needs a model or unigrams; expected one of them")
        if ids and not by_token:
            self._check_coverage(ids)
        return ids

    def _check_coverage(self, words: Iterable[str]) -> None:
        """Labels that can spell none of the words are those of another model."""
        characters = set("".join(self._set.texts()))
        if not any(characters.issuperset(word) for word in words):
            raise SettingsError(
                f"the labels {shown(list(self._set.names))} spell no word of the model; expected labels in the "
                f"same case and script, such as lower case for a model of lower-case text"
            )

    def _token_ids(self) -> dict[str, int]:
        assert self._scores is not None
        ids = self._scores.ids()
        if not any(name in ids for name in self._set.names):
            raise SettingsError("the model has none of the labels as a word; expected a model of text in these tokens")
        return ids

    def __reduce__(self) -> tuple[Any, ...]:
        settings = (self.alpha, self.beta, self.unk_score_offset, self.lm_score_boundary)
        return _restored, (self._given, settings)

    @property
    def labels(self) -> list[str]:
        """The labels of the logits' columns: the blank is "", the space " ", ▁ begins a word."""
        return list(self._set.names)

    def reset_params(
        self, alpha: float | None = None, beta: float | None = None, unk_score_offset: float | None = None,
        lm_score_boundary: bool | None = None,
    ) -> None:  # fmt: skip
        """Change the weights; None leaves one as it is."""
        for name, value in (("alpha", alpha), ("beta", beta), ("unk_score_offset", unk_score_offset)):
            if value is not None:
                number = real_number(name, value)
                if not np.isfinite(number):
                    raise SettingsError(f"{name} is {number}; expected a finite number")
                setattr(self, name, number)
        if lm_score_boundary is not None:
            self.lm_score_boundary = flag("lm_score_boundary", lm_score_boundary)

    def decode(
        self, logits: Any, beam_width: int = BEAM_WIDTH, beam_prune_logp: float = PRUNE,
        token_min_logp: float = MIN_TOKEN, hotwords: HotwordList = None, hotword_weight: float = HOTWORD_WEIGHT,
        lm_start_state: bytes | None = None,
    ) -> str:  # fmt: skip
        """The best text for logits, log probabilities or probabilities. (frames, labels)"""
        task = self._task(beam_width, beam_prune_logp, token_min_logp, True, hotwords, hotword_weight)
        return self._search(task, self._rows(logits), lm_start_state, 1)[0].text

    def decode_beams(
        self, logits: Any, beam_width: int = BEAM_WIDTH, beam_prune_logp: float = PRUNE,
        token_min_logp: float = MIN_TOKEN, prune_history: bool = False, hotwords: HotwordList = None,
        hotword_weight: float = HOTWORD_WEIGHT, lm_start_state: bytes | None = None,
    ) -> list[Beam]:  # fmt: skip
        """The best texts, the best first, with scores and the frames of words.

        `beam_prune_logp`: how much below the best a beam may be. `token_min_logp`: least ln P of a label, unless it is
        the best of its frame. `prune_history`: keep only the best of beams that differ in words that the model cannot
        see. `hotwords`: a list of words, each with `hotword_weight`; or a dictionary of words and phrases and their
        weights. `lm_start_state`: the `last_lm_state` of a beam that this text goes on from.
        """
        task = self._task(beam_width, beam_prune_logp, token_min_logp, prune_history, hotwords, hotword_weight)
        return self._search(task, self._rows(logits), lm_start_state, None)

    def decode_batch(
        self, pool: Any, logits_list: Iterable[Any], beam_width: int = BEAM_WIDTH, beam_prune_logp: float = PRUNE,
        token_min_logp: float = MIN_TOKEN, hotwords: HotwordList = None, hotword_weight: float = HOTWORD_WEIGHT, *,
        threads: int | None = None,
    ) -> list[str]:  # fmt: skip
        """The best text of each of many logits, on several threads (all cores). `pool` is not used: None will do."""
        task = self._task(beam_width, beam_prune_logp, token_min_logp, True, hotwords, hotword_weight)
        return [beams[0].text for beams in self._batch(task, logits_list, threads, 1)]

    def decode_beams_batch(
        self, pool: Any, logits_list: Iterable[Any], beam_width: int = BEAM_WIDTH, beam_prune_logp: float = PRUNE,
        token_min_logp: float = MIN_TOKEN, prune_history: bool = False, hotwords: HotwordList = None,
        hotword_weight: float = HOTWORD_WEIGHT, *, threads: int | None = None,
    ) -> list[list[Beam]]:  # fmt: skip
        """`decode_beams` of each of many logits, on several threads (all cores). `pool` is not used: None will do."""
        task = self._task(beam_width, beam_prune_logp, token_min_logp, prune_history, hotwords, hotword_weight)
        return self._batch(task, logits_list, threads, None)

    def stream(
        self, beam_width: int = BEAM_WIDTH, beam_prune_logp: float = PRUNE, token_min_logp: float = MIN_TOKEN,
        prune_history: bool = True, hotwords: HotwordList = None, hotword_weight: float = HOTWORD_WEIGHT,
        lm_start_state: bytes | None = None,
    ) -> Stream:  # fmt: skip
        """A stream, which takes logits in chunks. The arguments are those of `decode_beams`."""
        settings = (beam_width, beam_prune_logp, token_min_logp, prune_history, hotwords, hotword_weight)
        return Stream(self, settings, lm_start_state)

    # ---------------------------------------------------------------------------------------------

    def _task(
        self, width: Any, prune: Any, min_token: Any, by_history: Any, hotwords: HotwordList, hotword_weight: Any
    ) -> Task:
        """What one call works with."""
        scores = self._scores
        limits = Limits(
            whole_number("beam_width", width, 1, 1 << 20), real_number("token_min_logp", min_token),
            real_number("beam_prune_logp", prune), flag("prune_history", by_history),
            1 if scores is None else scores.order, scores is not None,
            self.alpha, self.beta, self.unk_score_offset, self._open,
        )  # fmt: skip
        if not limits.prune <= 0:
            raise SettingsError(f"beam_prune_logp is {limits.prune}; expected a number of at most 0")
        hot = self._hot_words(hotwords, hotword_weight)
        return Task(
            limits, self._task_labels, self._texts, self._separator, self._lexicon, hot, scores, self.lm_score_boundary,
            self._compatible,
        )  # fmt: skip

    def _hot_words(self, given: Any, weight: Any) -> HotWords:
        """The automaton of hot words; of those that were given before it is kept."""
        given = list(given) if isinstance(given, set | frozenset) else given
        for known, with_weight, hot in self._hot:
            if type(known) is type(given) and known == given and with_weight == weight:
                return hot
        hot = hot_words_of(phrases_of(given, weight))
        if given is None or isinstance(given, list | tuple | dict):
            self._hot = [(copy(given), weight, hot), *self._hot[: _KEPT_HOT_WORDS - 1]]
        return hot

    def _rows(self, logits: Any) -> np.ndarray:
        return log_probabilities(logits, self._set)

    def _arrays(self, width: int) -> Search:
        states = 1 if self._scores is None else self._scores.width
        return make_arrays(width, len(self._set.names), states)

    def _search(self, task: Task, rows: np.ndarray, state: bytes | None, best: int | None) -> list[Beam]:
        try:
            arrays = self._idle.pop()
        except IndexError:  # in use by other threads
            arrays = self._arrays(task.limits.width)
        if len(arrays.beams) != task.limits.width:
            arrays = self._arrays(task.limits.width)
        search = BeamSearch(task, arrays, state)
        search.feed(rows)
        found = [search.beam(one, [], []) for one in search.finish(best)]
        self._idle.append(search.arrays)
        return found

    def _batch(self, task: Task, logits_list: Iterable[Any], threads: int | None, best: int | None) -> list[list[Beam]]:
        n = default_threads() if threads is None else whole_number("threads", threads, 1, MAX_THREADS)
        if isinstance(logits_list, str) or not hasattr(logits_list, "__iter__"):
            raise SettingsError(f"logits_list is {shown(logits_list)}; expected a list of arrays")
        rows = [self._rows(logits) for logits in logits_list]  # an error before any work
        return list(parallel.ordered(lambda one: self._search(task, one, None, best), rows, n))


def _restored(given: dict[str, Any], settings: tuple[Any, ...]) -> Decoder:
    decoder = Decoder(**given)
    decoder.reset_params(*settings)
    return decoder
