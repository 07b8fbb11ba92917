"""The networks in PyTorch, for training on a GPU or a CPU and for scoring on a GPU.

A network computes log P of the targets of a batch of sentences. It has a recurrent layer or none, and one of three
outputs: a hierarchical softmax, which also uses hashed features of the context; an adaptive softmax; or a softmax of
two levels, over classes and the words of a class.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from snm.baselines.neural.classes import WordClasses
from snm.baselines.neural.tree import Tree
from snm.baselines.neural.two_level import TwoLevel
from snm.layouts.tokens import BEGIN
from snm.tensors.hashing import MULTIPLIER, extend, mix64, shift_right

DENSE_NODES = 1024  # nodes whose scores are computed by one matrix product: nine tenths of the steps of all paths
CUTS = 8192, 65536  # words before the adaptive softmax's first and second tail
INITIAL_DEVIATION = 0.05  # of word vectors


@dataclass(frozen=True)
class Shape:
    """The description of a network in the manifest."""

    words: int
    never_a_target: int
    cell: str | None
    hidden: int  # units; 0 without a recurrent layer
    embedding: int
    softmax: str
    order: int  # of the hashed features; 0 without them
    slots: int

    @property
    def bounds(self) -> list[tuple[int, int]]:
        """[first, end) of the parts of the vocabulary: head and tails of an adaptive softmax; with a tree, one part."""
        edges = [0, *(cut for cut in CUTS if cut < self.words and self.softmax == "adaptive"), self.words]
        return list(pairwise(edges))


class Network(nn.Module):
    """Parameters, which Adam trains; a table of feature weights, which AdaGrad trains; and scales of these weights."""

    def __init__(self, shape: Shape, grouping: Tree | WordClasses | None, device: str) -> None:
        super().__init__()
        self.shape, self.device = shape, torch.device(device)
        self.table: Tensor | None = None
        if shape.hidden:
            self.vectors = nn.ParameterList([self._empty(b - a, shape.embedding) for a, b in shape.bounds])
            kinds = {"rnn": nn.RNN, "lstm": nn.LSTM}
            self.layer = kinds[shape.cell or ""](shape.embedding, shape.hidden, batch_first=True, device="meta")
            self.layer = self.layer.to_empty(device=self.device)
        if isinstance(grouping, Tree):
            tree = grouping
            starts, steps = tree.paths()
            self.path_starts, self.path_steps = self._tensor(starts), self._tensor(steps.astype(np.int64))
            self.starts = self._empty(len(tree)).requires_grad_(shape.hidden > 0)
            if shape.hidden:
                self.nodes = self._empty(len(tree), shape.hidden)
            if shape.order:
                self.table = torch.zeros(shape.slots, device=self.device)
                self.scales = torch.ones(shape.order, device=self.device)
            return
        self.projection, self.biases = self._empty(shape.embedding, shape.hidden), self._empty(shape.words)
        if grouping is not None:
            self.class_vectors = self._empty(len(grouping), shape.embedding + 1)
            self.two_level = TwoLevel(grouping, [BEGIN, shape.never_a_target], self.device)
        else:
            self.parts = self._empty(len(shape.bounds) - 1, shape.embedding + 1)
            self.banned = torch.zeros(shape.bounds[0][1] + len(self.parts), device=self.device)
            self.banned[[BEGIN, shape.never_a_target]] = -torch.inf

    def _empty(self, *size: int) -> nn.Parameter:
        return nn.Parameter(torch.zeros(size, device=self.device))

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self.device)

    def start(self, counts: np.ndarray, odds: np.ndarray | None, seed: int) -> None:
        """Initialise weights at random, and biases such that the network predicts the words' frequencies."""
        random = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name, p in self.named_parameters():
                if name.startswith(("layer.weight", "projection")):
                    p.copy_((torch.rand(p.shape, generator=random) * 2 - 1) * p.shape[1] ** -0.5)
                elif name.startswith(("vectors", "class_vectors")):
                    p.copy_(torch.randn(p.shape, generator=random) * INITIAL_DEVIATION)
                else:
                    p.zero_()
            if self.shape.cell == "lstm":
                self.layer.bias_ih_l0[self.shape.hidden : 2 * self.shape.hidden] = 1.0  # of the forget gate
            if odds is not None:
                self.starts.copy_(self._tensor(odds))
                return
            logs = np.log(np.maximum(counts, 1) / max(1, counts.sum())).astype(np.float32)
            if self.shape.softmax == "classes":
                two = self.two_level
                in_rows = np.empty_like(logs)
                in_rows[two.places.cpu().numpy()] = logs
                self.biases.copy_(self._tensor(in_rows))
                sums = np.logaddexp.reduceat(in_rows, two.first_rows)
                self.class_vectors[:, -1] = self._tensor(sums)
            else:
                self.biases.copy_(self._tensor(logs))
                for i, (a, b) in enumerate(self.shape.bounds[1:]):
                    self.parts[i, -1] = float(np.logaddexp.reduce(logs[a:b]))

    # -- the layer

    def states(self, inputs: Tensor, dropout: float = 0.0, random: torch.Generator | None = None) -> Tensor | None:
        """The hidden state after each word of a batch; None without a recurrent layer. (rows, length, hidden)"""
        if not self.shape.hidden:
            return None
        x = self._look_up(inputs)
        states: Tensor = self.layer(_drop(x, dropout, random))[0]
        return _drop(states, dropout, random)

    def _look_up(self, words: Tensor) -> Tensor:
        if self.shape.softmax == "classes":
            return F.embedding(self.two_level.places[words], self.vectors[0], sparse=self.two_level.sparse)
        found = []
        for part, (a, b) in zip(self.vectors, self.shape.bounds, strict=True):
            # words of other parts are spread over this one: on a single row, adding up its gradient would be slow
            vectors = F.embedding((words - a) % (b - a), part)
            found.append(vectors if b - a == self.shape.words else vectors * ((words >= a) & (words < b))[..., None])
        return torch.stack(found).sum(0) if len(found) > 1 else found[0]

    # -- the outputs

    def loss(self, inputs: Tensor, targets: Tensor, states: Tensor | None, features: Features | None) -> Tensor:
        """-log P of each target; 0 where the target is below 0. (rows * length,)"""
        flat = None if states is None else states.reshape(-1, self.shape.hidden)
        if self.shape.softmax == "adaptive":
            assert flat is not None
            return self._softmax_loss(flat, targets.reshape(-1))
        if self.shape.softmax == "classes":
            assert flat is not None
            z = F.linear(flat, self.projection)
            return self.two_level.loss(z, targets.reshape(-1), self.vectors[0], self.biases, self.class_vectors)
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
        side, events, scores, weights = self.decisions(targets, states, features)
        if features is not None and weights is not None:
            scores = scores + features.sum_up(weights)
        losses = F.softplus(torch.where(side > 0, -scores, scores))
        return torch.zeros(len(targets), device=self.device).index_add(0, events, losses)

    def decisions(
        self, targets: Tensor, states: Tensor | None, features: Features | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """The decisions on the targets' paths: side, event, score without features, and weight of each feature.

        (decisions,) each, and (decisions, order); an event is the number of a target.
        """
        steps, events = self._paths(targets)
        node, side = steps >> 1, steps & 1
        scores = self.starts.index_select(0, node)  # unlike [], it adds up its gradient without sorting
        if states is not None:
            scores = scores + self._node_scores(node, events, states)
        return side, events, scores, None if features is None else features.weights(node, events)

    def _paths(self, targets: Tensor) -> tuple[Tensor, Tensor]:
        """The steps of all targets' paths up the tree, and the event of each step; no steps for a target below 0."""
        known = targets.clamp(min=0)
        begins = self.path_starts[known]
        lengths = torch.where(targets < 0, 0, self.path_starts[known + 1] - begins)
        events = torch.repeat_interleave(torch.arange(len(targets), device=self.device), lengths)
        first = torch.cumsum(lengths, 0) - lengths
        positions = torch.arange(len(events), device=self.device) + (begins - first)[events]
        return self.path_steps[positions], events

    def _node_scores(self, node: Tensor, events: Tensor, states: Tensor) -> Tensor:
        """Products of nodes' vectors with states: all products with frequent nodes, and the needed ones with others."""
        dense = min(DENSE_NODES, len(self.nodes))
        products = F.linear(states, self.nodes[:dense])
        scores = products.reshape(-1).index_select(0, events * dense + node.clamp(max=dense - 1)).float()
        if dense == len(self.nodes):
            return scores
        rare = torch.nonzero(node >= dense)[:, 0]
        products = (F.embedding(node[rare], self.nodes) * states[events[rare]]).sum(1).float()
        return scores.index_copy(0, rare, products)

    # -- on disk

    def arrays(self) -> Iterator[tuple[str, np.ndarray]]:
        """(name, array) of all arrays of the model."""
        for name, p in self.named_parameters():
            yield name, p.detach().cpu().numpy()
        for name, tensor in self.tables().items():
            yield name, tensor.cpu().numpy()

    def fill(self, arrays: dict[str, np.ndarray]) -> None:
        """Set the weights to the arrays of a model."""
        for name, tensor in {**dict(self.named_parameters()), **self.tables()}.items():
            tensor.detach().copy_(torch.from_numpy(np.array(arrays[name])))

    def tables(self) -> dict[str, Tensor]:
        """The tensors that autograd does not train."""
        return {} if self.table is None else {"table": self.table, "scales": self.scales}


def _drop(x: Tensor, dropout: float, random: torch.Generator | None) -> Tensor:
    if not dropout:
        return x
    kept = torch.empty(x.shape, dtype=x.dtype, device=x.device).bernoulli_(1 - dropout, generator=random)
    return x * kept.div_(1 - dropout)


def hash_contexts(inputs: Tensor, order: int) -> Tensor:
    """Hashes of the contexts of 0, 1, 2 … words after each word; 0 where there is none. (rows, length, order)"""
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
    """The hashed features of a batch: their part of the scores, and the AdaGrad step that trains their weights."""

    def __init__(self, network: Network, inputs: Tensor, scaled: bool = False) -> None:
        """`scaled`: multiply weights by the scales, which is left out in training."""
        assert network.table is not None
        self.table, self.scales, self.scaled = network.table, network.scales, scaled
        self.shift = 64 - (len(network.table) - 1).bit_length()
        self.hashes = hash_contexts(inputs, network.shape.order).reshape(-1, network.shape.order)
        self.sums: Tensor | None = None

    def weights(self, node: Tensor, events: Tensor) -> Tensor:
        """The weight of each feature for each decision; 0 where there is no such context. (decisions, order)"""
        hashes = self.hashes[events]
        self.present = hashes != 0
        self.slots = shift_right(hashes + (node * MULTIPLIER)[:, None], self.shift)
        return self.table[self.slots] * self.present

    def sum_up(self, weights: Tensor) -> Tensor:
        """The features' part of the scores. (decisions,)"""
        if self.scaled:
            return weights @ self.scales
        self.sums = weights.sum(1).requires_grad_()
        return self.sums

    def step(self, rate: float, scale: float, gradient: Tensor, squares: Tensor) -> None:
        """Take an AdaGrad step. `gradient` is a table of zeros, and is all zero again afterwards.

        The scores' gradient is multiplied by `scale`.
        """
        assert self.sums is not None
        assert self.sums.grad is not None
        with torch.no_grad():
            slots = self.slots[self.present]
            each = (self.sums.grad * scale)[:, None].expand(self.present.shape)[self.present]
            gradient.index_add_(0, slots, each)
            summed = gradient[slots]
            # a slot that occurs several times is written several times, with the same value
            total = squares[slots] + summed * summed
            squares[slots] = total
            self.table[slots] = self.table[slots] - rate * summed / total.sqrt()
            gradient[slots] = 0
