"""Training a two-level softmax in PyTorch: -log P of targets from their classes, and from the words of these."""

from __future__ import annotations

from collections.abc import Iterator

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
        self.places, self.starts = tensor(classes.places), tensor(classes.starts[:-1])
        self.sizes, self.class_of_row = tensor(np.diff(classes.starts)), tensor(classes.class_of_rows())
        self.banned = torch.zeros(len(classes), device=device)
        self.banned[tensor(classes.banned(never_targets))] = -torch.inf

    def loss(self, z: Tensor, targets: Tensor, vectors: Tensor, biases: Tensor, class_vectors: Tensor) -> Tensor:
        """-log P of each target; 0 where it is below 0. z: (events, embedding); (events,)"""
        known = targets >= 0
        rows = self.places[targets.clamp(min=0)]
        classes = self.class_of_row[rows]
        scores = F.linear(z, class_vectors[:, :-1], class_vectors[:, -1]).float() + self.banned
        loss = F.cross_entropy(scores, torch.where(known, classes, -100), reduction="none")
        inner = torch.nonzero(known & (self.sizes[classes] > 1))[:, 0]
        if not len(inner):
            return loss
        inner = inner[torch.argsort(classes[inner], stable=True)]
        return loss.index_add(0, inner, self._inner(z[inner], rows[inner], classes[inner], vectors, biases))

    def _inner(self, z: Tensor, rows: Tensor, classes: Tensor, vectors: Tensor, biases: Tensor) -> Tensor:
        """-log P of rows within their classes, of events sorted by class. (events,)"""
        counts = torch.bincount(classes, minlength=len(self.sizes))
        blocks = -(-counts // EVENTS)  # of each class
        first = torch.cumsum(counts, 0) - counts
        within = torch.arange(len(classes), device=z.device) - first[classes]
        block = (torch.cumsum(blocks, 0) - blocks)[classes] + within // EVENTS
        class_of_block = torch.repeat_interleave(torch.arange(len(blocks), device=z.device), blocks)
        own = z.new_zeros(len(class_of_block), EVENTS, z.shape[1]).index_put((block, within % EVENTS), z)
        sums = torch.zeros(own.shape[:2], device=z.device)
        sizes = self.sizes[class_of_block]
        of_width = [(width, chosen) for width, chosen in self._by_width(sizes) if len(chosen)]
        wanted = [self._rows(class_of_block[chosen], width, len(biases)) for width, chosen in of_width]
        # one look-up for all: each would have a gradient of all words
        found = F.embedding(torch.cat([rows, *(w.reshape(-1) for w in wanted)]), vectors, sparse=self.sparse)
        of_targets, *parts = found.split([len(rows), *(w.numel() for w in wanted)])
        for (width, chosen), in_class, part in zip(of_width, wanted, parts, strict=True):
            scores = torch.matmul(own[chosen], part.view(len(chosen), width, -1).transpose(1, 2)).float()
            scores = scores + biases[in_class][:, None]
            beyond = (torch.arange(width, device=z.device) >= sizes[chosen][:, None])[:, None]
            sums = sums.index_copy(0, chosen, torch.logsumexp(scores.masked_fill(beyond, -torch.inf), 2))
        return sums[block, within % EVENTS] - (z * of_targets).sum(1).float() - biases[rows]

    def _by_width(self, sizes: Tensor) -> Iterator[tuple[int, Tensor]]:
        """The blocks whose classes have up to so many words, and more than the width before."""
        for low, high in zip((1, *SIZES), SIZES, strict=False):
            yield high, torch.nonzero((sizes > low) & (sizes <= high))[:, 0]

    def _rows(self, classes: Tensor, width: int, words: int) -> Tensor:
        """The rows of the words of each class, and beyond it up to the width. (classes, width)"""
        return (self.starts[classes][:, None] + torch.arange(width, device=classes.device)).clamp(max=words - 1)
