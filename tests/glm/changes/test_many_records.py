"""Changes of many records: first bounds for all, the expansion only where they are wide."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import seepage as sp
from seepage.core.finite_changes import Alternatives
from seepage.glm.changes.expansion import QUICK, Expansion

N, L2, SIGMA = 400, 0.02, 0.1


def data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(5)
    X = rng.standard_normal((N, 3))
    X[:5] *= 4  # records whose first bounds are wide
    return X, (X @ np.array([1.0, -0.5, 0.3]) + rng.logistic(size=N) > 0).astype(float)


def distance(X: np.ndarray, y: np.ndarray, model: Any) -> float:
    """Return how far a refit moves the release, with the penalty nλ held fixed, by a fresh fit."""
    other = sp.glm.LogisticRegression(l2=L2 * N / len(y)).fit(X, y)
    return float(np.linalg.norm(other.coef_ - model.coef_) / SIGMA)


def test_bounds_of_many_records_contain_fits_from_scratch(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = data()
    model = sp.glm.LogisticRegression(l2=L2).fit(X, y)
    rows, asked, widths = np.arange(0, 120), [], []
    truth = np.empty((2, len(rows)))
    for k in rows:
        keep, other = np.arange(N) != k, y.copy()
        other[k] = 1 - y[k]
        truth[:, k] = distance(X[keep], y[keep], model), distance(X, other, model)
    for expanded in (False, True):

        def affords(
            self: Expansion, moves: int, most: float = np.inf, later: bool = expanded
        ) -> bool:
            if most <= QUICK:  # as for a table too large to expand all changes at once
                return False
            asked.append(moves)
            return later

        monkeypatch.setattr(Expansion, "affords", affords)
        changes = sp.leakage(model, X, y, noise=sp.Gaussian(SIGMA)).release.finite_changes()
        left = changes.moves(rows).distances()
        swapped = changes.moves(rows, Alternatives(labels=np.array([0.0, 1.0]))).distances()
        flipped = (1 - y[rows]).astype(int)
        least, most = np.array(
            [[one[:, 0], two[rows, flipped]] for one, two in zip(left, swapped, strict=True)]
        )
        assert np.all(least * (1 - 1e-7) <= truth)
        assert np.all(truth <= most * (1 + 1e-7))
        widths.append(most - least)
    assert any(0 < many < len(rows) for many in asked)  # fewer than all reach the expansion
    bare, closer = widths
    assert np.all(closer <= bare)
    assert np.mean(closer < bare / 10) > 0.05


def test_likelihoods_of_many_records_contain_fits_from_scratch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Few of many records reach the expansion, those whose odds are not known to 0.1 %."""
    X, y = data()
    model, rows, asked = sp.glm.LogisticRegression(l2=L2).fit(X, y), np.arange(60), []
    truth = np.empty((len(rows), 2))
    for k in rows:
        keep = np.arange(N) != k
        other = sp.glm.LogisticRegression(l2=L2 * N / (N - 1)).fit(X[keep], y[keep])
        truth[k] = np.log(other.predict_proba(X[k : k + 1])[0])
    of = Expansion.of

    def counted(self: Expansion, some: np.ndarray, *rest: Any) -> Any:
        asked.append(len(some))
        return of(self, some, *rest)

    monkeypatch.setattr(Expansion, "of", counted)
    monkeypatch.setattr("seepage.glm.changes.changed_records.QUICK", 0.0)
    changes = sp.leakage(model, X, y, noise=sp.Gaussian(SIGMA)).release.finite_changes()
    labels = Alternatives(labels=np.array([0.0, 1.0]))
    scores, off = changes.log_likelihoods(rows, labels, refits=0)
    assert np.all(np.abs(scores - truth) <= off[:, None] + 1e-9)
    assert 0 < sum(asked) < len(rows)
    assert off.max() < 0.005
