"""Feature keys of a text, over tensors: the same as those of `snm.features.extraction.Extractor`."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import torch
from torch import Tensor

from snm.features.extraction import Extractor
from snm.layouts.keys import TEMPLATE
from snm.tensors.hashing import REMOTE_MULTIPLIER, extend, mix64, signed, tensor_of

KEYS_PER_BLOCK = 1 << 25  # large enough that the time to launch a kernel does not matter


def has_triton(device: torch.device) -> bool:
    """Whether Triton kernels run on the device."""
    return device.type == "cuda" and find_spec("triton") is not None


class TokenBlocks:
    """A text on a device, and the keys of its events block by block."""

    def __init__(self, tokens: np.ndarray, extractor: Extractor, device: torch.device) -> None:
        self.extractor, self.device = extractor, device
        self.host_tokens = tokens
        self.tokens = tensor_of(tokens, device)
        self.by_class = self.tokens
        if extractor.spec.has_classes and extractor.classes is not None:
            self.by_class = tensor_of(extractor.classes[tokens].astype(np.uint32), device)
        self.positions = self._locate()
        self._templates = tensor_of(extractor.templates.view("<u8").reshape(-1, TEMPLATE.itemsize // 8), device)
        self._orders = int(max(extractor.templates["remote"].max(), extractor.templates["adjacent"].max())) + 1
        self.block = max(1, KEYS_PER_BLOCK // extractor.n_templates)
        self.triton = has_triton(device)

    def __len__(self) -> int:
        return len(self.tokens)

    def blocks(self) -> list[tuple[int, int]]:
        """Ranges of tokens whose keys are computed at one time."""
        return [(k, min(k + self.block, len(self))) for k in range(0, len(self), self.block)]

    def _locate(self) -> Tensor:
        """Distance of each token to its `<S>`; -1 where there is no event. (tokens,) int32"""
        vocabulary = self.extractor.vocabulary
        numbers = torch.arange(len(self.tokens), device=self.device)
        begins = torch.cummax(torch.where(self.tokens == vocabulary.begin, numbers, 0), 0).values
        distance = (numbers - begins).int()
        return torch.where(self.tokens == vocabulary.never_a_target, -1, distance)

    def keys(self, start: int, stop: int) -> Tensor:
        """Keys of the events whose targets are tokens[start:stop]. (templates, stop - start) int64"""
        keys = torch.empty((self.extractor.n_templates, stop - start), dtype=torch.int64, device=self.device)
        hash_mask = signed(self.extractor.layout.hash_mask)
        if self.triton:
            from snm.tensors.triton_features import extract

            extract(self.tokens, self.by_class, self.positions, self._templates, start, stop, hash_mask, keys)
        else:
            self._fill(keys, start, stop, hash_mask)
        if self.extractor.needs_text:
            own = len(self._templates)
            keys[own:] = tensor_of(self.extractor.keys(self.host_tokens, start, stop)[own:], self.device)
        return keys

    def _fill(self, keys: Tensor, start: int, stop: int, hash_mask: int) -> None:
        """Compute the keys of all templates except those of families."""
        begin = max(0, start - self.extractor.span)
        first, position = start - begin, self.positions[start:stop]
        chains = self._chains(self.tokens[begin:stop].long())
        class_chains = chains
        if self.by_class is not self.tokens:
            class_chains = self._chains(self.by_class[begin:stop].long())
        adjacent = [chain * REMOTE_MULTIPLIER for chain in chains]
        for q, (r, s, a, by_class, salt, tag, first_of_type) in enumerate(self._templates.tolist()):
            if r + a == 0:
                keys[q] = position > 0
                continue
            remote = (class_chains if by_class else chains)[r]
            mixed = mix64(adjacent[a][first:] ^ _shifted(remote, s + a)[first:] ^ salt)
            keys[q] = torch.where(position >= r + s + a, (mixed & hash_mask) | tag, 0)
            for p in range(first_of_type, q):  # equal features of a tied type are one
                keys[q] *= keys[p] != keys[q]

    def _chains(self, block: Tensor) -> list[Tensor]:
        """chains[n][k]: the chain of the n tokens before k, see `snm.layouts.keys`."""
        words = mix64(block + 1)
        chains = [torch.zeros_like(words)]
        for n in range(1, self._orders):
            chain = torch.zeros_like(words)
            chain[n:] = extend(chains[-1][n:], words[:-n])
            chains.append(chain)
        return chains


def _shifted(chain: Tensor, n: int) -> Tensor:
    """chain[k - n] at k; undefined for k < n."""
    return chain if n == 0 else torch.cat([chain[:1].expand(min(n, len(chain))), chain[:-n]])
