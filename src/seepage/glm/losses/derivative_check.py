"""Check the derivatives a family states against automatic differentiation of its loss."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from seepage.errors import InputError

if TYPE_CHECKING:
    from seepage.glm.losses.families import Family

Truths = dict[str, np.ndarray]

_MEANING = {
    "slope": "∂ℓ/∂m",
    "curvature": "∂²ℓ/∂m²",
    "label_slope": "∂²ℓ/∂m∂y",
    "curvature_slope": "∂³ℓ/∂m³",
    "curvature_label_slope": "∂³ℓ/∂m²∂y",
    "label_curvature": "∂³ℓ/∂m∂y²",
}


def check_derivatives(family: Family) -> None:
    """Raise unless ``slope``, ``curvature`` and ``label_slope`` are the derivatives of ``loss``.

    So must be the third derivatives, as far as they are stated. All are compared at every pair of a
    probe margin and a probe label, in float64: with torch's automatic differentiation to 1e-9 where
    torch is installed, else with extrapolated central differences of the next lower derivative to
    1e-6. The curvature must not be negative.
    """
    margins, labels = probe_points(family)
    if find_spec("torch") is not None:
        truths, tolerance = _by_torch(family, margins, labels), 1e-9
    else:
        truths, tolerance = _by_differences(family, margins, labels), 1e-6
    for name, truth in truths.items():
        if getattr(family, name) is None:
            continue
        stated = _stated(family, name, margins, labels)
        error = np.abs(stated - truth)
        allowed = tolerance * np.maximum(1.0, np.abs(truth))
        if not np.all(error <= allowed):  # written so that NaN fails
            worst = int(np.argmax(np.where(np.isnan(error), np.inf, error / allowed)))
            raise InputError(
                f"{name} of family {family.name!r} is not {_MEANING[name]}: at m = "
                f"{margins[worst]:g}, y = {labels[worst]:g} it is {stated[worst]:.6g} but the loss "
                f"gives {truth[worst]:.6g} (off by {error[worst]:.2g})."
            )
    curvature = _stated(family, "curvature", margins, labels)
    if np.any(curvature < 0):
        worst = int(np.argmin(curvature))
        raise InputError(
            f"The curvature of family {family.name!r} is negative ({curvature[worst]:.6g} at m = "
            f"{margins[worst]:g}, y = {labels[worst]:g}), so its loss is not convex and has no "
            "unique minimiser."
        )


def probe_points(family: Family) -> tuple[np.ndarray, np.ndarray]:
    """Return every pair of a probe margin and a probe label as two float64 vectors."""
    margins, labels = np.meshgrid(*(np.asarray(side, dtype=float) for side in family.probe))
    return margins.ravel(), labels.ravel()


def _stated(family: Family, name: str, margins: np.ndarray, labels: np.ndarray) -> np.ndarray:
    values = np.asarray(getattr(family, name)(margins, labels), dtype=float)
    return np.broadcast_to(values, margins.shape)


def _by_torch(family: Family, margins: np.ndarray, labels: np.ndarray) -> Truths:
    import torch

    m = torch.tensor(margins, dtype=torch.float64, requires_grad=True)
    y = torch.tensor(labels, dtype=torch.float64, requires_grad=True)
    loss = torch.sum(family.loss(m, y))
    (slope,) = torch.autograd.grad(loss, m, create_graph=True)

    def by_both(values: torch.Tensor) -> list[torch.Tensor]:
        # Linear in a variable, it leaves no graph to differentiate again: the derivative is zero.
        if not values.requires_grad:
            return [torch.zeros_like(m), torch.zeros_like(m)]
        found = torch.autograd.grad(torch.sum(values), (m, y), create_graph=True, allow_unused=True)
        return [torch.zeros_like(m) if g is None else g for g in found]

    curvature, mixed = by_both(slope)
    curvature_slope, curvature_label_slope = by_both(curvature)
    truths = {
        "slope": slope,
        "curvature": curvature,
        "label_slope": mixed,
        "curvature_slope": curvature_slope,
        "curvature_label_slope": curvature_label_slope,
        "label_curvature": by_both(mixed)[1],
    }
    return {name: truth.detach().numpy() for name, truth in truths.items()}


def _by_differences(family: Family, margins: np.ndarray, labels: np.ndarray) -> Truths:
    def by_margin(name: str) -> np.ndarray:
        return _central(lambda h: _stated(family, name, margins + h, labels))

    def by_label(name: str) -> np.ndarray:
        return _central(lambda h: _stated(family, name, margins, labels + h))

    return {
        "slope": by_margin("loss"),
        "curvature": by_margin("slope"),
        "label_slope": by_label("slope"),
        "curvature_slope": by_margin("curvature"),
        "curvature_label_slope": by_label("curvature"),
        "label_curvature": by_label("label_slope"),
    }


def _central(along: Callable[[float], np.ndarray], step: float = 0.02) -> np.ndarray:
    """Return the derivative at 0: central differences, extrapolated thrice (Richardson).

    Halving the step and cancelling the terms of order h², h⁴ and h⁶ leaves h⁸.
    """
    table = [(along(h) - along(-h)) / (2 * h) for h in (step, step / 2, step / 4, step / 8)]
    for order in (4.0, 16.0, 64.0):
        table = [(order * fine - coarse) / (order - 1) for coarse, fine in pairwise(table)]
    (best,) = table
    return np.asarray(best)
