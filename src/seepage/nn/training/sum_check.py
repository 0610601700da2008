"""Compares the clipped sum of an optimiser with the one that is accounted for.

Whatever makes the two differ (another clip, another reduction of the loss, other parameters,
another batch) makes the leakage a number about something that is not released.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import Tensor

from seepage.errors import InputError
from seepage.nn.jacobian.engine import Step
from seepage.nn.problem.clipping import Clip

_FIRST = 2  # steps compared at the start of a run
_CHANGES = 8  # changes of settings after which the next step is compared
_EVERY = 64  # and then one step in this many

# Relative to the sum of the gradients' norms. Rounding leaves 1e-6 in float32, and up to 1e-3 if
# products are rounded to TF32 or bfloat16.
_CLOSE, _CLOSE_ON_DEVICE, _CLOSE_IN_HALF = 3e-3, 1e-2, 5e-2


class SumCheck:
    """Compares sums in the first steps, after the first changes of settings, and now and then."""

    def __init__(self) -> None:
        self._settings: object = None
        self._changes = 0
        self._due = False
        self._ours: dict[str, Tensor] = {}
        self._lengths = 0.0
        self._clip = math.inf

    def begin(self, step: int, settings: object) -> None:
        """Decide whether the sum of this step, counted from zero, is to be compared."""
        changed = settings != self._settings
        self._settings = settings
        self._changes += changed
        self._due = step < _FIRST or step % _EVERY == 0 or (changed and self._changes <= _CHANGES)
        self._ours, self._lengths = {}, 0.0

    @property
    def due(self) -> bool:
        """Whether the sum of the present step is compared."""
        return self._due

    def add(self, part: Step, clip: Clip) -> None:
        """Add a part of the step's batch, measured with its clipped sum."""
        assert part.gradient is not None  # noqa: S101 - it was asked for
        for name, tensor in part.gradient.items():
            before = self._ours.get(name)
            self._ours[name] = tensor.clone() if before is None else before + tensor
        lengths = part.norms * clip.factor(part.norms)
        self._lengths += float(lengths.sum())
        self._clip = clip.max_grad_norm

    def compare(self, theirs: Mapping[str, Tensor | None]) -> None:
        """Raise unless the optimiser's sum, by parameter, equals the one added up here."""
        self._due = False
        found = {}
        for name, own in self._ours.items():
            their = theirs.get(name)
            if their is None:
                raise InputError(
                    f"The parameter {name!r} is counted as released, but the optimiser has formed "
                    "no sum for it; give it to the optimiser, or freeze it with "
                    "requires_grad_(False) before make_private()."
                )
            found[name] = their.detach().reshape(own.shape).to(own)
        apart = {name: float((found[name] - own).norm()) for name, own in self._ours.items()}
        away = math.hypot(*apart.values())
        if away <= self._tolerance() * self._lengths + 1e-30:
            return
        worst = max(apart, key=lambda name: apart[name])
        raise InputError(
            "The optimiser's release is not the one accounted for: its clipped sum differs from "
            f"the accountant's by {away / max(self._lengths, 1e-30):.2g} of the gradients' "
            f"lengths, {self._guess(found, worst)}"
        )

    def _tolerance(self) -> float:
        some = next(iter(self._ours.values()))
        rounding = 1e-6 / self._clip  # Opacus divides by the norm plus 1e-6
        if some.dtype.itemsize < 4:
            return _CLOSE_IN_HALF
        return rounding + (_CLOSE if some.device.type == "cpu" else _CLOSE_ON_DEVICE)

    def _guess(self, theirs: Mapping[str, Tensor], worst: str) -> str:
        """Return a description of the difference, and the remedy."""
        square = sum(float(own.double().square().sum()) for own in self._ours.values())
        product = sum(float((theirs[n] * own).double().sum()) for n, own in self._ours.items())
        ratio = product / square if square else math.nan
        rest = math.hypot(
            *(float((theirs[n] - ratio * own).norm()) for n, own in self._ours.items())
        )
        if math.isfinite(ratio) and rest <= self._tolerance() * abs(ratio) * self._lengths:
            return (
                f"and is {ratio:.4g} times it throughout: the training loop uses another loss, or "
                "reduces it differently. Give attach() the criterion used in training, or a "
                "function of output and target that returns the loss of each record as it counts "
                "in the loop."
            )
        return (
            f"most in {worst!r}. Observe the batch of the step, before the step, in the mode "
            "(train or eval) used in training, and give attach() the criterion used in training; "
            "if all of that holds, Opacus differentiates the module of this parameter "
            "differently, and its leakage must not be trusted."
        )
