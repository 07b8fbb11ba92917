"""Models of several sources: SNMs of one vocabulary each, whose rows one gate weighs together.

P(w | h) is the weighed sum of M of w over the rows of all members, divided by that of the row sums. Both are linear in
the gate's factors, so probabilities sum to one whatever the gate says. The gate sees which rows each member has, and
their counts: it weighs the sources by context. `snm.sources` makes such models.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from snm import manifest, parallel, storage
from snm.arguments import shown
from snm.errors import FormatError, InputError
from snm.features.extraction import Extractor
from snm.kernels import beams as beam_kernels
from snm.kernels import gate as gate_kernels
from snm.kernels import matrix as matrix_kernels
from snm.kernels import rows as row_kernels
from snm.kernels import scoring as scoring_kernels
from snm.kernels import sources as kernels
from snm.kernels.rows import Found
from snm.kernels.simd import TILE
from snm.kernels.states import follower
from snm.layouts.beams import BEAM_ARRAYS, BEAM_RECORD, ROW_ARRAYS
from snm.layouts.gate import Gate, gate_size
from snm.layouts.matrix import ARRAYS
from snm.layouts.tokens import BEGIN, END
from snm.model import IDS, Explanation, LanguageModel, Part, StatefulModel, contiguous, wrong_state
from snm.scoring.beams import SnmBeams
from snm.scoring.model import SnmModel
from snm.scoring.texts import LONG_TEXT, MAX_BYTES, MAX_EVENTS, TextScorer
from snm.scoring.unions import Words
from snm.storage import prefault
from snm.text.encoding import Sentence, Sentences, Text
from snm.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    from snm.gate.fitting import GateEvents

ROW_BYTES = 24  # of a row in a tile


class Member:
    """One SNM among the sources: its rows, for words of the union."""

    def __init__(self, model: SnmModel, name: str, words: Words) -> None:
        if model.vocabulary.closed and not words.whole:  # another source has the words that it lacks
            words = replace(words, scale=np.sign(words.scale), constant=np.zeros(len(words.ids)))
        self.model, self.name, self.words = model, name, words
        self.extractor, self.matrix = _for_union(model.extractor, words), model.matrix
        n = self.extractor.n_templates
        ungated = Gate.of(np.zeros(n, np.float32), n)
        self.ungated = ungated
        prune, self.caches = model.manifest["training"]["prune"], self.extractor.cache_reader()
        self.scorer = TextScorer(self.extractor, self.matrix, ungated, prune, self.caches)

    def ids(self, tokens: np.ndarray) -> np.ndarray:
        """The ids of tokens in the member's own vocabulary."""
        return self.words.own(tokens)

    def scales(self, tokens: np.ndarray) -> np.ndarray:
        """The factor of M of each of these targets, 1 unless the member lacks the word. float32"""
        if self.words.whole:
            return np.ones(len(tokens), np.float32)
        factors: np.ndarray = self.words.scale[tokens].astype(np.float32)
        return factors

    def keys(self, tokens: np.ndarray, start: int, stop: int) -> np.ndarray:
        """See `Extractor.keys`; tokens of the union."""
        begin = max(0, start - self.extractor.span)
        return self.extractor.keys(self.ids(tokens[begin:stop]), start - begin, stop - begin)

    def find(
        self, tokens: np.ndarray, start: int, stop: int, targets: np.ndarray | None = None
    ) -> tuple[np.ndarray, Found]:
        """Keys and rows of the events whose targets are tokens[start:stop], or `targets`. (templates, events)"""
        keys, targets = self.keys(tokens, start, stop), tokens[start:stop] if targets is None else targets
        found = row_kernels.find(keys, self.ids(targets), self.matrix, self.ungated)
        return keys, found._replace(weight=found.weight * self.scales(targets))


class SourcesModel(StatefulModel):
    """SNMs of several sources under one gate."""

    kind = "sources"

    def __init__(self, path: str | Path, members: list[LanguageModel]) -> None:
        self.path = Path(path)
        self.manifest = m = manifest.read(self.path)
        names, shares = m["names"], m["shares"]
        if not members or not len(members) == len(names) == len(shares):
            raise FormatError(
                f"{self.path} is damaged: {len(members)} members, named {shown(names)}; expected a name for each"
            )
        with manifest.opening(self.path):
            self.vocabulary = manifest.read_vocabulary(self.path, m)
            self.members = [
                Member(_snm(self.path, model), name, Words.of(model.vocabulary, self.vocabulary, share))
                for model, name, share in zip(members, names, shares, strict=True)
            ]
            sizes = [member.extractor.n_templates for member in self.members]
            self._offsets = np.cumsum([0, *sizes])
            self.gate = self._open_gate()
        first = self.members[0].matrix
        self._folded = self.gate.folded(int(first.unigram_code), float(first.unigram_links), float(first.unigram_sum))
        self._idle: list[Any] = []
        self._prefaulted = False

    def _open_gate(self) -> Gate:
        templates, entry = self.templates, self.manifest["gate"]
        flat, units = np.zeros(templates, np.float32), 0
        if entry is not None:
            flat, units = np.ascontiguousarray(storage.open_array(self.path / "gate.npy", "<f4")), entry["units"]
        if len(flat) != gate_size(templates, units):
            raise FormatError(
                f"{self.path}: the gate has {len(flat):,} weights; expected {gate_size(templates, units):,}; "
                f"restore or rebuild the model"
            )
        return Gate.of(flat, templates)

    @property
    def templates(self) -> int:
        """Templates of all members."""
        return int(self._offsets[-1])

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (os.path.abspath(self.path), [member.model for member in self.members])

    def __repr__(self) -> str:
        names = ", ".join(member.name for member in self.members)
        links = f"{len(self.vocabulary):,} words, {self.manifest['links']:,} links"
        return f"<SourcesModel {self.path}: {links} of {names}>"

    # -----------------------------------------------------------------------------------------
    # whole texts

    def _probabilities(self, tokens: np.ndarray, threads: int) -> np.ndarray:
        if len(tokens) >= LONG_TEXT and not self._prefaulted:
            prefault(getattr(member.matrix, name) for member in self.members for name in ARRAYS)
            self._prefaulted = True
        texts = [member.ids(tokens) for member in self.members]
        event_bytes = sum(m.scorer.bytes_per_event() for m in self.members) + ROW_BYTES * self.templates
        size = max(TILE, min(MAX_EVENTS, MAX_BYTES // event_bytes, -(-len(tokens) // max(1, threads))))
        size = -(-size // TILE) * TILE
        idle, probabilities = self._idle if size <= 1024 else [], np.zeros(len(tokens), np.float64)

        def score(part: tuple[int, int]) -> None:
            try:
                scratches, tiles = idle.pop()
            except IndexError:
                scratches, tiles = self._make_scratch(max(size, 1024))
            for offset, member, text, scratch in zip(self._offsets, self.members, texts, scratches, strict=False):
                member.scorer.write_keys(text, part, scratch)
                here = text[slice(*part)]
                scoring_kernels.look_up(here, member.matrix, scratch)
                scales = member.scales(tokens[slice(*part)])
                kernels.add_member(here, scales, member.matrix, scratch, int(offset), tiles)
            kernels.score_tiles(tiles, self._folded, probabilities[slice(*part)])
            idle.append((scratches, tiles))

        parallel.run(score, [(k, min(k + size, len(tokens))) for k in range(0, len(tokens), size)], threads)
        return probabilities

    def _make_scratch(self, events: int) -> tuple[list[Any], Any]:
        scratches = [m.scorer.make_scratch(-(-events // m.extractor.block)) for m in self.members]
        return scratches, kernels.make_tiles(-(-events // TILE), self.templates)

    # -----------------------------------------------------------------------------------------
    # one event

    def _look_up(self, context: np.ndarray, target: int) -> tuple[list[np.ndarray], Found]:
        """The keys of each member for the event after `context`, and the rows of all. (templates, 1) each"""
        tokens, targets = np.append(context, np.uint32(END)), np.array([target], IDS)
        parts = [member.find(tokens, len(context), len(tokens), targets) for member in self.members]
        found = _joined([found for _, found in parts])
        if len(self._folded.bias):
            row_kernels.weigh(found, gate_kernels.make_rows(self.templates, len(self._folded.bias)), self._folded)
        return [keys for keys, _ in parts], found

    def _distribution(self, context: np.ndarray) -> np.ndarray:
        all_keys, found = self._look_up(context, END)
        scale, total = found.scale[:, 0].astype(np.float64), np.zeros(len(self.vocabulary))
        for offset, member, keys in zip(self._offsets, self.members, all_keys, strict=False):
            y: np.ndarray = scale[offset] * member.matrix.unigrams.astype(np.float64)
            for q in np.flatnonzero(found.row_sum[offset + 1 : offset + len(keys), 0] > 0) + 1:
                targets, weights = matrix_kernels.read_row(q, keys[q, 0], member.matrix)
                y[targets] += scale[offset + q] * weights
            total += y if member.words.same else y[member.words.ids] * member.words.scale
        total /= (scale * found.row_sum[:, 0]).sum()
        return total

    def explain(self, sentence: Sentence) -> list[Explanation]:
        words = self._words(sentence)
        if not words:
            raise InputError("nothing to explain; expected a sentence of at least one word")
        tokens = np.append(self.context(sentence), np.uint32(END))
        return [self._explain(tokens[: k + 1], word) for k, word in enumerate([*words, "</S>"], 1)]

    def _explain(self, tokens: np.ndarray, word: str) -> Explanation:
        _, found = self._look_up(tokens[:-1], int(tokens[-1]))
        scale = found.scale[:, 0].astype(np.float64)
        row_sums = scale * found.row_sum[:, 0]
        denominator = row_sums.sum()
        shares = scale * found.weight[:, 0] / denominator
        parts = []
        for q in np.flatnonzero(found.row_sum[:, 0] > 0).tolist():
            m = int(np.searchsorted(self._offsets, q, "right")) - 1
            model, own = self.members[m].model, q - int(self._offsets[m])
            text = model.feature_text(own, self.members[m].ids(tokens[:-1]))
            figures = float(shares[q]), float(row_sums[q] / denominator), float(scale[q])
            parts.append(Part(text, *figures, self.members[m].name, model.feature_shape(own)))
        parts.sort(key=lambda part: -part.share)
        return Explanation(word, sum(part.share for part in parts), parts)

    # -----------------------------------------------------------------------------------------
    # word by word: a state has the ids of the last words, as those of an SNM

    @cached_property
    def state_width(self) -> int:
        return max(member.extractor.span for member in self.members)

    def start(self) -> bytes:
        return np.full(self.state_width, BEGIN ^ self.vocabulary.tag, "<u4").tobytes()

    def step(self, state: bytes, word: str | int) -> tuple[float, bytes]:
        number, tag = self._id_of(word), self.vocabulary.tag
        if type(state) is not bytes or len(state) != 4 * self.state_width:
            raise wrong_state(f"a state of type {type(state).__name__}")
        states = np.frombuffer(state, IDS).reshape(1, -1)
        if (states ^ IDS.type(tag)).max() >= len(self.vocabulary):
            raise wrong_state("a state of another vocabulary")
        after = state[4:] + (number ^ tag).to_bytes(4, "little")
        if self._has_families:
            return float(self._scores(states, np.array([[number]], IDS))[0, 0]), after
        if number in (BEGIN, self.vocabulary.never_a_target):
            return math.nan, after
        p = float(self._beam(states, np.array([[number]], IDS))[0, 0])
        return math.log10(p) if p > 0 else math.nan, after

    @cached_property
    def _has_families(self) -> bool:
        """Whether features of families need more than a state."""
        return any(member.extractor.has_families for member in self.members)

    def expand(self, states: np.ndarray, words: Sequence[str] | np.ndarray) -> np.ndarray:
        ids = self._candidates(states, words)
        return self._scores(contiguous(states, IDS), np.atleast_2d(ids))

    def follow(self, states: np.ndarray, words: Sequence[str] | np.ndarray, chosen: np.ndarray) -> np.ndarray:
        ids = self._candidates(states, words)
        chosen = self._chosen(chosen, len(states) * ids.shape[-1])
        after = np.empty((len(chosen), self.state_width), IDS)
        if len(chosen):
            follower()(contiguous(states, IDS), ids, self.vocabulary.tag, len(self.vocabulary), chosen, after)
        return after

    def _candidates(self, states: np.ndarray, words: Sequence[str] | np.ndarray) -> np.ndarray:
        ids = super()._candidates(states, words)
        if (states ^ IDS.type(self.vocabulary.tag) >= len(self.vocabulary)).any():
            raise wrong_state("a state of another vocabulary")
        return ids

    def _scores(self, states: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """log10 P of the words after each state. ids: (1 or n, m); (n, m)"""
        n, m = len(states), ids.shape[-1]
        if not n or not m:
            return np.empty((n, m))
        if self._has_families:
            flat = np.empty((n, m, self.state_width + 1), IDS)
            flat[:, :, :-1], flat[:, :, -1] = states[:, None] ^ IDS.type(self.vocabulary.tag), ids
            p = self.probabilities(flat.ravel()).reshape(flat.shape)[:, :, -1]
        else:
            parts = range(0, n, TILE)
            p = np.concatenate(
                [self._beam(states[k : k + TILE], ids if len(ids) == 1 else ids[k : k + TILE]) for k in parts]
            )
            p[np.broadcast_to((ids == BEGIN) | (ids == self.vocabulary.never_a_target), p.shape)] = 0
        with np.errstate(divide="ignore"):
            return np.where(p > 0, np.log10(p), np.nan)

    def _beam(self, states: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """P of words after at most TILE states. (n, m)"""
        try:
            beams = self._idle_beams.pop()
        except IndexError:  # in use by other threads
            beams = _Beams(self.members, self._folded)
        try:
            return beams.probabilities(states ^ IDS.type(self.vocabulary.tag), ids)
        finally:
            self._idle_beams.append(beams)

    @cached_property
    def _idle_beams(self) -> list[_Beams]:
        """Records that no thread uses."""
        return []

    # -----------------------------------------------------------------------------------------

    def adapt(self, sentences: Text | Sentences, output: str | Path, **how: Any) -> SourcesModel:
        from snm.scoring.adapting import adapt_gate

        path = adapt_gate(self, self.gate, sentences, output, **how)
        members = [SnmModel(path / name) for name in self.manifest["members"]]
        return SourcesModel(output, list[LanguageModel](members))

    def faults(self) -> Iterator[tuple[bool, str]]:
        yield not all(np.isfinite(part).all() for part in self.gate), "a weight of the gate is not finite"
        for member in self.members:
            yield from member.model.faults()

    def gate_events(self, text: Text) -> GateEvents:
        """The rows of a text's events, which a gate is learned on."""
        return events_of(self.members, text)


def events_of(members: list[Member], text: Text) -> GateEvents:
    """The rows of a text's events in all members, which a gate is learned on."""
    from snm.gate.fitting import GateEvents

    made, filled = GateEvents.empty(text.events, sum(member.extractor.n_templates for member in members)), 0
    for start, stop in members[0].extractor.blocks(0, len(text.tokens)):
        found = _joined([member.find(text.tokens, start, stop)[1] for member in members])
        filled += made.add(found, filled)
    return made.first(filled)


class _Beams:
    """Records for the kernels that score word by word: one of each member, and one of the gate over all."""

    def __init__(self, members: list[Member], gate: Gate) -> None:
        self.members, self.own = members, [SnmBeams(m.extractor, m.matrix, m.ungated, m.caches.layout) for m in members]
        self.addresses = np.array([beams.address for beams in self.own], np.int64)
        self.kernels = [
            kernels.member_kernels(*(a.dtype.name for a in (m.matrix.starts, m.matrix.long_links, m.matrix.singles)))
            for m in members
        ]
        self.record, self.arrays = _gate_record(sum(m.extractor.n_templates for m in members), gate)
        self.address = int(self.record.ctypes.data)

    def probabilities(self, states: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """states: ids of the union, (n, width); ids: (1 or n, m). (n, m)"""
        for member, beams, (find, _) in zip(self.members, self.own, self.kernels, strict=True):
            own = member.ids(states[:, states.shape[1] - member.extractor.span :])
            find(np.ascontiguousarray(own ^ IDS.type(beams.tag)), beams.address)
        denominators = np.empty(len(states))
        kernels.weigh_members(len(states), self.addresses, self.address, denominators)
        total = np.zeros((len(states), ids.shape[1]))
        for member, beams, (_, add) in zip(self.members, self.own, self.kernels, strict=True):
            weights = np.empty(total.shape)
            add(np.ascontiguousarray(member.ids(ids)), beams.address, weights)
            total += weights if member.words.whole else weights * member.words.scale[ids]
        p: np.ndarray = total / denominators[:, None]
        return p


def _gate_record(templates: int, gate: Gate) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """A record with the gate over all members, and scratch memory for their rows; and the arrays that it refers to."""
    record = np.zeros(1, BEAM_RECORD)
    record["n_templates"], record["units"], record["width"] = templates, len(gate.bias), 1
    rows, beam = gate_kernels.make_rows(templates, len(gate.bias)), beam_kernels.make_beam(1, 1, 0, 0)
    arrays = dict(zip((f"gate_{name}" for name in Gate._fields), gate, strict=True))
    arrays |= {f"rows_{name}": array for name, array in zip(ROW_ARRAYS, rows, strict=True)}
    arrays |= {f"beam_{name}": array for name, array in zip(BEAM_ARRAYS, beam, strict=True)}
    for name, array in arrays.items():
        record[f"{name}_at"] = array.ctypes.data
    return record, arrays


def _for_union(extractor: Extractor, words: Words) -> Extractor:
    """The same keys, also before targets that a closed vocabulary lacks: there they are <UNK>, which is no target."""
    if words.same or not extractor.vocabulary.closed:
        return extractor
    made = copy(extractor)
    lines = extractor.vocabulary.lines.split(b"\n", 3)[-1]
    made.vocabulary = Vocabulary.of_lines(lines, False, extractor.vocabulary.document)
    return made


def _joined(parts: list[Found]) -> Found:
    return Found(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def _snm(path: Path, model: LanguageModel) -> SnmModel:
    if not isinstance(model, SnmModel):
        raise FormatError(f"{path} is damaged: a source is no SNM; rebuild the model")
    return model
