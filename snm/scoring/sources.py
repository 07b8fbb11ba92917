"""Models of several members whose rows one gate weighs together: of several sources, and hybrids.

P(w | h) is the weighed sum of M of w over the rows of all members, divided by that of the row sums. Both are linear in
the gate's factors, so probabilities sum to one whatever the gate says. The gate sees which rows each member has, and
their counts: it weighs the members by context. `snm.sources` makes models of SNMs, one of each source; `snm.hybrids`
makes hybrids, in which a member may be a model of any kind: its distribution is one more row, whose sum is one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from snm import manifest, parallel
from snm.arguments import shown
from snm.errors import FormatError, InputError
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
from snm.layouts.gate import Gate
from snm.layouts.matrix import ARRAYS
from snm.layouts.tokens import BEGIN, END
from snm.model import IDS, Explanation, Explanations, LanguageModel, Part, check_targets, contiguous, wrong_state
from snm.scoring.beams import SnmBeams
from snm.scoring.members import Member, Other, events_of, joined
from snm.scoring.model import SnmModel, open_gate
from snm.scoring.texts import LONG_TEXT, MAX_BYTES, MAX_EVENTS
from snm.scoring.unions import Words, check_shares
from snm.storage import prefault
from snm.text.encoding import Sentence, Sentences, Text

if TYPE_CHECKING:
    from snm.gate.fitting import GateEvents

ROW_BYTES = 24  # of a row in a tile
WHOLE = "all words before"  # what the row of a member that is no SNM depends on, in explanations


class SourcesModel(LanguageModel):
    """SNMs of several sources under one gate."""

    kind = "sources"

    def __init__(self, path: str | Path, members: list[LanguageModel]) -> None:
        self.path, self.models = Path(path), members
        self.manifest = m = manifest.read(self.path)
        names, shares = m["names"], m["shares"]
        if not members or not len(members) == len(names) == len(shares):
            raise FormatError(
                f"{self.path} is damaged: {len(members)} members, named {shown(names)}; expected a name for each"
            )
        check_shares(self.path, shares)
        with manifest.opening(self.path):
            self.vocabulary = manifest.read_vocabulary(self.path, m)
            self.spelling = manifest.read_spelling(self.path, m)
            words = [
                Words.of(model.vocabulary, self.vocabulary, share) for model, share in zip(members, shares, strict=True)
            ]
            self.members, self.others = self._sort(list(zip(members, names, words, strict=True)))
            sizes = [member.templates for member in self.all_members]
            self._offsets = np.cumsum([0, *sizes])
            first = self.members[0].matrix
            self.gate, self._folded = open_gate(self.path, self.manifest["gate"], self.templates, first)
        self._idle: list[Any] = []
        self._prefaulted = False

    def _sort(self, given: list[tuple[LanguageModel, str, Words]]) -> tuple[list[Member], list[Other]]:
        """The SNMs, whose rows come first, and the other members."""
        members = [Member(model, name, words) for model, name, words in given if isinstance(model, SnmModel)]
        if len(members) != len(given):
            raise FormatError(f"{self.path} is damaged: a source is no SNM; rebuild the model")
        return members, []

    @property
    def all_members(self) -> list[Member | Other]:
        return [*self.members, *self.others]

    @property
    def templates(self) -> int:
        """Templates of all members."""
        return int(self._offsets[-1])

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (os.path.abspath(self.path), self.models)

    def __repr__(self) -> str:
        names = ", ".join(member.name for member in self.all_members)
        links = f"{len(self.vocabulary):,} words, {self.manifest['links']:,} links"
        return f"<{type(self).__name__} {self.path}: {links} of {names}>"

    # -----------------------------------------------------------------------------------------
    # whole texts

    def _probabilities(self, tokens: np.ndarray, threads: int) -> np.ndarray:
        if len(tokens) >= LONG_TEXT and not self._prefaulted:
            prefault(getattr(member.matrix, name) for member in self.members for name in ARRAYS)
            self._prefaulted = True
        texts = [member.ids(tokens) for member in self.members]
        alone = [other.probabilities(tokens, threads) for other in self.others]
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
            for offset, p in zip(self._offsets[len(self.members) :], alone, strict=False):
                kernels.add_distribution(p[slice(*part)], int(offset), tiles)
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
        event = np.append(context, targets)
        alone = [other.rows(other.probabilities(event)[-1:]) for other in self.others]
        found = joined([*(found for _, found in parts), *alone])
        if len(self._folded.bias):
            row_kernels.weigh(found, gate_kernels.make_rows(self.templates, len(self._folded.bias)), self._folded)
        return [keys for keys, _ in parts], found

    def event_rows(self, tokens: np.ndarray) -> Iterator[tuple[slice, Found]]:
        """The weighed rows of a text's events, some tokens at a time. (templates of all members, events) each"""
        alone = [other.probabilities(tokens) for other in self.others]
        scratch = gate_kernels.make_rows(self.templates, len(self._folded.bias)) if len(self._folded.bias) else None
        for start, stop in self.members[0].extractor.blocks(0, len(tokens)):
            parts = [member.find(tokens, start, stop)[1] for member in self.members]
            found = joined([*parts, *(o.rows(p[start:stop]) for o, p in zip(self.others, alone, strict=True))])
            if scratch is not None:
                row_kernels.weigh(found, scratch, self._folded)
            yield slice(start, stop), found

    def row_names(self) -> list[tuple[str, str]]:
        """The member and the feature type of each row of `event_rows`; a model of another kind is one row."""
        names = [(member.name, name) for member in self.members for name in member.model.row_names()]
        return [*names, *((other.name, other.model.manifest["kind"]) for other in self.others)]

    def _distribution(self, context: np.ndarray) -> np.ndarray:
        all_keys, found = self._look_up(context, END)
        scale, total = found.scale[:, 0].astype(np.float64), np.zeros(len(self.vocabulary))
        for offset, member, keys in zip(self._offsets, self.members, all_keys, strict=False):
            y: np.ndarray = scale[offset] * member.matrix.unigrams.astype(np.float64)
            for q in np.flatnonzero(found.row_sum[offset + 1 : offset + len(keys), 0] > 0) + 1:
                targets, weights = matrix_kernels.read_row(q, keys[q, 0], member.matrix)
                check_targets(member.model, targets)
                y[targets] += scale[offset + q] * weights
            total += y if member.words.same else y[member.words.ids] * member.words.scale
        for offset, other in zip(self._offsets[len(self.members) :], self.others, strict=False):
            total += scale[offset] * other.distribution(context)
        with np.errstate(all="ignore"):  # `distribution` refuses what is no number
            total /= (scale * found.row_sum[:, 0]).sum()
        return total

    def explain(self, sentence: Sentence) -> Explanations:
        words = self._words(sentence)
        if not words:
            raise InputError("nothing to explain; expected a sentence of at least one word")
        tokens = np.append(self.context(sentence), np.uint32(END))
        return Explanations(self._explain(tokens[: k + 1], word) for k, word in enumerate([*words, "</S>"], 1))

    def _explain(self, tokens: np.ndarray, word: str) -> Explanation:
        _, found = self._look_up(tokens[:-1], int(tokens[-1]))
        scale = found.scale[:, 0].astype(np.float64)
        row_sums = scale * found.row_sum[:, 0]
        denominator = row_sums.sum()
        shares = scale * found.weight[:, 0] / denominator
        parts = []
        for q in np.flatnonzero(found.row_sum[:, 0] > 0).tolist():
            m = int(np.searchsorted(self._offsets, q, "right")) - 1
            member, own = self.all_members[m], q - int(self._offsets[m])
            text, shape = WHOLE, None
            if isinstance(member, Member):
                text = member.model.feature_text(own, member.ids(tokens[:-1]))
                shape = member.model.feature_shape(own)
            figures = float(shares[q]), float(row_sums[q] / denominator), float(scale[q])
            parts.append(Part(text, *figures, member.name, shape))
        parts.sort(key=lambda part: -part.share)
        return Explanation(word, sum(part.share for part in parts), parts)

    # -----------------------------------------------------------------------------------------
    # word by word: a state has the ids of the last words, as those of an SNM, then the states of the other members

    @cached_property
    def _span(self) -> int:
        """Words in a state."""
        return max(member.extractor.span for member in self.members)

    @cached_property
    def state_width(self) -> int:
        return self._span + sum(other.model.state_width for other in self.others)

    def start(self) -> bytes:
        words = np.full(self._span, BEGIN ^ self.vocabulary.tag, "<u4").tobytes()
        return words + b"".join(other.model.start() for other in self.others)

    def step(self, state: bytes, word: str | int) -> tuple[float, bytes]:
        number = self._id_of(word)
        if type(state) is not bytes or len(state) != 4 * self.state_width:
            raise wrong_state(f"a state of type {type(state).__name__}")
        states, ids = np.frombuffer(state, IDS).reshape(1, -1), np.array([[number]], IDS)
        self._check_words(states)
        score = float(self._scores(states, ids)[0, 0])
        after = state[4 : 4 * self._span] + (number ^ self.vocabulary.tag).to_bytes(4, "little")
        for part, other in zip(self._parts(states), self.others, strict=True):
            after += other.model.step(part.tobytes(), int(other.words.own(ids)[0, 0]))[1]
        return score, after

    def _parts(self, states: np.ndarray) -> list[np.ndarray]:
        """The states of the other members. (n, width) each"""
        ends = np.cumsum([self._span, *(other.model.state_width for other in self.others)])[:-1]
        return [np.ascontiguousarray(part) for part in np.split(states, ends, axis=1)[1:]]

    def _check_words(self, states: np.ndarray) -> None:
        if (states[:, : self._span] ^ IDS.type(self.vocabulary.tag) >= len(self.vocabulary)).any():
            raise wrong_state("a state of another vocabulary")

    @cached_property
    def _has_families(self) -> bool:
        """Whether features of families need more than a state."""
        return any(member.extractor.needs_text for member in self.members)

    def expand(self, states: np.ndarray, words: Sequence[str] | np.ndarray) -> np.ndarray:
        ids = self._candidates(states, words)
        return self._scores(contiguous(states, IDS), np.atleast_2d(ids))

    def follow(self, states: np.ndarray, words: Sequence[str] | np.ndarray, chosen: np.ndarray) -> np.ndarray:
        ids = self._candidates(states, words)
        chosen = self._chosen(chosen, len(states) * ids.shape[-1])
        after = np.empty((len(chosen), self._span), IDS)
        if len(chosen):
            own = np.ascontiguousarray(states[:, : self._span])
            follower()(own, ids, self.vocabulary.tag, len(self.vocabulary), chosen, after)
        parts = zip(self._parts(states), self.others, strict=True)
        return np.hstack([after, *(other.model.follow(part, other.words.own(ids), chosen) for part, other in parts)])

    def _candidates(self, states: np.ndarray, words: Sequence[str] | np.ndarray) -> np.ndarray:
        ids = super()._candidates(states, words)
        self._check_words(states)
        return ids

    def _scores(self, states: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """log10 P of the words after each state. ids: (1 or n, m); (n, m)"""
        n, m = len(states), ids.shape[-1]
        if not n or not m:
            return np.empty((n, m))
        if self._has_families:
            flat = np.empty((n, m, self._span + 1), IDS)
            flat[:, :, :-1], flat[:, :, -1] = states[:, None, : self._span] ^ IDS.type(self.vocabulary.tag), ids
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
            beams = _Beams(self.members, len(self.others), self._folded)
        alone = [other.expand(part, ids) for part, other in zip(self._parts(states), self.others, strict=True)]
        try:
            return beams.probabilities(states[:, : self._span] ^ IDS.type(self.vocabulary.tag), ids, alone)
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
        given = zip(self.models, self.manifest["members"], strict=True)
        return type(self)(output, [_reopened(model, path / name) for model, name in given])

    def structure_faults(self) -> Iterator[tuple[bool, str]]:
        for model in self.models:
            yield from model.structure_faults()

    def faults(self) -> Iterator[tuple[bool, str]]:
        for model in self.models:
            yield from model.faults()

    def gate_events(self, text: Text) -> GateEvents:
        """The rows of a text's events, which a gate is learned on."""
        return events_of(self.members, text, self.others)


class _Beams:
    """Records for the kernels that score word by word: one of each member, and one of the gate over all."""

    def __init__(self, members: list[Member], others: int, gate: Gate) -> None:
        self.members, self.own = members, [SnmBeams(m.extractor, m.matrix, m.ungated, m.caches.layout) for m in members]
        self.addresses = np.array([beams.address for beams in self.own], np.int64)
        self.kernels = [
            kernels.member_kernels(*(a.dtype.name for a in (m.matrix.starts, m.matrix.long_links, m.matrix.singles)))
            for m in members
        ]
        self.record, self.arrays = _gate_record(sum(m.templates for m in members) + others, gate)
        self.address = int(self.record.ctypes.data)
        self.factors = np.empty((others, TILE))

    def probabilities(self, states: np.ndarray, ids: np.ndarray, alone: list[np.ndarray]) -> np.ndarray:
        """states: ids of the union, (n, width); ids: (1 or n, m); alone: P of the other members, (n, m). (n, m)"""
        for member, beams, (find, _) in zip(self.members, self.own, self.kernels, strict=True):
            own = member.ids(states[:, states.shape[1] - member.extractor.span :])
            find(np.ascontiguousarray(own ^ IDS.type(beams.tag)), beams.address)
        denominators = np.empty(len(states))
        kernels.weigh_members(len(states), self.addresses, self.address, denominators, self.factors)
        total = np.zeros((len(states), ids.shape[1]))
        for member, beams, (_, add) in zip(self.members, self.own, self.kernels, strict=True):
            weights = np.empty(total.shape)
            add(np.ascontiguousarray(member.ids(ids)), beams.address, weights)
            total += weights if member.words.whole else weights * member.words.scale[ids]
        for factors, p_alone in zip(self.factors, alone, strict=True):
            total += factors[: len(states), None] * p_alone
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


def _reopened(model: LanguageModel, path: Path) -> LanguageModel:
    """The copy of a member in another folder."""
    kind, (_, *members) = model.__reduce__()
    how = [
        [_reopened(member, path / name) for member, name in zip(given, model.manifest["members"], strict=True)]
        for given in members
    ]
    copied: LanguageModel = kind(path, *how)
    return copied
