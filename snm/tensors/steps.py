"""Training steps of the adjustment's weights, for batches of events.

`snm.kernels.adjustment` trains on sixteen events at a time. A GPU needs larger batches: gradients are summed by slot,
and each slot takes one step by its sum. `PlainStepper` is plain PyTorch; `snm.tensors.triton_adjustment` does the same
in Triton, without a round trip to memory between operations.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from snm.tensors.adjustment import Batch, LinkBuckets, Links, TensorAdjustment
from snm.tensors.features import has_triton


class Stepper(Protocol):
    def take(self, batch: Batch, sizes: list[int]) -> None:
        """Take one step for each batch; `sizes`: the number of events of each."""

    def loss(self) -> float:
        """The summed loss of all events so far."""


def stepper_for(adjustment: TensorAdjustment, leave_one_out: bool, rate: float) -> Stepper:
    if has_triton(adjustment.device):
        from snm.tensors.triton_adjustment import TritonStepper

        return TritonStepper(adjustment, leave_one_out, rate)
    return PlainStepper(adjustment, leave_one_out, rate)


class PlainStepper:
    def __init__(self, adjustment: TensorAdjustment, leave_one_out: bool, rate: float) -> None:
        self.a, self.leave_one_out, self.rate = adjustment, leave_one_out, rate
        self.sums = torch.zeros_like(adjustment.table)  # of gradients and, for AdaGrad, of their squares
        self._loss = torch.zeros((), dtype=torch.float64, device=adjustment.device)

    def loss(self) -> float:
        return float(self._loss)

    def take(self, batch: Batch, sizes: list[int]) -> None:
        first = 0
        for size in sizes:
            self._step(batch, first, first + size)
            first += size

    def _step(self, batch: Batch, first: int, last: int) -> None:
        begin, end = int(batch.ends[first]), int(batch.ends[last])
        events = batch.events[begin:end] - first
        links = batch.links.cut(begin, end)
        at_n, at_p = batch.at_negative.cut(begin, end), batch.at_positive.cut(begin, end)
        negative = batch.negative[begin:end] * self._factor(links, at_n)
        positive = batch.positive[begin:end] * self._factor(links, at_p)
        predicted = torch.zeros(last - first, device=self.a.device).index_add_(0, events, positive)
        self._loss -= torch.log(predicted[predicted > 0]).double().sum()
        self._loss += (negative + positive if self.leave_one_out else negative).double().sum()
        # without leave-one-out, `negative` is the whole first term of the gradient
        prediction = predicted[events]
        inverse = torch.where(prediction > 0, 1 / prediction, 0)
        positive = positive * ((1.0 if self.leave_one_out else 0.0) - inverse)
        if self.rate > 0:
            self._apply(self._scatter(links, at_n, at_p, negative, positive))

    def _factor(self, links: Links, buckets: LinkBuckets) -> Tensor:
        return self.a.exponent(links, buckets).exp().float()

    def _scatter(
        self, links: Links, at_n: LinkBuckets, at_p: LinkBuckets, negative: Tensor, positive: Tensor
    ) -> list[Tensor]:
        """Add gradients to `sums`; return their slots. Two parts of a link that share a slot are one gradient."""
        slots = []
        for c in self.a.conjunctions:
            same = (at_n.lines[c.group] == at_p.lines[c.group]) & (at_n.codes[c.group] == at_p.codes[c.group])
            n, p = negative * self.a.share(c, links, at_n), positive * self.a.share(c, links, at_p)
            parts = (at_n, torch.where(same, n + p, n)), (at_p, torch.where(same, 0.0, p))
            for buckets, gradient in parts:
                slots.append(self.a.slot(c, links, buckets))
                powers = (gradient, gradient * gradient)[: self.sums.shape[1]]
                self.sums.index_add_(0, slots[-1], torch.stack(powers, 1))
        return slots

    def _apply(self, touched: list[Tensor]) -> None:
        """Take the step of every touched slot. A repeated slot is written the same value again."""
        slots = torch.cat(touched)
        table, step = self.a.table, self.sums[slots, 0]
        if self.a.adagrad:
            squares = table[slots, 1] + self.sums[slots, 1]
            step = step / torch.sqrt(squares)
            table[slots, 1] = squares
        table[slots, 0] = table[slots, 0] - self.rate * step
        self.sums[slots] = 0
