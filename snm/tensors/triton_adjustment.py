"""Triton kernels that take training steps, see `snm.tensors.steps`.

For each batch the first kernel predicts, the second sums gradients by slot, and the third takes the steps. A program
processes a block of links. Hashes stay in registers, so kernels access little memory but the table, where PyTorch
writes and reads every hash.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from snm.layouts.weights import MAX_EXPONENT
from snm.tensors.adjustment import Batch, TensorAdjustment

BLOCK = 128  # links of a program


@triton.jit
def _unsigned(pointer, at, there):
    return tl.load(pointer + at, mask=there, other=0).to(tl.uint64, bitcast=True)


@triton.jit
def _load_components(links, stride, at, there):
    """The hashes of the components of a block of links."""
    return (
        _unsigned(links, at, there), _unsigned(links + stride, at, there), _unsigned(links + 2 * stride, at, there),
        _unsigned(links + 3 * stride, at, there), _unsigned(links + 4 * stride, at, there),
        _unsigned(links + 5 * stride, at, there), _unsigned(links + 6 * stride, at, there),
    )  # fmt: skip


@triton.jit
def _slot(hashes, conjunction, group, lines, codes, stride, at, there, slots):
    """The slots of a conjunction, given as a mask of components, for a block of links."""
    h = _unsigned(lines + group * stride, at, there)
    for i in tl.static_range(7):
        h ^= tl.where(((conjunction >> i) & 1) != 0, hashes[i], tl.zeros_like(h))
    code = tl.load(codes + group * stride + at, mask=there, other=0)
    return (((h >> 32) * slots) >> 32).to(tl.int64) ^ code


@triton.jit
def _share(of_link, of_count, group, variant, stride, at, there, DOUBLED: tl.constexpr):
    """The factor of a conjunction's weight. DOUBLED: 1 for link counts, 2 for feature counts, 3 for both."""
    share = tl.full(at.shape, 1.0, tl.float32)
    if DOUBLED & 1:
        share *= tl.load(of_link + group * stride + at, mask=there, other=0.0)
    if DOUBLED & 2:
        share *= tl.load(of_count + variant * stride + at, mask=there, other=0.0)
    return share


@triton.jit
def _conjunction(plan, c):
    """A conjunction's components as a mask, its group and its variant.

    Read from a table, because unrolled loops over all conjunctions take minutes to compile.
    """
    return tl.load(plan + 3 * c), tl.load(plan + 3 * c + 1), tl.load(plan + 3 * c + 2)


@triton.jit
def _predict(
    components, counts, lines_n, codes_n, shares_n, lines_p, codes_p, shares_p, factor_n, factor_p, events, stride,
    begin, end, plan, multiplicities, conjunctions, table, slots, start, negative, positive, predicted,
    COLUMNS: tl.constexpr, DOUBLED: tl.constexpr, BOUND: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute both parts of the gradient of every link, and the prediction of each event."""
    at = begin + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = at < end
    slots = slots.to(tl.uint64)
    hashes = _load_components(components, stride, at, there)
    a_n = tl.full((BLOCK,), 0.0, tl.float32) + start
    a_p = a_n
    for c in range(conjunctions):
        conjunction, group, variant = _conjunction(plan, c)
        multiplicity = tl.load(multiplicities + c)
        slot = _slot(hashes, conjunction, group, lines_n, codes_n, stride, at, there, slots)
        theta = multiplicity * tl.load(table + slot * COLUMNS, mask=there, other=0.0)
        a_n += theta * _share(shares_n, counts, group, variant, stride, at, there, DOUBLED)
        if group > 0:
            slot = _slot(hashes, conjunction, group, lines_p, codes_p, stride, at, there, slots)
            theta = multiplicity * tl.load(table + slot * COLUMNS, mask=there, other=0.0)
        a_p += theta * _share(shares_p, counts, group, variant, stride, at, there, DOUBLED)
    n = tl.load(factor_n + at, mask=there, other=0.0) * tl.exp(tl.minimum(tl.maximum(a_n, -BOUND), BOUND))
    p = tl.load(factor_p + at, mask=there, other=0.0) * tl.exp(tl.minimum(tl.maximum(a_p, -BOUND), BOUND))
    tl.store(negative + at - begin, n, mask=there)
    tl.store(positive + at - begin, p, mask=there)
    event = tl.load(events + at, mask=there, other=0)
    tl.atomic_add(predicted + event, p, mask=there & (p > 0), sem="relaxed")


@triton.jit
def _differ(lines_n, codes_n, lines_p, codes_p, group, stride, at, there):
    """Whether the two parts of the gradient have different slots in this group."""
    line_n = tl.load(lines_n + group * stride + at, mask=there, other=0)
    line_p = tl.load(lines_p + group * stride + at, mask=there, other=0)
    code_n = tl.load(codes_n + group * stride + at, mask=there, other=0)
    code_p = tl.load(codes_p + group * stride + at, mask=there, other=0)
    return (line_n != line_p) | (code_n != code_p)


@triton.jit
def _add(sums, slot, gradient, there, COLUMNS: tl.constexpr):
    """Add gradients to the sums of their slots and, for AdaGrad, their squares."""
    there = there & (gradient != 0)
    tl.atomic_add(sums + slot * COLUMNS, gradient, mask=there, sem="relaxed")
    if COLUMNS == 2:
        tl.atomic_add(sums + slot * COLUMNS + 1, gradient * gradient, mask=there, sem="relaxed")


@triton.jit
def _scatter(
    components, counts, lines_n, codes_n, shares_n, lines_p, codes_p, shares_p, events, stride, begin, end,
    plan, conjunctions, slots, negative, positive, predicted, sums, loss,
    COLUMNS: tl.constexpr, DOUBLED: tl.constexpr, LEAVE_ONE_OUT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Sum the gradients by slot, and the loss."""
    at = begin + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = at < end
    slots = slots.to(tl.uint64)
    hashes = _load_components(components, stride, at, there)
    g_n = tl.load(negative + at - begin, mask=there, other=0.0)
    p = tl.load(positive + at - begin, mask=there, other=0.0)
    y = tl.load(predicted + tl.load(events + at, mask=there, other=0), mask=there, other=1.0)
    g_p = tl.where(p > 0, p * (LEAVE_ONE_OUT - 1.0 / tl.where(p > 0, y, 1.0)), 0.0)
    tl.atomic_add(loss, tl.sum((g_n + p * LEAVE_ONE_OUT).to(tl.float64)), sem="relaxed")
    for c in range(conjunctions):
        conjunction, group, variant = _conjunction(plan, c)
        slot = _slot(hashes, conjunction, group, lines_n, codes_n, stride, at, there, slots)
        n = g_n * _share(shares_n, counts, group, variant, stride, at, there, DOUBLED)
        p = g_p * _share(shares_p, counts, group, variant, stride, at, there, DOUBLED)
        if group > 0:
            apart = _differ(lines_n, codes_n, lines_p, codes_p, group, stride, at, there)
            slot_p = _slot(hashes, conjunction, group, lines_p, codes_p, stride, at, there, slots)
            _add(sums, slot_p, p, there & apart, COLUMNS)
            p = tl.where(apart, 0.0, p)
        _add(sums, slot, n + p, there, COLUMNS)


@triton.jit
def _step_slots(slot, there, sums, table, rate, COLUMNS: tl.constexpr):
    """Take one step of each slot: the exchange gives the sum to one program and zero to all others."""
    g = tl.atomic_xchg(sums + slot * COLUMNS, tl.full(slot.shape, 0, tl.int32), mask=there, sem="relaxed")
    g = g.to(tl.float32, bitcast=True)
    there = there & (g != 0)
    weight = table + slot * COLUMNS
    theta = tl.load(weight, mask=there, other=0.0)
    if COLUMNS == 2:
        squares = tl.load(sums + slot * COLUMNS + 1, mask=there, other=0).to(tl.float32, bitcast=True)
        tl.store(sums + slot * COLUMNS + 1, tl.full(slot.shape, 0, tl.int32), mask=there)
        accumulator = tl.load(weight + 1, mask=there, other=1.0) + squares
        tl.store(weight + 1, accumulator, mask=there)
        g = g / tl.sqrt(accumulator)
    tl.store(weight, theta - rate * g, mask=there)


@triton.jit
def _apply(
    components, lines_n, codes_n, lines_p, codes_p, factor_p, stride, begin, end, plan, conjunctions, table, slots,
    sums, rate, COLUMNS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Take the steps of all slots that have gradients."""
    at = begin + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = at < end
    slots = slots.to(tl.uint64)
    hashes = _load_components(components, stride, at, there)
    positive = there & (tl.load(factor_p + at, mask=there, other=0.0) > 0)
    for c in range(conjunctions):
        conjunction, group, _ = _conjunction(plan, c)
        slot = _slot(hashes, conjunction, group, lines_n, codes_n, stride, at, there, slots)
        _step_slots(slot, there, sums, table, rate, COLUMNS)
        if group > 0:
            apart = _differ(lines_n, codes_n, lines_p, codes_p, group, stride, at, there)
            slot = _slot(hashes, conjunction, group, lines_p, codes_p, stride, at, there, slots)
            _step_slots(slot, positive & apart, sums, table, rate, COLUMNS)


class TritonStepper:
    """See `snm.tensors.steps.Stepper`."""

    def __init__(self, adjustment: TensorAdjustment, leave_one_out: bool, rate: float) -> None:
        self.a, self.leave_one_out, self.rate = adjustment, leave_one_out, rate
        device = adjustment.device
        conjunctions = adjustment.conjunctions
        rows = [(c.components, c.group, c.variant) for c in conjunctions]
        self.plan = torch.tensor(rows, dtype=torch.int32, device=device)
        self.multiplicities = torch.tensor([c.multiplicity for c in conjunctions], device=device)
        # float32 bits, because `atomic_xchg` needs integers
        self.sums = torch.zeros(adjustment.table.shape, dtype=torch.int32, device=device)
        self._loss = torch.zeros(1, dtype=torch.float64, device=device)

    def loss(self) -> float:
        return float(self._loss)

    def take(self, batch: Batch, sizes: list[int]) -> None:
        device = self.a.device
        predicted = torch.zeros(len(batch.ends) - 1, device=device)
        parts = torch.empty((2, max(1, _most_links(batch, sizes))), device=device)
        first = 0
        for size in sizes:
            self._step(batch, int(batch.ends[first]), int(batch.ends[first + size]), predicted, parts)
            first += size
        self._loss -= torch.log(predicted[predicted > 0]).double().sum()

    def _step(self, batch: Batch, begin: int, end: int, predicted: Tensor, parts: Tensor) -> None:
        if begin == end:
            return
        links, n, p = batch.links, batch.at_negative, batch.at_positive
        negative, positive = parts
        stride = links.components.stride(0)
        doubled = (n.shares is not None) + 2 * (links.count_shares is not None)
        grid = (-(-(end - begin) // BLOCK),)
        slots, columns = self.a.table.shape
        none = negative  # never read
        counts = none if links.count_shares is None else links.count_shares
        shares_n, shares_p = (none if x.shares is None else x.shares for x in (n, p))
        at_n, at_p = (n.lines, n.codes, shares_n), (p.lines, p.codes, shares_p)
        conjunctions = len(self.plan)
        _predict[grid](
            links.components, counts, *at_n, *at_p, batch.negative, batch.positive, batch.events, stride, begin, end,
            self.plan, self.multiplicities, conjunctions, self.a.table, slots, self.a.start,
            negative, positive, predicted, COLUMNS=columns, DOUBLED=doubled, BOUND=MAX_EXPONENT, BLOCK=BLOCK,
        )  # fmt: skip
        _scatter[grid](
            links.components, counts, *at_n, *at_p, batch.events, stride, begin, end, self.plan, conjunctions,
            slots, negative, positive, predicted, self.sums.view(torch.float32), self._loss,
            COLUMNS=columns, DOUBLED=doubled, LEAVE_ONE_OUT=float(self.leave_one_out), BLOCK=BLOCK,
        )  # fmt: skip
        if self.rate > 0:
            _apply[grid](
                links.components, *at_n[:2], *at_p[:2], batch.positive, stride, begin, end,
                self.plan, conjunctions, self.a.table, slots, self.sums, self.rate, COLUMNS=columns, BLOCK=BLOCK,
            )  # fmt: skip


def _most_links(batch: Batch, sizes: list[int]) -> int:
    """Links of the largest batch."""
    edges = batch.ends[[0, *torch.tensor(sizes).cumsum(0).tolist()]]
    return int((edges[1:] - edges[:-1]).max())
