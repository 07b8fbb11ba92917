"""One step of the adjustment function by a batch of events: predictions, gradients, AdaGrad.

`PlainStepper` is PyTorch alone. On a GPU the kernels of `snm.tensors.triton_steps` do the same without going to memory
between the operations.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from snm.tensors.adjustment import Batch, LinkCount, Links, TensorAdjustment
from snm.tensors.features import has_triton


class Stepper(Protocol):
    def take(self, batch: Batch, sizes: list[int]) -> None:
        """Steps by the events of what was prepared, so many at a time."""

    def loss(self) -> float:
        """The summed loss of all steps."""


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
        links, at_n, at_p = _cut(batch, begin, end)
        negative = batch.negative[begin:end] * self._factor(links, at_n)
        positive = batch.positive[begin:end] * self._factor(links, at_p)
        predicted = torch.zeros(last - first, device=self.a.device).index_add_(0, events, positive)
        self._loss -= torch.log(predicted[predicted > 0]).double().sum()
        self._loss += (negative + positive if self.leave_one_out else negative).double().sum()
        # without leave-one-out `negative` has the whole first term of the gradient
        of_event = predicted[events]
        pulled = torch.where(of_event > 0, 1 / of_event, 0)
        positive = positive * ((1.0 if self.leave_one_out else 0.0) - pulled)
        if self.rate > 0:
            self._apply(self._scatter(links, at_n, at_p, negative, positive))

    def _factor(self, links: Links, count: LinkCount) -> Tensor:
        return self.a.exponent(links, count).exp().float()

    def _scatter(
        self, links: Links, at_n: LinkCount, at_p: LinkCount, negative: Tensor, positive: Tensor
    ) -> list[Tensor]:
        """Add the gradients to all slots they belong to; return those. What falls on one slot together is one."""
        places = []
        for c in self.a.conjunctions:
            alike = (at_n.lines[c.group] == at_p.lines[c.group]) & (at_n.codes[c.group] == at_p.codes[c.group])
            n, p = negative * self.a.share(c, links, at_n), positive * self.a.share(c, links, at_p)
            parts = (at_n, torch.where(alike, n + p, n)), (at_p, torch.where(alike, 0.0, p))
            for count, gradient in parts:
                places.append(self.a.place(c, links, count))
                powers = (gradient, gradient * gradient)[: self.sums.shape[1]]
                self.sums.index_add_(0, places[-1], torch.stack(powers, 1))
        return places

    def _apply(self, touched: list[Tensor]) -> None:
        """Take the step of every slot that was touched; where it comes up twice, twice the same."""
        places = torch.cat(touched)
        table, step = self.a.table, self.sums[places, 0]
        if self.a.adagrad:
            seen = table[places, 1] + self.sums[places, 1]
            step = step / torch.sqrt(seen)
            table[places, 1] = seen
        table[places, 0] = table[places, 0] - self.rate * step
        self.sums[places] = 0


def _cut(batch: Batch, begin: int, end: int) -> tuple[Links, LinkCount, LinkCount]:
    """The links [begin, end)."""

    def cut(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else tensor[:, begin:end]

    links, n, p = batch.links, batch.at_negative, batch.at_positive
    return (
        Links(links.components[:, begin:end], cut(links.count_shares)),
        LinkCount(n.lines[:, begin:end], n.codes[:, begin:end], cut(n.shares)),
        LinkCount(p.lines[:, begin:end], p.codes[:, begin:end], cut(p.shares)),
    )
