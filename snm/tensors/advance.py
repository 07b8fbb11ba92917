"""Scores of all words after each of many states, on a device: for decoders that ask a model at every step.

The interface is that of NeMo's `NGramGPULanguageModel`: `get_init_states`, `advance`, `get_final`. Rows of M are plain
arrays on the device, sorted by key; those of a step are found by searching, and added up in one vector a state.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from snm.arguments import shown, whole_number
from snm.errors import SettingsError
from snm.features.extraction import Extractor
from snm.kernels.matrix_rows import copy_rows, count_rows
from snm.layouts.gate import INPUTS, MAX_GATE, SCALE, Gate, log_of_code
from snm.layouts.keys import TEMPLATE
from snm.layouts.matrix import MARK_BITS, Matrix
from snm.layouts.tokens import BEGIN, END, UNKNOWN
from snm.tensors.features import has_triton
from snm.tensors.hashing import REMOTE_MULTIPLIER, extend, mix64, shift_right, signed, tensor_of


def device_of(name: Any) -> torch.device:
    """A device by its name, which must be there."""
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, TypeError, ValueError, OverflowError) as error:
        reason = shown(str(error).split("\n")[0])
        raise SettingsError(f"device {shown(name)} cannot be used: {reason}; expected cuda or cpu") from None
    return device


class Rows:
    """The rows of M on a device."""

    def __init__(self, matrix: Matrix, device: torch.device) -> None:
        n_rows, n_links = count_rows(matrix)
        tops, offsets, codes = np.zeros(n_rows, np.int64), np.zeros(n_rows + 1, np.int64), np.zeros(n_rows, np.uint8)
        sums, weights = np.zeros(n_rows, np.float32), np.zeros(n_links, np.float32)
        targets = np.zeros(n_links, np.int32)
        copy_rows(matrix, tops, offsets, codes, sums, targets, weights)

        def moved(array: np.ndarray) -> Tensor:
            return torch.from_numpy(array).to(device)

        self.tops, self.offsets, self.codes, self.sums = map(moved, (tops, offsets, codes, sums))
        self.targets, self.weights = moved(targets), moved(weights)
        self.shift = int(matrix.shift) - MARK_BITS
        self.singles = moved(matrix.values[matrix.singles.astype(np.int64)].astype(np.float32))
        """Weights of features seen once. (types with such features, words)"""
        self.single_of_template = moved(matrix.single_of_template.copy())
        self._levels = [
            (torch.from_numpy(level).to(device), torch.from_numpy(matrix.parent_of_template[level]).to(device))
            for level in _levels_of(matrix.parent_of_template)
        ]

    def find(self, keys: Tensor) -> tuple[Tensor, Tensor]:
        """The row of each key, and whether there is one. (states, templates) int64"""
        if not len(self.tops):
            return torch.zeros_like(keys), torch.zeros_like(keys, dtype=torch.bool)
        tops = shift_right(keys, self.shift)
        rows = torch.searchsorted(self.tops, tops).clamp_(max=len(self.tops) - 1)
        found = (self.tops[rows] == tops) & (keys != 0)
        for level, parents in self._levels:  # a stored feature's parents are stored too
            found[:, level] &= found[:, parents] | (keys[:, parents] == 0)
        return rows, found


def _levels_of(parents: np.ndarray) -> list[np.ndarray]:
    """Templates with a parent, those whose parent has none first, then those with parents among these, and so on."""
    depths = np.zeros(len(parents), np.int64)
    for q, parent in enumerate(parents.tolist()):
        depths[q] = depths[parent] + 1 if parent > 0 else 0
    return [np.flatnonzero(depths == depth) for depth in range(1, int(depths.max(initial=0)) + 1)]


class NextStates:
    """The state after each word after each state, made where it is asked for: states[i, word]."""

    def __init__(self, states: Tensor, words: Tensor) -> None:
        self._states, self._words = states, words

    @property
    def shape(self) -> tuple[int, ...]:
        return len(self._states), len(self._words), self._states.shape[1]

    def __getitem__(self, chosen: Any) -> Tensor:
        """`next_states[beams, words]` of two tensors of the same shape: (..., width)"""
        if not isinstance(chosen, tuple) or len(chosen) != 2:
            raise SettingsError(f"next states at {shown(chosen)}; expected two indices: of states and of words")
        states, words = self._states[chosen[0]], self._words[chosen[1]]
        kept = states[..., 1:].expand(*words.shape, -1) if states.ndim <= words.ndim else states[..., 1:]
        return torch.cat([kept, words.unsqueeze(-1).expand(*kept.shape[:-1], 1)], -1)


class TensorModel:
    """An SNM on a device. Log probabilities are natural. States are word ids, int64, the last word last."""

    def __init__(
        self, extractor: Extractor, matrix: Matrix, gate: Gate, device: torch.device,
        labels: Sequence[str] | None = None,
    ) -> None:  # fmt: skip
        """`gate` as `Gate.folded` makes it. `labels`: the words of the columns; without them all of the vocabulary."""
        if extractor.needs_text or extractor.spec.caches:
            raise SettingsError(
                "features of families and of fields, and caches, cannot be computed on a device; expected a model of "
                "n-grams, skips and classes"
            )
        self.device, self.vocabulary = device, extractor.vocabulary
        self.width = extractor.state_width
        self.rows = Rows(matrix, device)
        self._unigrams = torch.from_numpy(np.array(matrix.unigrams)).to(device)
        self._unigram_sum = float(matrix.unigram_sum)
        self._set_templates(extractor)
        self._set_gate(gate)
        words = self._ids_of(labels)
        self.words = torch.from_numpy(words).to(device)
        """The word of each column."""
        self._columns = None if labels is None else self.words
        self._never = torch.tensor(sorted({BEGIN, int(self.vocabulary.never_a_target)}), device=device)
        self._triton = has_triton(device)

    def _ids_of(self, labels: Sequence[str] | None) -> np.ndarray:
        if labels is None:
            return np.arange(len(self.vocabulary), dtype=np.int64)
        if isinstance(labels, str) or not isinstance(labels, Iterable) or getattr(labels, "ndim", 1) == 0:
            raise SettingsError(f"labels is {shown(labels)}; expected a list of strings")
        labels = list(labels)
        if not labels or not all(isinstance(label, str) for label in labels):
            raise SettingsError(f"labels is {shown(labels)}; expected a list of strings, one or more")
        ids = {**self.vocabulary.ids, "</s>": END}
        found = np.array([ids.get(label, UNKNOWN) for label in labels], np.int64)
        if (found == UNKNOWN).all():
            raise SettingsError("the model has none of the labels as a word; expected a model of text in these tokens")
        return found

    def _set_templates(self, extractor: Extractor) -> None:
        t = extractor.templates
        self._hash_mask = signed(extractor.layout.hash_mask)
        self._longest = int(max(t["remote"].max(), t["adjacent"].max()))
        columns = tensor_of(t.view("<u8").reshape(-1, TEMPLATE.itemsize // 8), self.device)
        remote, skipped, adjacent, by_class, self._salt, self._tag, first = columns.unbind(1)
        self._empty = remote + adjacent == 0
        self._needed = remote + skipped + adjacent
        starts = self.width + 1
        classes = by_class * (self._longest + 1) * starts
        self._near = adjacent * starts
        self._far = classes + remote * starts + adjacent + skipped
        n = torch.arange(len(t), device=self.device)
        self._rivals = (n[None, :] < n[:, None]) & (n[None, :] >= first[:, None])  # (template, earlier one of its type)
        self._classes = None
        if extractor.classes is not None:
            self._classes = torch.from_numpy(extractor.classes.astype(np.int64)).to(self.device)

    def _set_gate(self, gate: Gate) -> None:
        def moved(part: np.ndarray) -> Tensor:
            return torch.from_numpy(np.array(part)).to(self.device)

        self._units = len(gate.bias)
        self._hidden = moved(gate.hidden).reshape(-1, self._units) if self._units else None
        self._bias, self._output, self._offset = moved(gate.bias), moved(gate.output), moved(gate.offset)
        self._log_of_code = moved(log_of_code())

    # ---------------------------------------------------------------------------------------------

    def get_init_states(self, batch_size: int, bos: bool = True) -> Tensor:
        """States at the beginning of a sentence, or of no context. (batch, width) int64"""
        n = whole_number("batch_size", batch_size, 1)
        return torch.full((n, self.width), BEGIN if bos else END, dtype=torch.int64, device=self.device)

    def advance(self, states: Tensor) -> tuple[Tensor, NextStates]:
        """ln P of each word after each state, and the states after them. (batch, width) to (batch, words)"""
        return self._scores(states, self._columns), NextStates(states, self.words)

    def get_final(self, states: Tensor) -> Tensor:
        """ln P of the end of the sentence after each state. (batch,)"""
        return self._scores(states, torch.tensor([END], device=self.device))[:, 0]

    def follow(self, states: Tensor, columns: Tensor) -> Tensor:
        """The state after the word of one column for each state. (batch, width) and (batch,) to (batch, width)"""
        return torch.cat([states[:, 1:], self.words[columns][:, None]], 1)

    # ---------------------------------------------------------------------------------------------

    def _scores(self, states: Tensor, columns: Tensor | None) -> Tensor:
        if states.ndim != 2 or states.shape[1] != self.width or states.dtype != torch.int64:
            raise SettingsError(
                f"states of shape {tuple(states.shape)} and type {states.dtype}; expected (batch, {self.width}) of "
                f"int64, as get_init_states makes them"
            )
        with torch.no_grad():
            return self._compute(states, columns)

    def _compute(self, states: Tensor, columns: Tensor | None) -> Tensor:
        keys = self._keys(states)
        rows, found = self.rows.find(keys)
        starts = self.rows.offsets[rows]
        lengths = torch.where(found, self.rows.offsets[rows + 1] - starts, 0)
        codes = self.rows.codes[rows].long()
        single = self._single_weights(starts, found & (codes == 0))
        sums = torch.where(found, torch.where(single > 0, single, self.rows.sums[rows]), 0.0)
        scale = self._scale(codes, lengths, sums)
        numerator = scale[:, :1] * self._unigrams
        self._add_links(numerator, starts, lengths, single, scale)
        denominator = scale[:, 0] * self._unigram_sum + (scale * sums).sum(1)
        numerator.index_fill_(1, self._never, 0.0)
        chosen = numerator if columns is None else numerator[:, columns]
        return torch.log(chosen) - torch.log(denominator)[:, None]

    def _keys(self, states: Tensor) -> Tensor:
        """Keys of the features after each state, 0 where there is none. (states, templates)"""
        recent = states.flip(1)
        near = self._chains(recent)
        far = near if self._classes is None else torch.cat([near, self._chains(self._classes[recent])], 1)
        before = torch.ones_like(recent)
        before[:, 1:] = recent[:, :-1] != BEGIN
        context = before.cumprod(1).sum(1)
        mixed = mix64(near[:, self._near] * REMOTE_MULTIPLIER ^ far[:, self._far] ^ self._salt)
        keys = (mixed & self._hash_mask) | self._tag
        keys = torch.where((context[:, None] >= self._needed) & ~self._empty, keys, 0)
        repeated = ((keys[:, :, None] == keys[:, None, :]) & self._rivals).any(2)
        return torch.where(repeated, 0, keys)

    def _chains(self, recent: Tensor) -> Tensor:
        """The chain of each number of words that begin at each word. (states, lengths times starts)"""
        words = torch.nn.functional.pad(mix64(recent + 1), (0, self._longest + 1))
        starts = self.width + 1
        chains = [torch.zeros_like(words[:, :starts])]
        for n in range(self._longest):
            chains.append(extend(chains[-1], words[:, n : n + starts]))
        return torch.cat(chains, 1)

    def _single_weights(self, starts: Tensor, single: Tensor) -> Tensor:
        """The weight of the only link of rows seen once, where it depends on the type; elsewhere 0."""
        if not len(self.rows.singles):
            return torch.zeros_like(starts, dtype=torch.float32)
        kinds = self.rows.single_of_template.expand_as(starts)
        targets = self.rows.targets[torch.where(single, starts, 0)].long()
        weights = self.rows.singles[kinds.clamp(min=0), targets]
        return torch.where(single & (kinds >= 0), weights, 0.0)

    def _scale(self, codes: Tensor, lengths: Tensor, sums: Tensor) -> Tensor:
        """The gate's factors. (states, templates)"""
        if self._hidden is None:
            return torch.ones_like(sums)
        here = (sums > 0).float()
        counts = here * self._log_of_code[codes]
        links = here * SCALE * torch.log(lengths.clamp(min=1).float()) - counts
        total = here * SCALE * torch.log(sums.clamp(min=torch.finfo(torch.float32).tiny))
        inputs = torch.stack([counts, links, total, here], 2).reshape(len(sums), -1)
        assert inputs.shape[1] == INPUTS * len(self._offset)
        active = torch.relu(inputs @ self._hidden + self._bias)
        return torch.exp((active @ self._output.T + self._offset).clamp(-MAX_GATE, MAX_GATE))

    def _add_links(self, sums: Tensor, starts: Tensor, lengths: Tensor, single: Tensor, scale: Tensor) -> None:
        """Add the scaled links of all rows to the words' sums. (states, words)"""
        if self._triton:
            from snm.tensors.triton_advance import add_links

            add_links(sums, starts, lengths, single, scale, self.rows.targets, self.rows.weights)
            return
        states, templates = lengths.nonzero(as_tuple=True)
        n = lengths[states, templates]
        pair = torch.repeat_interleave(torch.arange(len(n), device=self.device), n)
        link = torch.arange(len(pair), device=self.device) - (n.cumsum(0) - n)[pair] + starts[states, templates][pair]
        alone = single[states, templates][pair]
        weights = torch.where(alone > 0, alone, self.rows.weights[link]) * scale[states, templates][pair]
        sums.view(-1).index_add_(0, states[pair] * sums.shape[1] + self.rows.targets[link], weights)
