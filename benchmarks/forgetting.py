"""Forgetting on UCI Adult: certificates against refits, and recipients who hold both models.

A hundred people leave, one at a time: the fifty most exposed by membership, and fifty at random.
Claims, for logistic regression on UCI Adult (n = 30,162, d = 86) at λ = 1e-4, where certificates
are hardest:

- every refit without the person, by other code (Newton's method on the objective written out here),
  lies within the certified distance of the one step of ``sp.forget``;
- recipients who hold the old and the new model, each with noise of its own, and who know everybody
  else, tell the person's world from that in which they never took part by a likelihood ratio no
  more often than the μ of the pair states, as a ledger composes it of the old release's entry and
  the one that forgetting adds: for no person, new model a refit or one step, is Φ(μ/2) below the
  one-sided Clopper–Pearson limit of what is seen (99.9 % over all tests, 4,000 pairs of models in
  each world).

Run with ``python benchmarks/forgetting.py`` and the data in SEEPAGE_DATA; results are kept in
``results/forgetting.json``.
"""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from scipy.special import expit, ndtr
from scipy.stats import beta

import seepage as sp
from glm_rows import adult, table

KEPT = Path(__file__).parent / "results" / "forgetting.json"
PEOPLE, PAIRS, L2, SIGMA = 100, 4000, 1e-4, 0.05


def refit_by_hand(X: np.ndarray, y: np.ndarray, ridge: float, theta: np.ndarray) -> np.ndarray:
    """Return the minimiser of ``Σ log(1 + exp(m)) − y m + (ridge/2)‖w‖²``, by Newton's method."""
    for _ in range(50):
        p = expit(X @ theta)
        slope = X.T @ (p - y) + ridge * theta
        curvature = (X * (p * (1 - p))[:, None]).T @ X + ridge * np.eye(len(theta))
        step = np.linalg.solve(curvature, slope)
        theta = theta - step
        if np.linalg.norm(step) < 1e-11:
            return theta
    raise ArithmeticError("Newton's method did not converge")


def told_apart(worlds: tuple[np.ndarray, np.ndarray], noise: sp.Gaussian, seed: int) -> int:
    """Return how often likelihood ratios name the right one of two worlds, over all pairs."""
    never, once = worlds
    shape = (PAIRS, len(never))
    draws = [noise.draw(shape, seed=2 * seed + k) for k in range(2)]
    scores = [
        (place + z - (never + once) / 2) @ (once - never)
        for place, z in zip((never, once), draws, strict=True)
    ]
    return int(np.sum(scores[0] < 0) + np.sum(scores[1] > 0))


def seen_at_least(right: int, level: float) -> float:
    """Return the one-sided Clopper–Pearson lower limit of a share."""
    return float(beta.ppf(1 - level, right, 2 * PAIRS - right + 1)) if right else 0.0


def hundred_removals() -> dict[str, Any]:
    """Remove people one at a time, and return what was certified and what was seen."""
    X, y, data = table(adult, 30_162, 86)
    model = sp.glm.LogisticRegression(l2=L2).fit(X, y)
    leak = sp.leakage(model, X, y, noise=sp.Gaussian(SIGMA))
    recognised = np.asarray(leak.membership())
    exposed = np.argsort(recognised)[::-1][: PEOPLE // 2]
    others = np.setdiff1d(np.arange(len(y)), exposed)
    chosen = np.random.default_rng(0).choice(others, PEOPLE - len(exposed), replace=False)
    level = 1 - 0.001 / (2 * PEOPLE)  # 99.9 % over all tests
    noise, rows, labels = sp.Gaussian(SIGMA), [], y == np.max(y)
    people, leaving = pa.table({"person": np.arange(len(y))}), np.concatenate([exposed, chosen])
    folder = Path(tempfile.mkdtemp())
    ledgers = {name: sp.LedgerFile(folder / name) for name in ("refit", "step")}
    for ledger in ledgers.values():
        first = {"mu": recognised[leaving], "person": "person"}
        ledger.record(people.take(leaving), "first release", **first)
    for k, row in enumerate(leaving.tolist()):
        forgotten = sp.forget(model, X, y, [row])
        rest = np.delete(np.arange(len(y)), row)
        old, step = model.coef_[0], forgotten.step.coef_[0]
        exact = refit_by_hand(X[rest], labels[rest].astype(float), L2 * len(rest), old)
        found = {
            "row": int(row),
            "certified": forgotten.distance,
            "distance": float(np.linalg.norm(step - exact)),
            "moved": float(np.linalg.norm(old - exact)),
        }
        for name, new in (("refit", exact), ("step", step)):
            worlds = np.concatenate([exact, exact]), np.concatenate([old, new])
            right = told_apart(worlds, noise, seed=k)
            ledger, own = ledgers[name], people.take([row])
            how = {"stepped": name == "step", "entry": 1, "person": "person"}
            forgotten.record(ledger, people, noise, noise, **how)
            mu = float(ledger.spent(own, "person").mu[0])
            found[name] = {
                "mu": mu,
                "mu of the pair": forgotten.pair(noise, noise, stepped=name == "step"),
                "stated": float(ndtr(mu / 2)),
                "seen": right / (2 * PAIRS),
                "seen at least": seen_at_least(right, level),
            }
        rows.append(found)
    ways = [found[name] for found in rows for name in ("refit", "step")]
    return {
        "data": data,
        "people": PEOPLE,
        "pairs": PAIRS,
        "sigma": SIGMA,
        "l2": L2,
        "certificates that hold": sum(f["distance"] <= f["certified"] for f in rows),
        "without a certificate": sum(math.isinf(f["certified"]) for f in rows),
        "largest share of the certificate": max(f["distance"] / f["certified"] for f in rows),
        "median share of the move": float(np.median([f["certified"] / f["moved"] for f in rows])),
        "largest share of the move": max(f["certified"] / f["moved"] for f in rows),
        "largest mu": max(w["mu"] for w in ways),
        "ledger below the pair": sum(w["mu"] < w["mu of the pair"] * (1 - 1e-9) for w in ways),
        "largest stated": max(w["stated"] for w in ways),
        "largest seen": max(w["seen"] for w in ways),
        "told apart more often than stated": sum(w["seen at least"] > w["stated"] for w in ways),
        "each": rows,
    }


if __name__ == "__main__":
    from keeping import keep

    figures = hundred_removals()
    for name, value in figures.items():
        if name != "each":
            print(f"{name}: {value if isinstance(value, str | int) else f'{value:.4g}'}")
    keep(figures, KEPT)
