"""The neural models' networks in PyTorch: what is trained, on a GPU or a CPU.

A network gives log P of every target of a batch of sentences. It is a recurrent layer or none, below one of two
outputs: a tree of binary decisions with hashed features of the context beside the layer, or an adaptive softmax.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from snm.baselines.neural.tree import Tree
from snm.layouts.tokens import BEGIN
from snm.tensors.hashing import MULTIPLIER, extend, mix64, shift_right

DENSE_NODES = 1024  # of the tree, whose scores are one matrix product: nine tenths of the ways lead through them
CUTS = 8192, 65536  # words of the adaptive softmax's first part, and of its first two
SPREAD = 0.05  # of the weights at the start


@dataclass(frozen=True)
class Shape:
    """What a network is, beside its weights. `order` is 0 where there are no features, `hidden` where no layer."""

    words: int
    never_a_target: int
    cell: str | None
    hidden: int
    embedding: int
    softmax: str
    order: int
    slots: int

    @property
    def bounds(self) -> list[tuple[int, int]]:
        """First and last word, and one more, of the parts of the adaptive softmax; of all words with a tree."""
        edges = [0, *(cut for cut in CUTS if cut < self.words and self.softmax == "adaptive"), self.words]
        return list(pairwise(edges))


class Network(nn.Module):
    """All that Adam trains, the table of feature weights, which AdaGrad does, and their scales, learned last."""

    def __init__(self, shape: Shape, tree: Tree | None, device: str) -> None:
        super().__init__()
        self.shape, self.device = shape, torch.device(device)
        self.table: Tensor | None = None
        if shape.hidden:
            self.vectors = nn.ParameterList([self._empty(b - a, shape.embedding) for a, b in shape.bounds])
            kinds = {"rnn": nn.RNN, "lstm": nn.LSTM}
            self.layer = kinds[shape.cell or ""](shape.embedding, shape.hidden, batch_first=True, device="meta")
            self.layer = self.layer.to_empty(device=self.device)
        if tree is not None:
            starts, steps = tree.paths()
            self.path_starts, self.path_steps = self._tensor(starts), self._tensor(steps.astype(np.int64))
            self.starts = self._empty(len(tree)).requires_grad_(shape.hidden > 0)
            if shape.hidden:
                self.nodes = self._empty(len(tree), shape.hidden)
            if shape.order:
                self.table = torch.zeros(shape.slots, device=self.device)
                self.scales = torch.ones(shape.order, device=self.device)
        else:
            self.projection = self._empty(shape.embedding, shape.hidden)
            self.biases = self._empty(shape.words)
            self.parts = self._empty(len(shape.bounds) - 1, shape.embedding + 1)
            self.banned = torch.zeros(shape.bounds[0][1] + len(self.parts), device=self.device)
            self.banned[[BEGIN, shape.never_a_target]] = -torch.inf

    def _empty(self, *size: int) -> nn.Parameter:
        return nn.Parameter(torch.zeros(size, device=self.device))

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self.device)

    def start(self, counts: np.ndarray, odds: np.ndarray | None, seed: int) -> None:
        """Weights at random, and scores that begin at the words' frequencies."""
        random = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name, p in self.named_parameters():
                if name.startswith(("layer.weight", "projection")):
                    p.copy_((torch.rand(p.shape, generator=random) * 2 - 1) * p.shape[1] ** -0.5)
                elif name.startswith("vectors"):
                    p.copy_(torch.randn(p.shape, generator=random) * SPREAD)
                else:
                    p.zero_()
            if self.shape.cell == "lstm":
                self.layer.bias_ih_l0[self.shape.hidden : 2 * self.shape.hidden] = 1.0  # what is known is kept at first
            if odds is not None:
                self.starts.copy_(self._tensor(odds))
            else:
                logs = np.log(np.maximum(counts, 1) / max(1, counts.sum())).astype(np.float32)
                self.biases.copy_(self._tensor(logs))
                for i, (a, b) in enumerate(self.shape.bounds[1:]):
                    self.parts[i, -1] = float(np.logaddexp.reduce(logs[a:b]))

    # -- the layer

    def states(self, inputs: Tensor, dropout: float = 0.0, random: torch.Generator | None = None) -> Tensor | None:
        """The hidden state after every word of sentences that begin with it. (rows, length, hidden)"""
        if not self.shape.hidden:
            return None
        x = self._look_up(inputs)
        states: Tensor = self.layer(_drop(x, dropout, random))[0]
        return _drop(states, dropout, random)

    def _look_up(self, words: Tensor) -> Tensor:
        found = []
        for part, (a, b) in zip(self.vectors, self.shape.bounds, strict=True):
            # words of other parts are spread over this one: all on one row would make its gradient slow to add up
            vectors = F.embedding((words - a) % (b - a), part)
            found.append(vectors if b - a == self.shape.words else vectors * ((words >= a) & (words < b))[..., None])
        return torch.stack(found).sum(0) if len(found) > 1 else found[0]

    # -- the outputs

    def loss(self, inputs: Tensor, targets: Tensor, states: Tensor | None, features: Features | None) -> Tensor:
        """-log P of every target, 0 where the target is below 0. (rows * length,)"""
        flat = None if states is None else states.reshape(-1, self.shape.hidden)
        if self.shape.softmax == "adaptive":
            assert flat is not None
            return self._softmax_loss(flat, targets.reshape(-1))
        return self._tree_loss(targets.reshape(-1), flat, features)

    def _softmax_loss(self, states: Tensor, targets: Tensor) -> Tensor:
        z = F.linear(states, self.projection)
        bounds = self.shape.bounds
        first = bounds[0][1]
        part_of = sum(((targets >= a).long() for a, _ in bounds[1:]), torch.zeros_like(targets))
        scores = F.linear(z, self.vectors[0], self.biases[:first])
        parts = F.linear(z, self.parts[:, :-1], self.parts[:, -1])
        head = torch.cat([scores, parts], 1) + self.banned
        in_head = torch.where(part_of > 0, first + part_of - 1, targets)
        loss = F.cross_entropy(head, torch.where(targets < 0, -100, in_head), reduction="none")
        for i, (a, b) in enumerate(bounds[1:], 1):
            rows = torch.nonzero(part_of == i)[:, 0]
            tail = F.linear(z[rows], self.vectors[i], self.biases[a:b])
            loss = loss.index_add(0, rows, F.cross_entropy(tail, targets[rows] - a, reduction="none"))
        return loss

    def _tree_loss(self, targets: Tensor, states: Tensor | None, features: Features | None) -> Tensor:
        side, events, scores, brought = self.decisions(targets, states, features)
        if features is not None and brought is not None:
            scores = scores + features.sum_up(brought)
        losses = F.softplus(torch.where(side > 0, -scores, scores))
        return torch.zeros(len(targets), device=self.device).index_add(0, events, losses)

    def decisions(
        self, targets: Tensor, states: Tensor | None, features: Features | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Of every node on the targets' ways: the side taken, which target's it is, its score, and, apart, what each
        feature brings to that. (nodes,) three times, (nodes, order)"""
        steps, events = self.ways(targets)
        node, side = steps >> 1, steps & 1
        scores = self.starts.index_select(0, node)  # whose gradient adds up without sorting, as that of [] does not
        if states is not None:
            scores = scores + self._node_scores(node, events, states)
        return side, events, scores, None if features is None else features.weights(node, events)

    def ways(self, targets: Tensor) -> tuple[Tensor, Tensor]:
        """The steps of all targets' ways up the tree, and which target each is of; none for a target below 0."""
        known = targets.clamp(min=0)
        begins = self.path_starts[known]
        lengths = torch.where(targets < 0, 0, self.path_starts[known + 1] - begins)
        events = torch.repeat_interleave(torch.arange(len(targets), device=self.device), lengths)
        first = torch.cumsum(lengths, 0) - lengths
        places = torch.arange(len(events), device=self.device) + (begins - first)[events]
        return self.path_steps[places], events

    def _node_scores(self, node: Tensor, events: Tensor, states: Tensor) -> Tensor:
        """Products of nodes' vectors with states: of the frequent nodes all, of the others those asked for."""
        dense = min(DENSE_NODES, len(self.nodes))
        all_of = F.linear(states, self.nodes[:dense])
        scores = all_of.reshape(-1).index_select(0, events * dense + node.clamp(max=dense - 1)).float()
        if dense == len(self.nodes):
            return scores
        rare = torch.nonzero(node >= dense)[:, 0]
        products = (F.embedding(node[rare], self.nodes) * states[events[rare]]).sum(1).float()
        return scores.index_copy(0, rare, products)

    # -- on disk

    def arrays(self) -> Iterator[tuple[str, np.ndarray]]:
        """Every array of the model, and its name."""
        for name, p in self.named_parameters():
            yield name, p.detach().cpu().numpy()
        for name, tensor in self.tables().items():
            yield name, tensor.cpu().numpy()

    def fill(self, arrays: dict[str, np.ndarray]) -> None:
        """The reverse."""
        for name, tensor in {**dict(self.named_parameters()), **self.tables()}.items():
            tensor.detach().copy_(torch.from_numpy(np.array(arrays[name])))

    def tables(self) -> dict[str, Tensor]:
        """What autograd does not see."""
        return {} if self.table is None else {"table": self.table, "scales": self.scales}


def _drop(x: Tensor, dropout: float, random: torch.Generator | None) -> Tensor:
    if not dropout:
        return x
    kept = torch.empty(x.shape, dtype=x.dtype, device=x.device).bernoulli_(1 - dropout, generator=random)
    return x * kept.div_(1 - dropout)


def hash_contexts(inputs: Tensor, order: int) -> Tensor:
    """After every word of sentences, the hash of the contexts of 0, 1, 2 … words; 0 where there is none. (…, order)"""
    words = mix64(inputs + 1)
    chains = [torch.zeros_like(words)]
    for a in range(1, order):
        earlier = F.pad(words, (a - 1, 0))[:, : words.shape[1]]
        chains.append(extend(chains[-1], earlier))
    length = torch.arange(order, device=inputs.device)
    hashes = mix64(torch.stack(chains, -1) ^ mix64(length + 1)) | 1
    before = torch.arange(words.shape[1], device=inputs.device)[:, None] + 1
    return torch.where(length <= before, hashes, 0)


class Features:
    """A batch's hashed features: their part of the scores, and AdaGrad's step when the gradient of that is known.

    While the weights are trained (`fixed` is False) the scales are left out.
    """

    def __init__(self, network: Network, inputs: Tensor, fixed: bool = False) -> None:
        assert network.table is not None
        self.table, self.scales, self.fixed = network.table, network.scales, fixed
        self.shift = 64 - (len(network.table) - 1).bit_length()
        self.hashes = hash_contexts(inputs, network.shape.order).reshape(-1, network.shape.order)
        self.sums: Tensor | None = None

    def weights(self, node: Tensor, events: Tensor) -> Tensor:
        """What every feature brings to the scores of nodes. (nodes, order)"""
        hashes = self.hashes[events]
        self.there = hashes != 0
        self.slots = shift_right(hashes + (node * MULTIPLIER)[:, None], self.shift)
        return self.table[self.slots] * self.there

    def sum_up(self, weights: Tensor) -> Tensor:
        """The features' part of the scores. (nodes,)"""
        if self.fixed:
            return weights @ self.scales
        self.sums = weights.sum(1).requires_grad_()
        return self.sums

    def step(self, rate: float, scale: float, gradient: Tensor, squares: Tensor) -> None:
        """A step of AdaGrad by the whole batch's gradient; `gradient` is a table of zeros, and is again after it."""
        assert self.sums is not None
        assert self.sums.grad is not None
        with torch.no_grad():
            slots = self.slots[self.there]
            each = (self.sums.grad * scale)[:, None].expand(self.there.shape)[self.there]
            gradient.index_add_(0, slots, each)
            summed = gradient[slots]
            # a slot that comes up several times is written several times, with one and the same value
            total = squares[slots] + summed * summed
            squares[slots] = total
            self.table[slots] = self.table[slots] - rate * summed / total.sqrt()
            gradient[slots] = 0
