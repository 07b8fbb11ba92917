"""Models made of rows of links: what SNM and backoff models share, and the SNM itself."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numba.core.errors import NumbaError

from snm import manifest, storage
from snm.arguments import shown
from snm.errors import FormatError, InputError, MissingExtra, SettingsError
from snm.features.extraction import Extractor
from snm.features.specification import FeatureSpec
from snm.kernels import caches as cache_kernels
from snm.kernels import matrix as matrix_kernels
from snm.kernels import rows as row_kernels
from snm.kernels.states import follower
from snm.layouts.gate import Gate, gate_size
from snm.layouts.keys import KeyLayout
from snm.layouts.matrix import Matrix
from snm.layouts.tokens import BEGIN, END
from snm.matrix.reading import open_matrix
from snm.model import IDS, Explanation, Explanations, LanguageModel, Part, check_targets, contiguous, wrong_state
from snm.scoring.beams import BeamScorer, SnmBeams
from snm.scoring.texts import TextScorer
from snm.text.encoding import Sentence, Sentences, Text
from snm.text.fields import name_of

if TYPE_CHECKING:
    from snm.gate.fitting import GateEvents
    from snm.kernels.rows import Found
    from snm.tensors.advance import TensorModel

# The errors that Numba raises when an argument has the wrong dtype or layout, and those of arguments that are not
# arrays. Checking each argument before the call took a tenth of the time of scoring a beam.
_WRONG_ARGUMENTS = TypeError, ValueError, AttributeError, IndexError, NumbaError


class RowModel(LanguageModel):
    """A model made of rows of links, mapped from disk, which the features of an event select."""

    kind: str

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.manifest = manifest.read(self.path)
        with manifest.opening(self.path):
            self._open()

    def _open(self) -> None:
        m = self.manifest
        self.vocabulary = manifest.read_vocabulary(self.path, m)
        self.spelling = manifest.read_spelling(self.path, m)
        self.spec = FeatureSpec(m["features"])
        self.layout = KeyLayout(**m["layout"])
        expected = KeyLayout.for_work(len(self.vocabulary), len(self.spec.types), 0)
        if (self.layout.target_bits, self.layout.type_bits, self.layout.hash_bits) != (
            expected.target_bits, expected.type_bits, m["hash_bits"],
        ):  # fmt: skip
            raise FormatError(f"{self.path}: {self.layout} does not fit the vocabulary and the features; rebuild it")
        classes = self._array("classes", "<u2") if self.spec.has_classes else None
        self.extractor = Extractor(self.spec, self.layout, self.vocabulary, classes)
        for name, digest in self.extractor.family_digests().items():
            if digest != m["families"][name]:
                raise FormatError(
                    f"{self.path}: the feature family {name!r} gives other keys than when the model was trained; "
                    f"register the same family, and make sure that it gives the same keys in every process"
                )

    def __repr__(self) -> str:
        links = f"{len(self.vocabulary):,} words, {self.manifest['links']:,} links"
        return f"<{type(self).__name__} {self.path}: {self.spec}, {links}>"

    def _array(self, name: str, *types: str) -> np.ndarray:
        return storage.open_array(self.path / f"{name}.npy", *types)

    @property
    def state_width(self) -> int:
        return self.extractor.state_width

    def start(self, fields: str = "") -> bytes:
        """The state at the beginning of a sentence; `fields` of the sentence, such as "speaker=ann"."""
        if not isinstance(fields, str):
            raise SettingsError(f"fields is {shown(fields)}; expected a string such as 'speaker=ann'")
        state, fixed = np.full(self.state_width, BEGIN, np.uint32), self.extractor.fixed
        values, words = self.vocabulary.split(fields)
        if words:
            known = ", ".join(self.vocabulary.fields) or "none"
            raise SettingsError(f"{shown(words[0])} is no field of this model; its fields are {known}")
        if values:
            last = {name_of(value): value for value in values}  # of each field, the last value counts
            ids = self.vocabulary.ids_of(last.values())
            state[1:] = ids[-1]  # in place of earlier words, which there are none of
            state[1 : min(fixed, len(ids) + 1)] = ids
        return (state ^ np.uint32(self.vocabulary.tag)).astype("<u4").tobytes()

    @cached_property
    @abstractmethod
    def _beams(self) -> BeamScorer:
        """The compiled `expand` and `step` of this model."""

    def step(self, state: bytes, word: str | int) -> tuple[float, bytes]:
        beams = self._beams
        if type(state) is not bytes or len(state) != beams.state_bytes:
            scores, states = self.steps(self.state_array([state]), np.array([self._id_of(word)], IDS))
            return float(scores[0]), states[0].tobytes()
        try:
            number = self._step_ids[word]  # type: ignore[index]
        except (KeyError, TypeError):
            number = self._id_of(word)
        score = beams.step(beams.address, state, number)
        if score > 0.0:
            raise wrong_state("a state of another vocabulary")
        return score, state[4:] + (number ^ beams.tag).to_bytes(4, "little")

    def expand(self, states: np.ndarray, words: Sequence[str] | np.ndarray) -> np.ndarray:
        beams = self._beams
        try:
            address = beams.idle.pop()
        except IndexError:  # in use by other threads
            address = beams.make_record()
        try:
            scores = np.empty((len(states), words.shape[-1]))  # type: ignore[union-attr]
            if beams.expand(states, words, address, scores):
                return scores
        except _WRONG_ARGUMENTS:
            pass
        finally:
            beams.idle.append(address)
        if self.extractor.needs_text:
            return self._expand_by_text(states, words)
        ids = self._candidates(states, words)
        if not len(states) or not ids.size:
            return np.empty((len(states), ids.shape[-1]))
        return self.expand(contiguous(states, IDS), ids)

    def _expand_by_text(self, states: np.ndarray, words: Sequence[str] | np.ndarray) -> np.ndarray:
        """`expand` for features of families: each state is scored as a text of its words."""
        ids = self._candidates(states, words)
        n, m = len(states), ids.shape[-1]
        flat = np.empty((n, m, states.shape[1] + 1), np.uint32)
        flat[:, :, :-1], flat[:, :, -1] = states[:, None] ^ IDS.type(self.vocabulary.tag), ids
        p = self.probabilities(flat.ravel()).reshape(flat.shape)[:, :, -1]
        with np.errstate(divide="ignore"):
            return np.where(p > 0, np.log10(p), np.nan)

    def follow(self, states: np.ndarray, words: Sequence[str] | np.ndarray, chosen: np.ndarray) -> np.ndarray:
        kernel, tag, words_known, width = self._following
        if self.extractor.fixed:
            return self._follow_after_fields(states, words, chosen)
        try:
            after = np.empty((len(chosen), width), IDS)
            if kernel(states, words, tag, words_known, chosen, after):
                return after
        except _WRONG_ARGUMENTS:
            pass
        ids = self._candidates(states, words)
        chosen = self._chosen(chosen, len(states) * ids.shape[-1])
        after = np.empty((len(chosen), width), IDS)
        if len(chosen):
            kernel(contiguous(states, IDS), ids, tag, words_known, chosen, after)
        return after

    def _follow_after_fields(
        self, states: np.ndarray, words: Sequence[str] | np.ndarray, chosen: np.ndarray
    ) -> np.ndarray:
        """`follow`, where `<S>` and the values of fields stay at the beginning of a state."""
        ids, fixed = self._candidates(states, words), self.extractor.fixed
        chosen = self._chosen(chosen, len(states) * ids.shape[-1])
        rows, columns = np.divmod(chosen, max(1, ids.shape[-1]))
        after = states[rows].copy()
        after[:, fixed:-1] = states[rows, fixed + 1 :]
        after[:, -1] = (ids[columns] if ids.ndim == 1 else ids[rows, columns]) ^ IDS.type(self.vocabulary.tag)
        return after

    @cached_property
    def _following(self) -> tuple[Any, int, int, int]:
        """(kernel, tag, vocabulary size, state width) of `follow`. Cached: looking them up takes a fifth of a call."""
        return follower(), self.vocabulary.tag, len(self.vocabulary), self.state_width

    def _candidates(self, states: np.ndarray, words: Sequence[str] | np.ndarray) -> np.ndarray:
        ids = super()._candidates(states, words)
        if (states ^ IDS.type(self.vocabulary.tag) >= len(self.vocabulary)).any():
            raise wrong_state("a state of another vocabulary")
        return ids

    def _keys(self, context: np.ndarray) -> np.ndarray:
        """Keys of the features of the event after `context`. (templates, 1)"""
        tokens = np.append(context, END).astype(np.uint32)
        return self.extractor.keys(tokens, len(context), len(tokens))


def open_gate(path: Path, entry: dict[str, Any] | None, templates: int, matrix: Matrix) -> tuple[Gate, Gate]:
    """The gate of a model's folder, and the gate as kernels take it. Without an entry it changes nothing.

    matrix: has the row of the empty feature.
    """
    flat, units = np.zeros(templates, np.float32), 0
    if entry is not None:
        flat, units = np.ascontiguousarray(storage.open_array(path / "gate.npy", "<f4")), entry["units"]
    if len(flat) != gate_size(templates, units):
        raise FormatError(
            f"{path}: the gate has {len(flat):,} weights; expected {gate_size(templates, units):,}; restore or "
            f"rebuild the model"
        )
    gate = Gate.of(flat, templates)
    with np.errstate(over="ignore", invalid="ignore"):
        folded = gate.folded(int(matrix.unigram_code), float(matrix.unigram_links), float(matrix.unigram_sum))
    if not (gate.is_finite and folded.is_finite):
        raise FormatError(f"{path}: a weight of the gate is not finite; restore or rebuild the model")
    return gate, folded


class SnmModel(RowModel):
    """A sparse non-negative matrix model: M and its gate."""

    kind = "snm"

    def _open(self) -> None:
        super()._open()
        self.caches = self.extractor.cache_reader(used=self.manifest["gate"] is not None)
        templates = self.extractor.n_templates + len(self.caches)
        self.matrix = open_matrix(self._array, self.manifest["pages"], self.extractor)
        m = self.matrix
        self.gate, self._folded = open_gate(self.path, self.manifest["gate"], templates, m)
        self._scorer = TextScorer(self.extractor, m, self._folded, self.manifest["training"]["prune"], self.caches)

    def _probabilities(self, tokens: np.ndarray, threads: int) -> np.ndarray:
        return self._scorer.probabilities(tokens, threads)

    def _look_up(self, keys: np.ndarray, word: int, context: np.ndarray) -> tuple[Any, np.ndarray]:
        """The rows of an event with target `word`, as `Found`, and the gate's factors. (templates + caches,) float64"""
        tokens = np.append(context, np.uint32(word)).astype(np.uint32)
        cached = self.caches.rows(tokens, len(context), len(tokens))
        found = row_kernels.find(keys, tokens[-1:], self.matrix, self._folded, cached)
        return found, found.scale[:, 0].astype(np.float64)

    @cached_property
    def _beams(self) -> BeamScorer:
        return SnmBeams(self.extractor, self.matrix, self._folded, self.caches.layout)

    def _distribution(self, context: np.ndarray) -> np.ndarray:
        keys = self._keys(context)
        found, scale = self._look_up(keys, END, context)
        y: np.ndarray = scale[0] * self.matrix.unigrams.astype(np.float64)
        for q in np.flatnonzero(found.row_sum[1 : len(keys), 0] > 0) + 1:
            targets, weights = matrix_kernels.read_row(q, keys[q, 0], self.matrix)
            check_targets(self, targets)
            y[targets] += scale[q] * weights
        if len(self.caches):
            cache_kernels.add_distribution(context, scale[len(keys) :], self.caches.layout, y)
        with np.errstate(all="ignore"):  # `distribution` refuses what is no number
            y /= (scale * found.row_sum[:, 0]).sum()
        return y

    def to(self, device: str, *, labels: Sequence[str] | None = None) -> TensorModel:
        try:
            from snm.tensors.advance import TensorModel, device_of
        except ImportError as error:
            if getattr(error, "name", None) != "torch":
                raise
            raise MissingExtra("torch", "gpu", "moving a model to a device") from None
        self.check_structure()
        return TensorModel(self.extractor, self.matrix, self._folded, device_of(device), labels)

    def adapt(self, sentences: Text | Sentences, output: str | Path, **how: Any) -> SnmModel:
        from snm.scoring.adapting import adapt_gate

        adapt_gate(self, self.gate, sentences, output, **how)
        return SnmModel(output)

    def event_rows(self, tokens: np.ndarray) -> Iterator[tuple[slice, Found]]:
        """The weighed rows of a text's events, some tokens at a time. (templates + caches, events) each"""
        for start, stop in self.extractor.blocks(0, len(tokens)):
            keys, cached = self.extractor.keys(tokens, start, stop), self.caches.rows(tokens, start, stop)
            here = slice(start, stop)
            yield here, row_kernels.find(keys, tokens[here], self.matrix, self._folded, cached)

    def row_names(self) -> list[str]:
        """The feature type of each row of `event_rows`."""
        types = [str(self.spec.types[template.type_index]) for template in self.spec.templates]
        return [*types, *("cache" for _ in range(len(self.caches)))]

    def gate_events(self, text: Text) -> GateEvents:
        """The rows of a text's events, which a gate is learned on."""
        from snm.gate.events import gate_events

        return gate_events(self.extractor, self.matrix, text)

    def structure_faults(self) -> Iterator[tuple[bool, str]]:
        m = self.matrix
        disorder = m.starts[0] != 0 or (m.starts[1:] < m.starts[:-1]).any()
        yield bool(disorder), "the pages' starts are not in order"
        page = matrix_kernels.first_invalid_page(m, len(m.singles) > 0, len(self.vocabulary))
        yield page >= 0, f"page {page} of the matrix is invalid"

    def faults(self) -> Iterator[tuple[bool, str]]:
        yield from self.structure_faults()

    def explain(self, sentence: Sentence) -> Explanations:
        words = self._words(sentence)
        if not words:
            raise InputError("nothing to explain; expected a sentence of at least one word")
        tokens = np.append(self.context(sentence), np.uint32(END))
        first = len(tokens) - len(words) - 1
        return Explanations(self._explain(tokens[: k + 1], word) for k, word in enumerate([*words, "</S>"], first))

    def _explain(self, tokens: np.ndarray, word: str) -> Explanation:
        found, scale = self._look_up(self._keys(tokens[:-1]), tokens[-1], tokens[:-1])
        row_sums = scale * found.row_sum[:, 0]
        denominator = row_sums.sum()
        shares = scale * found.weight[:, 0] / denominator
        parts = [
            Part(
                self.feature_text(q, tokens[:-1]),
                float(shares[q]),
                float(row_sums[q] / denominator),
                float(scale[q]),
                shape=self.feature_shape(q),
            )
            for q in np.flatnonzero(found.row_sum[:, 0] > 0).tolist()
        ]
        parts.sort(key=lambda part: -part.share)
        return Explanation(word, sum(part.share for part in parts), parts)

    def feature_text(self, q: int, context: np.ndarray) -> str:
        """The feature of template q after `context`, as the paper writes it: [brown skip-2 over the lazy].

        A ~ stands before a word that is represented by its class.
        """
        if q >= len(self.spec.templates):
            return self._cache_text(self.spec.caches[q - len(self.spec.templates)].adjacent, context)
        template = self.spec.templates[q]
        feature_type = self.spec.types[template.type_index]
        if feature_type.family is not None:
            return f"[{feature_type}]"
        v, reach = self.vocabulary, template.r + template.s + template.a
        words = [v.words[i if i < v.first_field else BEGIN] for i in context[len(context) - reach :]]
        adjacent = words[len(words) - template.a :]
        if feature_type.side is not None:
            values = [v.words[i] for i in context if i >= v.first_field]
            value = next(value for value in reversed(values) if name_of(value) == feature_type.side)
            return f"[{' '.join([value[1:], *adjacent])}]"
        if template.r == 0:
            return f"[{' '.join(adjacent)}]"
        end = len(words) - template.a - template.s
        remote = [f"~{word}" if feature_type.classes else word for word in words[end - template.r : end]]
        skip = ["skip-*"] if feature_type.s is None else [f"skip-{template.s}"] if template.s else []
        return f"[{' '.join([*remote, *skip, *adjacent])}]"

    def feature_shape(self, q: int) -> tuple[int, int, int] | None:
        """(r, s, a) of the feature of template q; None of one that has more than words: a cache, a family, a field."""
        if q >= len(self.spec.templates):
            return None
        template = self.spec.templates[q]
        feature_type = self.spec.types[template.type_index]
        if feature_type.family is not None or feature_type.side is not None:
            return None
        return template.r, template.s, template.a

    def _cache_text(self, adjacent: int, context: np.ndarray) -> str:
        """A cache, and the words that its own follow: [cache of the]."""
        return f"[{' '.join(['cache', *(self.vocabulary.words[i] for i in context[len(context) - adjacent :])])}]"
