"""TODO: docstring."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from snm.baselines.neural.networks import Features, Network
from snm.layouts.tokens import BEGIN

SCORED = 1 << 15  # tokens scored at a time


class Piece(NamedTuple):
    """Sentences, or pieces of long ones, of about one length: a row each."""

    starts: np.ndarray  # where each begins in the tokens
    lengths: np.ndarray  # events of each


def cut(tokens: np.ndarray, longest: int) -> Piece:
    """A text's sentences, in pieces of at most `longest` events."""
    begins = np.flatnonzero(tokens == BEGIN)
    events = np.diff(np.append(begins, len(tokens))) - 1
    pieces = -(-events // longest)
    number = np.arange(pieces.sum()) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    starts = np.repeat(begins, pieces) + number * longest
    return Piece(starts, np.minimum(np.repeat(events, pieces) - number * longest, longest))


def group(pieces: Piece, size: int, random: np.random.Generator | None) -> list[Piece]:
    """Batches of at most `size` events, of pieces of nearly one length; drawn and in random order with `random`."""
    order = np.arange(len(pieces.starts)) if random is None else random.permutation(len(pieces.starts))
    order = order[np.argsort(-pieces.lengths[order], kind="stable")]
    starts, lengths = pieces.starts[order], pieces.lengths[order]
    groups, i = [], 0
    while i < len(starts):
        end = i + max(1, size // int(lengths[i]))
        groups.append(Piece(starts[i:end], lengths[i:end]))
        i = end
    return groups if random is None else [groups[k] for k in random.permutation(len(groups))]


def take(tokens: Tensor, part: Piece, never_a_target: int) -> tuple[Tensor, Tensor]:
    """(inputs, targets) of a batch. (rows, length) each; a target is -1 past the end of a row and where none is."""
    starts = torch.from_numpy(part.starts).to(tokens.device)
    lengths = torch.from_numpy(part.lengths).to(tokens.device)
    steps = torch.arange(int(part.lengths.max()), device=tokens.device)
    there = steps < lengths[:, None]
    places = starts[:, None] + torch.where(there, steps, 0)
    inputs = tokens[places].long()
    targets = tokens[places + 1].long()
    return inputs, torch.where(there & (targets != never_a_target), targets, -1)


def score(network: Network, tokens: np.ndarray, features: bool) -> np.ndarray:
    """P of every token after those before it in its sentence; 0 of `<S>` and of words without a leaf. (tokens,)"""
    whole = torch.from_numpy(tokens.astype(np.int32)).to(network.device)
    out = torch.zeros(len(tokens), dtype=torch.float64, device=network.device)
    with torch.no_grad(), torch.backends.cudnn.flags(allow_tf32=False):  # as exact as on a CPU
        for part in group(cut(tokens, len(tokens)), SCORED, None):
            inputs, targets = take(whole, part, network.shape.never_a_target)
            states = network.states(inputs)
            hashed = Features(network, inputs, fixed=True) if features else None
            losses = network.loss(inputs, targets, states, hashed).double()
            places = torch.from_numpy(part.starts).to(network.device)[:, None] + 1
            places = places + torch.arange(inputs.shape[1], device=network.device)
            there = targets.reshape(-1) >= 0
            out[places.reshape(-1)[there]] = torch.exp(-losses[there])
    p: np.ndarray = out.cpu().numpy()
    return p
