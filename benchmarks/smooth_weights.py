"""Does a smooth weight keep a budget of leakage? Not unless it falls slowly, and by no proof.

A stop that depends on the record makes its Fisher information infinite. A smooth weight does not:
record z contributes ``w(S) g̃(z)``, where ``S`` is the leakage η̄² of its earlier contributions and
``w`` falls from 1 at ``(1 − width) ρ`` to 0 at the budget ρ. But ``S`` depends on z, so the
weight's own derivative leaks too: given all outputs, a step leaks ``‖∂(w g̃)/∂z‖²_F / (d s²)``, not
``w² ‖∂g̃/∂z‖²_F / (d s²)``. Here the former is summed over the steps of logistic regression on the
breast-cancer data (full batches, smooth clip), for the records that spend most without a budget.
The budget is a share of what they would spend at least. A bound would need the derivative of a
record's costs, which are second derivatives of its loss, for all records and outputs.

Run with ``python benchmarks/smooth_weights.py`` (seconds); kept in
``benchmarks/results/smooth_weights.json``.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer
from torch.func import jacfwd, vmap

from keeping import keep

KEPT = Path(__file__).parent / "results" / "smooth_weights.json"
STEPS, NOISE, RECORDS = 12, 5.0, 20
SHARES, WIDTHS = (0.25, 0.5), (0.1, 0.5, 1.0)


def clipped(z: torch.Tensor, y: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return a record's gradient of the logistic loss, clipped smoothly to norm 1."""
    gradient = -y * torch.sigmoid(-y * (z @ weights)) * z
    return gradient / torch.sqrt(1 + gradient @ gradient)


def contributions(
    z: torch.Tensor, y: torch.Tensor, iterates: torch.Tensor, budget: float, width: float
) -> torch.Tensor:
    """Return a record's weighted contributions to all steps, given the outputs before each."""
    spent, parts = torch.zeros((), dtype=z.dtype), []
    for weights in iterates:
        left = torch.clamp((budget - spent) / (width * budget), 0.0, 1.0)
        weight = left**2 * (3 - 2 * left)
        parts.append(weight * clipped(z, y, weights))
        slope = jacfwd(clipped)(z, y, weights)
        spent = spent + weight**2 * (slope**2).sum() / (len(z) * NOISE**2)
    return torch.stack(parts)


def main() -> None:
    """Train once, weigh the records along the run, and keep what they leak."""
    X, y = load_breast_cancer(return_X_y=True)
    X = X[:, :10]  # the means of ten measurements
    table = torch.tensor((X - X.mean(0)) / X.std(0))
    labels = torch.tensor(2.0 * y - 1)
    draw = torch.Generator().manual_seed(0)  # an experiment: nothing of it leaves
    current, iterates = torch.zeros(table.shape[1], dtype=torch.float64), []
    for _ in range(STEPS):
        iterates.append(current)
        total = vmap(lambda z, label, at=current: clipped(z, label, at))(table, labels).sum(0)
        noise = NOISE * torch.randn(total.shape, generator=draw, dtype=torch.float64)
        current = current - (total + noise) / len(table)
    path = torch.stack(iterates)

    def leaked(z: torch.Tensor, label: torch.Tensor, budget: float, width: float) -> torch.Tensor:
        slopes = jacfwd(lambda at: contributions(at, label, path, budget, width))(z)
        return (slopes**2).sum() / (len(z) * NOISE**2)

    def everyone(budget: float, width: float) -> torch.Tensor:
        return vmap(lambda z, label: leaked(z, label, budget, width))(rows, chosen)

    rows, chosen = table, labels
    free = everyone(1e9, 1.0)
    most = torch.argsort(free, descending=True)[:RECORDS]
    rows, chosen, free = table[most], labels[most], free[most]
    found = []
    for share in SHARES:
        budget = share * float(free.min())
        for width in WIDTHS:
            counted = everyone(budget, width)
            found.append(
                {
                    "budget over unfiltered": share,
                    "width": width,
                    "over budget, median": float(torch.median(counted)) / budget,
                    "over unfiltered, median": float(np.median(counted / free)),
                    "records beyond the budget": float((counted > budget).double().mean()),
                    "records beyond unfiltered": float((counted > free).double().mean()),
                }
            )
            print(", ".join(f"{name} {value:.3g}" for name, value in found[-1].items()), flush=True)
    keep({"steps": STEPS, "noise": NOISE, "records": RECORDS, "rows": found}, KEPT)


if __name__ == "__main__":
    main()
