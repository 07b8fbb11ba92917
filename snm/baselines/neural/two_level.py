"""Training a two-level softmax in PyTorch: -log P of targets from their classes, and from the words of these."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from snm.baselines.neural.classes import SIZES, WordClasses

EVENTS = 32  # of one class that are multiplied together with its words


class TwoLevel:
    """The classes of the words on a device."""

    def __init__(self, classes: WordClasses, never_targets: list[int], device: torch.device) -> None:
        def tensor(array: np.ndarray) -> Tensor:
            return torch.from_numpy(array.astype(np.int64)).to(device)

        self.sparse = device.type == "cpu"  # gradients of looked up vectors; a GPU is faster with dense ones
        self.places = tensor(classes.places)
        self.class_of_row = tensor(classes.class_of_rows())
        self.first_rows = classes.starts[:-1]  # of each class
        sizes = np.diff(classes.starts)
        widths = np.searchsorted(SIZES, sizes)  # classes of about one size are multiplied together
        order = np.argsort(widths, kind="stable")
        self.rank = tensor(np.argsort(order))  # of each class, if they are ordered by width
        self.starts, self.sizes, self.widths = (
            tensor(classes.starts[:-1][order]),
            *map(tensor, (sizes[order], widths[order])),
        )
        self.banned = torch.zeros(len(classes), device=device)
        self.banned[tensor(classes.banned(never_targets))] = -torch.inf

    def loss(self, z: Tensor, targets: Tensor, vectors: Tensor, biases: Tensor, class_vectors: Tensor) -> Tensor:
        """-log P of each target; 0 where it is below 0. z: (events, embedding); (events,)"""
        known = targets >= 0
        rows = self.places[targets.clamp(min=0)]
        classes = self.class_of_row[rows]
        scores = F.linear(z, class_vectors[:, :-1], class_vectors[:, -1]).float() + self.banned
        loss = F.cross_entropy(scores, torch.where(known, classes, -100), reduction="none")
        ranks = self.rank[classes]
        inner = torch.nonzero(known & (self.sizes[ranks] > 1))[:, 0]
        if not len(inner):
            return loss
        inner = inner[torch.argsort(ranks[inner], stable=True)]
        return loss.index_add(0, inner, self._inner(z[inner], rows[inner], ranks[inner], vectors, biases))

    def _inner(self, z: Tensor, rows: Tensor, ranks: Tensor, vectors: Tensor, biases: Tensor) -> Tensor:
        """-log P of rows within their classes, of events sorted by the ranks of these. (events,)"""
        counts = torch.bincount(ranks, minlength=len(self.sizes))
        blocks = -(-counts // EVENTS)  # of each class
        first = torch.cumsum(counts, 0) - counts
        within = torch.arange(len(ranks), device=z.device) - first[ranks]
        block = (torch.cumsum(blocks, 0) - blocks)[ranks] + within // EVENTS
        rank_of_block = torch.repeat_interleave(torch.arange(len(blocks), device=z.device), blocks)
        of_width = torch.bincount(self.widths[rank_of_block], minlength=len(SIZES)).tolist()
        own = z.new_zeros(len(rank_of_block), EVENTS, z.shape[1]).index_put((block, within % EVENTS), z)
        wanted = [
            (self.starts[part][:, None] + torch.arange(width, device=z.device)).clamp(max=len(biases) - 1)
            for part, width in zip(rank_of_block.split(of_width), SIZES, strict=True)
        ]
        # one look-up for all: each would have a gradient of all words
        found = F.embedding(torch.cat([rows, *(w.reshape(-1) for w in wanted)]), vectors, sparse=self.sparse)
        of_targets, *parts = found.split([len(rows), *(w.numel() for w in wanted)])
        sums = []
        for own_part, ranks_part, in_class, part in zip(
            own.split(of_width), rank_of_block.split(of_width), wanted, parts, strict=True
        ):
            scores = torch.matmul(own_part, part.view(*in_class.shape, z.shape[1]).transpose(1, 2)).float()
            scores = scores + biases[in_class][:, None]
            beyond = torch.arange(in_class.shape[1], device=z.device) >= self.sizes[ranks_part][:, None]
            sums.append(torch.logsumexp(scores.masked_fill(beyond[:, None], -torch.inf), 2))
        return torch.cat(sums)[block, within % EVENTS] - (z * of_targets).sum(1).float() - biases[rows]
