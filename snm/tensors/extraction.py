"""Feature keys of a block of tokens, as `snm.features.Extractor.keys` makes them, on any device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from snm.features import Extractor
from snm.tensors.hashing import REMOTE, extend, mix64, signed, tensor_of

if TYPE_CHECKING:
    from torch import Tensor

KEYS_A_BLOCK = 1 << 25  # of a block of events: large enough that starting a kernel costs nothing beside its work


class TokenBlocks:
    """A text on a device, and the keys of its events block by block."""

    def __init__(self, tokens: np.ndarray, extractor: Extractor, device: torch.device) -> None:
        self.extractor, self.device = extractor, device
        self.host_tokens = tokens
        self.tokens = tensor_of(tokens, device)
        self.classes = None
        if extractor.spec.has_classes and extractor.classes is not None:
            self.classes = torch.from_numpy(extractor.classes.astype(np.int64)).to(device)
        table = extractor.slot_table
        self._slots = [[signed(int(number)) for number in row] for row in table]
        self._orders = max(max(row[0], row[2]) for row in self._slots) + 1
        self.block = max(1, KEYS_A_BLOCK // extractor.n_slots)

    def __len__(self) -> int:
        return len(self.tokens)

    def blocks(self) -> list[tuple[int, int]]:
        return [(k, min(k + self.block, len(self))) for k in range(0, len(self), self.block)]

    def keys(self, start: int, stop: int) -> Tensor:
        """Keys of the events whose targets are tokens[start:stop], the empty feature's too. (slots, stop - start)"""
        begin = max(0, start - self.extractor.span)
        block, first = self.tokens[begin:stop].long(), start - begin
        position = self._locate(block, first)
        chains = self._chains(block)
        by_class = chains if self.classes is None else self._chains(self.classes[block])
        nearest = [chain * REMOTE for chain in chains]
        keys = torch.empty((self.extractor.n_slots, stop - start), dtype=torch.int64, device=self.device)
        hash_mask = signed(self.extractor.layout.hash_mask)
        for q, (r, s, a, of_classes, salt, tag, group) in enumerate(self._slots):
            if r + a == 0:
                keys[q] = (position > 0).long()
                continue
            far = (by_class if of_classes else chains)[r]
            mixed = mix64(nearest[a][first:] ^ _shifted(far, s + a)[first:] ^ salt)
            keys[q] = torch.where(position >= r + s + a, (mixed & hash_mask) | tag, 0)
            for p in range(group, q):
                keys[q] *= keys[p] != keys[q]
        if self.extractor.has_families:
            own = len(self._slots)
            keys[own:] = tensor_of(self.extractor.keys(self.host_tokens, start, stop)[own:], self.device)
        return keys

    def _locate(self, block: Tensor, first: int) -> Tensor:
        """Distance of each token to its `<S>`, or to the block's first token; -1 where there is no event."""
        vocabulary = self.extractor.vocabulary
        places = torch.arange(len(block), device=self.device)
        begins = torch.cummax(torch.where(block == vocabulary.begin, places, 0), 0).values
        distance = (places - begins)[first:]
        return torch.where(block[first:] == vocabulary.never_a_target, -1, distance)

    def _chains(self, block: Tensor) -> list[Tensor]:
        """chains[n][k]: the chain of the n tokens before k, nearest first."""
        words = mix64(block + 1)
        chains = [torch.zeros_like(words)]
        for n in range(1, self._orders):
            made = torch.zeros_like(words)
            made[n:] = extend(chains[-1][n:], words[:-n])
            chains.append(made)
        return chains


def _shifted(chain: Tensor, n: int) -> Tensor:
    """chain[k - n] at k; anything where that is before the block."""
    return chain if n == 0 else torch.cat([chain[:1].expand(min(n, len(chain))), chain[:-n]])
