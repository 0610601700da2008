"""Searches for kinks, which are jumps in the slope of a record's loss along a line.

Function names do not reveal kinks, since ``h*(h > 0)`` has one and ``h/h.norm().clamp(1e-12)`` has
none. Kinks are therefore searched for on two kinds of lines. Some lines run between records of the
batch (:func:`kinks_between`). Other lines run through a record over the step ``h``, if the change
of the record's gradient differs from the derivative by more than curvature can explain
(:func:`kinks_beside`).

Let ``f(t)`` be the loss of a record as its unknowns move along a line, sampled at a spacing ``s``.
Its fourth difference is

    smooth:                    s⁴ f⁗
    a jump of f″ (ELU, Huber): of the order s²
    a jump of f′ (a kink):     of the order s
    a jump of f itself:        constant

and the spacing is halved repeatedly where the difference is largest. At a kink, the largest fourth
difference divided by the spacing stays within a factor of two of the jump of the slope. For a
smoother function, this quotient falls to zero once the spacing resolves the sharpest bend. A jump
of ``f″`` alone is not a kink, because gradients are then continuous.

Parameter gradients jump where ``f′`` does, because both depend on the slope of the same function
inside the network. Losses require only forward passes. They are computed in float64, where rounding
errors are negligible.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from seepage.nn.gradients.watching import WatchedNetwork, differentiable_backends
from seepage.nn.jacobian.derivative_check import uneven_changes
from seepage.nn.jacobian.finite_changes import longer_types
from seepage.nn.jacobian.random_directions import key_of, row_signs
from seepage.nn.problem.problem import Batch, NetworkProblem

Values = Callable[
    [Tensor, Tensor], Tensor
]  # of some lines, (L,), and places on each of them, (L, m): the losses there, (L, m)

InChunks = Callable[[Callable[[slice], Tensor], int], list[Tensor]]

_ROUNDING = 16  # a difference must be that many times what rounding alone gives


def line_count(held: int) -> int:
    """Return the number of lines for a network with this many bytes of layer outputs per record.

    The more units a network has, the more kinks each line crosses, so fewer lines are needed: 8,192
    divided by the number of bytes, but at least 4 and at most 48.
    """
    return max(4, min(48, 8192 // max(1, held)))


def kinks_between(
    problem: NetworkProblem, batch: Batch, scale: float, count: int, in_chunks: InChunks
) -> bool | None:
    """Return whether the losses have kinks, or jump, along lines from these records to others.

    ``scale`` is the size of the unknowns. It is used only if no line can end at another record,
    because all records are equal or there is only one. ``in_chunks`` applies work to slices of a
    given number of rows. Returns ``None`` if the network does not run in float64, or at points
    other than its records.
    """
    if not _in_double(problem, batch):
        return None
    wide = replace(problem, wider=torch.float64)
    return _Lines.through(wide, batch.of_type(torch.float64), scale, count).jump(in_chunks)


def kinks_beside(
    network: WatchedNetwork, batch: Batch, h: float, directions: int, in_chunks: InChunks
) -> bool | None:
    """Return whether some record has a kink within a step of ``h`` that its derivative misses.

    The change of every record's gradient along a few random directions is compared with its
    derivative. Lines on which the two differ by more than curvature can explain are then searched,
    because a sharp bend, or a dependence that is hidden from torch, also causes a difference.
    Returns ``None`` if changes and derivatives cannot be compared.
    """
    if not _in_double(network.problem, batch):
        return None
    network, batch = network.of_type(torch.float64), batch.of_type(torch.float64)
    z, mask = batch.z, network.problem.view.mask_for(batch.z)
    rows = torch.arange(len(batch))
    each = [row_signs(key_of("beside", k), rows, tuple(z.shape[1:]), z) for k in range(directions)]
    v = torch.stack(each) if mask is None else torch.stack(each) * mask
    try:
        share = uneven_changes(network, batch, v, h)
    except torch.OutOfMemoryError:
        raise
    except Exception:  # without a derivative there is nothing to compare with
        return None
    count = line_count(network.bytes_per_record)
    largest = share.flatten().topk(min(count, share.numel()))
    chosen = largest.indices[largest.values > 0]
    direction, record = chosen // len(batch), chosen % len(batch)
    move = h * v[direction, record]
    some = batch.records(record)
    beside = replace(some, z=some.z - move)
    start = torch.arange(len(chosen), device=z.device)
    return _Lines(network.problem, beside, start, 2 * move).jump(in_chunks)


def _in_double(problem: NetworkProblem, batch: Batch) -> bool:
    return torch.float64 in (batch.z.dtype, *longer_types(problem, batch))


@dataclass(frozen=True)
class _Lines:
    """Lines along ``move`` from the unknowns of record ``start``; all other values are fixed."""

    problem: NetworkProblem
    batch: Batch
    start: Tensor  # the record of each line, (lines,)
    move: Tensor  # (lines, …)

    @classmethod
    def through(cls, problem: NetworkProblem, batch: Batch, scale: float, count: int) -> _Lines:
        """Return lines from each record towards another record, perturbed by random signs.

        The signs vary entries that are the same in all records, and break ties (integers, padding).
        """
        number, z = torch.arange(count, device=batch.z.device), batch.z
        start = number % len(batch)
        other = (start + 1 + number // len(batch)) % len(batch)
        mask = problem.view.mask_for(z)
        free = 1 if mask is None else mask
        apart = free * (z[other] - z[start])
        size = float(apart.square().mean().sqrt())
        drawn = row_signs(key_of("kinks"), number, tuple(z.shape[1:]), z)
        move = apart + (size / 2 or scale) * free * drawn
        lengths = (1.0, 1 / 8, 1.0, 1 / 64)  # in turn: short lines see a weak kink beside bends
        length = torch.tensor(lengths).to(z)[number % len(lengths)]
        return cls(problem, batch, start, move * length.reshape(-1, *[1] * (z.dim() - 1)))

    def jump(self, in_chunks: InChunks) -> bool | None:
        """Return whether a loss or its slope jumps; ``None`` if the network fails on the lines."""

        def values(which: Tensor, places: Tensor) -> Tensor:
            parts = in_chunks(lambda rows: self.losses(which, places, rows), places.numel())
            return torch.cat(parts).reshape(places.shape)

        try:
            return jumps_somewhere(values, len(self.start), self.start.device)
        except torch.OutOfMemoryError:
            raise
        except Exception:  # a network need not run on anything but its records
            return None

    def losses(self, which: Tensor, places: Tensor, rows: slice) -> Tensor:
        """Return the losses at the places in ``rows``, which are numbered line by line."""
        number = torch.arange(places.numel(), device=places.device)[rows]
        line = which[number // places.shape[1]]
        some = self.batch.records(self.start[line])
        t = places.flatten()[rows].reshape(-1, *[1] * (some.z.dim() - 1))
        with differentiable_backends(self.problem.net), torch.no_grad():
            return self.problem.losses(self.problem.detached(), some, some.z + t * self.move[line])


def jumps_somewhere(values: Values, lines: int, device: torch.device) -> bool:
    """Return whether a function of the position in [0, 1], or its slope, jumps on some line."""
    if not lines:
        return False
    which = torch.arange(lines, device=device)
    spacing = 1 / 32
    steps = torch.arange(33, device=device, dtype=torch.float64)
    places = (steps * spacing).repeat(lines, 1)
    seen = values(which, places)
    finite = seen.nan_to_num(0.0, 0.0, 0.0)
    span = finite.amax(1) - finite.amin(1)
    # Rounding is measured at a place and a spacing where the function itself hardly bends.
    floor = _ROUNDING * _rounding(values, which, torch.full_like(span, 0.618), 2.0**-20)
    five, centre, difference = _around_largest(seen, places)
    history = difference[:, None]
    for _ in range(20):
        # What is smooth by now, or hidden by rounding, stays so at smaller spacings.
        kept = (difference > floor) & (difference > 1e-6 * span * spacing)
        which, span, floor, history = which[kept], span[kept], floor[kept], history[kept]
        five, centre = five[kept], centre[kept]
        if not len(which):
            return False
        spacing /= 2
        places = centre[:, None] + spacing * (steps[:9] - 4)
        nine = torch.empty_like(places)
        nine[:, ::2], nine[:, 1::2] = five, values(which, places[:, 1::2])
        five, centre, difference = _around_largest(nine, places)
        history = torch.cat((history, difference[:, None]), 1)
    # The order of the difference is read from the last six halvings: zero where the loss itself
    # jumps, one at a kink, two where f″ jumps. In between lie 0.5 and 1.5.
    before = history[:, -7]
    itself = difference > before * 2.0 ** (-0.5 * 6)
    # The least jump of the slope, relative to what the loss spans on the line; of the loss itself,
    # over a step of a hundredth, as finite steps would see it.
    least = 1e-4 * span * torch.where(itself, 0.01, spacing)
    jumps = (difference > before * 2.0 ** (-1.5 * 6)) & (difference > least)
    # A loss near zero has the rounding of the larger numbers (logits) that it is computed from.
    jumps &= difference > torch.where(itself, floor.clamp(min=1e-12), floor)
    if not bool(jumps.any()):
        return False
    # Rounding may be larger here than elsewhere: it is measured beside the jump.
    beside = _rounding(values, which, centre + 8 * spacing, spacing / 64)
    return bool((jumps & (difference > _ROUNDING * beside)).any())


def _around_largest(values: Tensor, places: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return, for each line, the five values with the largest fourth difference.

    The place and the size of that difference are also returned.
    """
    difference = _fourth(values)
    largest = difference.argmax(1, keepdim=True)
    five = values.gather(1, largest + torch.arange(5, device=values.device))
    return five, places.gather(1, largest + 2)[:, 0], difference.gather(1, largest)[:, 0]


def _fourth(f: Tensor) -> Tensor:
    """Return the absolute fourth differences, with zero where the function is not finite."""
    sizes = (f[:, :-4] - 4 * f[:, 1:-3] + 6 * f[:, 2:-2] - 4 * f[:, 3:-1] + f[:, 4:]).abs()
    return sizes.nan_to_num(0.0, 0.0, 0.0)


def _rounding(values: Values, which: Tensor, centre: Tensor, spacing: float) -> Tensor:
    """Return each line's fourth difference due to rounding, or the median over lines if larger."""
    steps = torch.arange(-4, 5, device=centre.device, dtype=centre.dtype)
    seen = values(which, centre[:, None] + spacing * steps)
    own = _fourth(seen).amax(1)
    least = torch.finfo(seen.dtype).eps * seen.nan_to_num(0.0, 0.0, 0.0).abs().amax(1)
    return torch.maximum(torch.maximum(own, own.median()), least)
