"""Private runs under budgets: charges again from logged iterates, accuracy, and attacks.

Two parts, printed and kept in ``results/filtered_runs.json``:

* UCI Adult, 20 runs on all records at every step, and 5,000 digits of MNIST, 3 runs on Poisson
  batches. What every record spent is computed again, in numpy, from the parameters of every step,
  by formulas that share no code with the package (backpropagation by hand, the Rényi divergence by
  quadrature). Claimed: both agree to 1e-4 of the limit (except where rounding decides who stops),
  nobody spends more than the budget, and a run that charges half is caught. The noise is such that
  half of the steps promise as much as the budget does. Beside the accuracy stands that of a run
  with the same noise and no budgets, at its end, where it promises less, and after half of its
  steps, where it promises as much.
* An attacker with likelihood ratios, on a record that stops on the way, in 20,000 simulated runs
  with it and without it. Claimed: no true positive rate above what the budget allows, and a wrong
  charge is caught.

All runs are seeded, so that they can be repeated: experiments, none of them a release. Run:
``python benchmarks/filtered_runs.py`` (some minutes on one core).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri, softmax
from torch import nn

import seepage as sp
from keeping import keep
from measuring import show
from seepage.nn.training import private_sgd
from seepage.privacy import DifferentialPrivacy, GaussianDP, PrivacyFilter, SampledGaussianDP

KEPT = Path(__file__).parent / "results" / "filtered_runs.json"
DELTA, C = 1e-5, 1.0
BUDGET = DifferentialPrivacy(2.0, DELTA, "add-or-remove")
WIDTHS = (30, 9, 9, 12, 12, 12, 12)


@dataclass(frozen=True)
class Task:
    """Data, a network of one or two layers with tanh between them, and how it is trained."""

    name: str
    train: tuple[torch.Tensor, torch.Tensor]
    test: tuple[torch.Tensor, torch.Tensor]
    sizes: tuple[int, ...]
    rate: float
    steps: int
    learning_rate: float
    runs: int

    def network(self, seed: int) -> nn.Sequential:
        """Return the network before its first step."""
        torch.manual_seed(seed)
        layers: list[nn.Module] = []
        for before, after in zip(self.sizes, self.sizes[1:], strict=False):
            layers += [nn.Linear(before, after), nn.Tanh()]
        return nn.Sequential(*layers[:-1])


def adult() -> Task:
    """Return Adult with records scaled to norm 1 at most, without a look at the others."""
    problem = sp.data.adult_one_hot(sp.data.load_adult(download=False))
    parts = []
    for X, y in ((problem.X, problem.y), (problem.X_test, problem.y_test)):
        rows = torch.tensor(np.asarray(X), dtype=torch.float32)
        rows /= rows.norm(dim=1, keepdim=True).clamp(min=1.0)
        parts.append((rows, torch.tensor(np.asarray(y) > 0).long()))
    return Task("UCI Adult", *parts, (parts[0][0].shape[1], 2), 1.0, 20, 4.0, 20)


def digits() -> Task:
    """Return the first 5,000 digits of MNIST, and all of its test digits."""
    images = sp.data.load_mnist(download=False)
    parts = []
    for split, count in ((images.train, 5000), (images.test, None)):
        pixels = torch.tensor(split.pixels[:count], dtype=torch.float32).flatten(1) / 255
        parts.append((pixels, torch.tensor(split.labels[:count]).long()))
    return Task("5,000 digits of MNIST", *parts, (784, 32, 10), 0.1, 80, 2.0, 3)


def noise_for(rate: float, steps: int, epsilon: float) -> float:
    """Return the noise multiplier with which steps without budgets promise ε."""

    def above(log_noise: float) -> float:
        run = SampledGaussianDP(math.exp(log_noise), rate, steps)
        return run.epsilon(DELTA) - epsilon

    return math.exp(brentq(above, math.log(0.3), math.log(100.0), xtol=1e-3))


def trainer(task: Task, seed: int, noise: float, budget: DifferentialPrivacy | None) -> object:
    """Return the trainer of a run."""
    return sp.nn.PrivateSGD(
        task.network(seed),
        "cross_entropy",
        steps=task.steps,
        sample_rate=task.rate,
        expected_batch=task.rate * len(task.train[1]),
        learning_rate=task.learning_rate,
        noise_multiplier=noise,
        max_grad_norm=C,
        budget=budget,
        seed=seed,
        probes=1,
        individual=False,
        method="derivative",
        clip_derivative="conservative",
        evaluate_every=task.steps // 2,
    )


@contextmanager
def logged():
    """Yield the list of parameters at every step of the runs inside."""
    steps: list[list[np.ndarray]] = []
    take = private_sgd.PrivateUpdate.take

    def note(self, gradient):
        steps.append([p.detach().double().numpy().copy() for p in self.released.values()])
        take(self, gradient)

    with patch.object(private_sgd.PrivateUpdate, "take", note):
        yield steps


def lengths(parameters: list[np.ndarray], X: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the norms of all clipped gradients, by backpropagation by hand.

    The gradient of a layer's weights and bias is ``δ ⊗ (a, 1)``, so its squared norm is
    ``‖δ‖²(‖a‖² + 1)``.
    """
    values, layers = [X], list(zip(parameters[::2], parameters[1::2], strict=True))
    for k, (weight, bias) in enumerate(layers):
        out = values[-1] @ weight.T + bias
        values.append(np.tanh(out) if k + 1 < len(layers) else out)
    delta = softmax(values[-1], axis=1)
    delta[np.arange(len(y)), y] -= 1
    square = np.zeros(len(y))
    for k in reversed(range(len(layers))):
        before = values[k]
        square += (delta**2).sum(1) * ((before**2).sum(1) + 1)
        delta = (delta @ layers[k][0]) * (1 - before**2)
    return np.minimum(np.sqrt(square), C)


@cache
def divergences(rate: float, order: float, longest: float) -> tuple[np.ndarray, np.ndarray]:
    """Return shifts and the Rényi divergences of sampled Gaussians, by quadrature."""
    shifts, x = np.linspace(0, longest, 801), np.linspace(-15, 60, 20_001)
    base = -(x**2) / 2 - math.log(2 * math.pi) / 2
    out = [0.0]
    for shift in shifts[1:]:
        ratio = np.logaddexp(math.log1p(-rate), math.log(rate) + shift * x - shift**2 / 2)
        out.append(math.log(np.trapezoid(np.exp(base + order * ratio), x)) / (order - 1))
    return shifts, np.array(out)


def spent_again(
    task: Task, run: object, steps: list[list[np.ndarray]], factor: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    """Return what every record spent, from the parameters alone, and whose stop is in doubt.

    A record that comes within 5e-6 of the limit may stop or go on by rounding.

    ``factor`` is what the run charged of each cost; what is returned is the true cost.
    """
    X, y = task.train[0].double().numpy(), task.train[1].numpy()
    kept, noise = run.budgets_.filter, run.noise_multiplier * C
    spent, charged, active = np.zeros(len(y)), np.zeros(len(y)), np.ones(len(y), dtype=bool)
    doubtful = np.zeros(len(y), dtype=bool)
    for parameters in steps:
        shifts = lengths(parameters, X, y) / noise * (1 + 1e-5)  # a margin for rounding
        if kept.order is None:
            cost = shifts**2
        else:
            # Between the points of the grid, costs are nearly quadratic in the shift.
            at, table = divergences(task.rate, kept.order, C / noise * 1.001)
            cost = shifts**2 * np.interp(shifts, at[1:], table[1:] / at[1:] ** 2)
        after = charged + factor * cost
        doubtful |= active & (np.abs(after - kept.limit) <= 5e-6 * kept.limit)
        active &= after <= kept.limit
        spent += np.where(active, cost, 0.0)
        charged += np.where(active, factor * cost, 0.0)
    return spent, doubtful


def half_charged(self, costs, rows=None):
    """Admit as a filter does, but charge half of every cost."""
    return ADMIT(self, np.asarray(costs) / 2, rows)


ADMIT = PrivacyFilter.admit


def filtered(task: Task) -> list[dict[str, object]]:
    """Run a task with a budget and without, and compute the charges again."""
    noise = noise_for(task.rate, task.steps // 2, BUDGET.epsilon)
    more = SampledGaussianDP(noise, task.rate, task.steps).epsilon(DELTA)
    rows = []
    for seed in range(task.runs):
        with logged() as steps:
            run = trainer(task, seed, noise, BUDGET).fit(*task.train, *task.test)
        kept = run.budgets_.filter
        spent, doubtful = spent_again(task, run, steps)
        apart = np.abs(spent - kept.spent) > 1e-4 * kept.limit
        free = trainer(task, seed, noise, None).fit(*task.train, *task.test)
        half, end = (free.history_[k].accuracy for k in (0, -1))
        row = {
            "task": task.name,
            "seed": seed,
            "noise multiplier": round(noise, 4),
            "budget": kept.budget.words,
            "stopped, share": float(np.mean(~kept.active)),
            "most spent, of the limit": float(spent.max() / kept.limit),
            "charges that differ by 1e-4": int(np.sum(apart & ~doubtful)),
            "stops within rounding": int(np.sum(doubtful)),
            "accuracy with budgets": run.history_[-1].accuracy,
            "accuracy without, at the end": end,
            "ε without, at the end": more,
            "accuracy without, at half, ε = 2": half,
        }
        rows.append(row)
        show(
            f"{task.name}, run {seed}",
            f"{100 * row['stopped, share']:.1f} %",
            f"{row['most spent, of the limit']:.4f}",
            row["charges that differ by 1e-4"],
            *(f"{100 * each:.2f} %" for each in (run.history_[-1].accuracy, end, half)),
            widths=WIDTHS,
        )
    with logged() as steps, patch.object(PrivacyFilter, "admit", half_charged):
        wrong = trainer(task, 0, noise, BUDGET).fit(*task.train)
    spent, _ = spent_again(task, wrong, steps, factor=0.5)
    rows.append(
        {
            "task": f"{task.name}, half of every cost charged",
            "most spent, of the limit": float(spent.max() / wrong.budgets_.filter.limit),
        }
    )
    share = rows[-1]["most spent, of the limit"]
    print(f"without budgets, the same noise promises ε = {more:.2f} at the end")
    print(f"half of every cost charged: {share:.2f} times the budget was spent\n")
    return rows


def attacked(cost_of: Callable[[np.ndarray], np.ndarray], runs: int = 20_000) -> dict[str, object]:
    """Return how well an attacker tells whether a record was in a filtered run, by its LLR.

    Thirty records of four columns and a logistic model, all of them at every step, all under
    budgets of their own. The attacked record is the longest; the attacker knows everything else.
    """
    rng = np.random.default_rng(0)
    X = rng.standard_normal((30, 4)) * 0.6
    X[0] = [1.2, -1.0, 0.8, 1.0]
    y = np.where(X @ [1.0, -1.0, 0.5, 0.2] > 0, 1.0, -1.0)
    y[0] = -y[0]  # it is hard to fit, so that its gradients stay long
    mu, noise, steps, rate = 1.0, 2.0, 12, 0.1
    scores, stops = [], []
    for inside in (True, False):
        w, told = np.zeros((runs, 4)), np.zeros(runs)
        budgets = PrivacyFilter(runs * 30, GaussianDP(mu, "add-or-remove"))
        stop = np.full(runs, steps)
        for step in range(steps):
            slopes = -y / (1 + np.exp(y * (w @ X.T)))
            gradients = slopes[:, :, None] * X
            norms = np.linalg.norm(gradients, axis=2)
            gradients /= np.maximum(norms, 1.0)[:, :, None]
            shifts = np.minimum(norms, 1.0) / noise
            active = budgets.admit(cost_of(shifts.ravel())).reshape(runs, 30)
            gradients *= active[:, :, None]
            own = gradients[:, 0]
            stop = np.where(active[:, 0], stop, np.minimum(stop, step))
            others = gradients[:, 1:].sum(1)
            output = others + inside * own + noise * rng.standard_normal((runs, 4))
            told += (own * (output - others)).sum(1) / noise**2 - (own**2).sum(1) / (2 * noise**2)
            w = w - rate * output
        scores.append(told)
        stops.append(stop)
    found = {}
    for fpr in (0.001, 0.01, 0.1):
        cut = np.quantile(scores[1], 1 - fpr)
        rate_found = float(np.mean(scores[0] > cut))
        # Four standard errors of the rate, and of the threshold by way of the promised curve.
        promised = float(ndtr(ndtri(fpr) + mu))
        ahead = float(ndtr(ndtri(fpr + 4 * math.sqrt(fpr / runs)) + mu)) - promised
        doubt = ahead + 4 * math.sqrt(promised * (1 - promised) / runs)
        found[f"{fpr:g}"] = {"true positive rate": rate_found, "promised": promised, "doubt": doubt}
    stopped = float(np.mean(stops[0] < steps))
    return {"stopped on the way, share": stopped, "rates": found}


def beaten(outcome: dict[str, object]) -> bool:
    """Return whether some true positive rate is above what the budget allows."""
    return any(
        each["true positive rate"] > each["promised"] + each["doubt"]
        for each in outcome["rates"].values()
    )


def attacks() -> dict[str, object]:
    """Attack a record at its stop, with charges as they should be and with wrong ones."""
    charges = {
        "its own norm": np.square,
        "half of its cost": lambda shifts: np.square(shifts) / 2,
        "nothing": np.zeros_like,
    }
    outcomes = {}
    print("\nlikelihood ratios on a record that stops on the way, μ = 1 promised")
    for name, cost_of in charges.items():
        outcome = outcomes[name] = attacked(cost_of)
        rates = ", ".join(
            f"{100 * each['true positive rate']:.2f} % (promised {100 * each['promised']:.2f} %)"
            for each in outcome["rates"].values()
        )
        stopped = 100 * outcome["stopped on the way, share"]
        print(f"charged {name}: stops in {stopped:.0f} % of runs; {rates}", flush=True)
    return outcomes


def main() -> int:
    """Run both parts, print, keep, and compare with the claims."""
    torch.set_num_threads(1)
    show(
        "budget: ε = 2 for everybody",
        *("stopped", "spent", "other charge", "accuracy", "without", "at half"),
        widths=WIDTHS,
    )
    rows = [row for task in (adult(), digits()) for row in filtered(task)]
    outcomes = attacks()
    keep({"runs": rows, "attacks": outcomes}, KEPT)
    right = [row for row in rows if "seed" in row]
    wrong = [row for row in rows if "seed" not in row]
    kept = all(
        row["most spent, of the limit"] <= 1 + 1e-4
        and row["charges that differ by 1e-4"] == 0
        and row["stops within rounding"] <= 100
        for row in right
    )
    caught = all(row["most spent, of the limit"] > 1.5 for row in wrong)
    holds = not beaten(outcomes["its own norm"]) and beaten(outcomes["half of its cost"])
    print(f"charges {kept}, wrong charge caught {caught}, attack {holds}")
    return 0 if kept and caught and holds else 1


if __name__ == "__main__":
    sys.exit(main())
