"""Batches of sentences for a network, and scoring a text with them in PyTorch."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from snm.baselines.neural.networks import Features, Network
from snm.layouts.tokens import BEGIN

SCORING_BATCH = 1 << 15  # events


class Pieces(NamedTuple):
    """Sentences, or pieces of long ones: all of a text, or those of a batch."""

    starts: np.ndarray  # (pieces,): where each begins in the tokens
    lengths: np.ndarray  # (pieces,): events of each


def cut_sentences(tokens: np.ndarray, max_events: int) -> Pieces:
    """The sentences of a text, cut into pieces of at most `max_events`."""
    begins = np.flatnonzero(tokens == BEGIN)
    events = np.diff(np.append(begins, len(tokens))) - 1
    pieces = -(-events // max_events)
    number = np.arange(pieces.sum()) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    starts = np.repeat(begins, pieces) + number * max_events
    return Pieces(starts, np.minimum(np.repeat(events, pieces) - number * max_events, max_events))


def make_batches(pieces: Pieces, size: int, random: np.random.Generator | None) -> list[Pieces]:
    """Batches of at most `size` events, each of pieces of about one length; shuffled if `random` is given."""
    order = np.arange(len(pieces.starts)) if random is None else random.permutation(len(pieces.starts))
    order = order[np.argsort(-pieces.lengths[order], kind="stable")]
    starts, lengths = pieces.starts[order], pieces.lengths[order]
    batches, i = [], 0
    while i < len(starts):
        end = i + max(1, size // int(lengths[i]))
        batches.append(Pieces(starts[i:end], lengths[i:end]))
        i = end
    return batches if random is None else [batches[k] for k in random.permutation(len(batches))]


def inputs_and_targets(tokens: Tensor, batch: Pieces, never_a_target: int) -> tuple[Tensor, Tensor]:
    """Words and next words of a batch. (pieces, length) each

    A target is -1 past the end of a piece and where the word is never a target.
    """
    starts = torch.from_numpy(batch.starts).to(tokens.device)
    lengths = torch.from_numpy(batch.lengths).to(tokens.device)
    steps = torch.arange(int(batch.lengths.max()), device=tokens.device)
    inside = steps < lengths[:, None]
    positions = starts[:, None] + torch.where(inside, steps, 0)
    inputs = tokens[positions].long()
    targets = tokens[positions + 1].long()
    return inputs, torch.where(inside & (targets != never_a_target), targets, -1)


def score(network: Network, tokens: np.ndarray, features: bool) -> np.ndarray:
    """P of each token after the tokens before it in its sentence; 0 where it is no target. (tokens,) float64"""
    whole = torch.from_numpy(tokens.astype(np.int32)).to(network.device)
    out = torch.zeros(len(tokens), dtype=torch.float64, device=network.device)
    with torch.no_grad(), torch.backends.cudnn.flags(allow_tf32=False):  # as exact as on a CPU
        for batch in make_batches(cut_sentences(tokens, len(tokens)), SCORING_BATCH, None):
            inputs, targets = inputs_and_targets(whole, batch, network.shape.never_a_target)
            states = network.states(inputs)
            hashed = Features(network, inputs, scaled=True) if features else None
            losses = network.loss(inputs, targets, states, hashed).double()
            positions = torch.from_numpy(batch.starts).to(network.device)[:, None] + 1
            positions = positions + torch.arange(inputs.shape[1], device=network.device)
            is_target = targets.reshape(-1) >= 0
            out[positions.reshape(-1)[is_target]] = torch.exp(-losses[is_target])
    p: np.ndarray = out.cpu().numpy()
    return p
