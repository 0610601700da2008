"""Risks of an audited release in probabilities: who was in the data, how often a guess is right.

The number that counts is the gain over the best guess without the release. Of a table in memory
only: what a model would be without a record takes all the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from seepage.auditing.findings import AttributeFinding, GuessFinding, RiskFinding
from seepage.auditing.trained_model import RecordsInMemory, TrainedModel
from seepage.core.leakage import Leakage
from seepage.core.noise import Gaussian
from seepage.core.risk_views import Guess
from seepage.errors import InputError
from seepage.glm.leakage import leakage
from seepage.tables.source import MemorySource, Table

_REFITS = 2e11  # multiplications that refits may take
_MOST_LEVELS = 6  # of a category whose guesses are integrated
_FEWEST = 20  # records that are looked at, however long that takes


def find_risks(
    trained: TrainedModel, sigma: float, eta: np.ndarray, attributes: Sequence[AttributeFinding]
) -> RiskFinding | None:
    """Return the risks of a release with noise σ; ``None`` where records are read in chunks.

    ``eta`` is the leakage of every record, by which they are chosen where not all can be looked at.
    """
    source = trained.source
    if not isinstance(source, RecordsInMemory):
        return None
    names = tuple(f"feature {j}" for j in range(source.X.shape[1]))
    records = MemorySource(Table(source.X, names, None, "numpy"), source.y, source.sample_weight)
    groups = {f"attribute {k}": a.columns for k, a in enumerate(trained.table.attributes)}
    try:
        leak: Leakage[Any] = leakage(
            trained.model,
            records,
            noise=Gaussian(sigma),
            attributes={name: columns for name, columns in groups.items() if len(columns) > 1},
        )
        changes = leak.release.finite_changes()
    except InputError:
        return None
    # Families with a certified expansion take no refits; of others the most leaked records.
    certified = trained.settings.model in ("linear", "logistic", "poisson")
    most = max(_FEWEST, int(_REFITS / changes.work))
    worst_first = np.argsort(-eta, kind="stable")
    rows = np.arange(len(eta)) if certified else np.sort(worst_first[:most])
    told = leak.membership(rows)
    mu, right = np.asarray(told), np.asarray(told.accuracy())
    worst = int(np.argmax(mu))
    guesses = []
    if trained.settings.classifies:
        asked = rows if certified or 2 * len(rows) <= most else np.sort(worst_first[: most // 2])
        for prior in ("frequencies", "model"):
            found = leak.guess(prior=prior, rows=asked)
            guesses.append(_finding(trained.table.target, prior, found, source.row_index[asked]))
    if trained.basis() is None:
        by_name = {a.name: a for a in attributes}
        for k, attribute in enumerate(trained.table.attributes):
            known = by_name.get(attribute.name)
            if known is None or attribute.kind == "numeric":
                continue
            levels = len(np.unique(source.X[:, list(attribute.columns)], axis=0))
            if not 1 < levels <= _MOST_LEVELS:
                continue
            easiest = np.flatnonzero(source.row_index == known.easiest_row)[:1]
            column = f"attribute {k}" if len(attribute.columns) > 1 else attribute.columns[0]
            found = leak.guess(column, rows=easiest, precision=1e-4)
            guesses.append(_finding(attribute.name, "frequencies", found, [known.easiest_row]))
    return RiskFinding(
        membership=float(right[worst]),
        row=int(source.row_index[rows[worst]]),
        median=float(np.median(right)),
        mu=float(mu[worst]),
        looked_at=len(rows),
        exact=told.mu.kind == "exact",
        guesses=tuple(guesses),
    )


def with_gains(
    attributes: tuple[AttributeFinding, ...], risks: RiskFinding | None
) -> tuple[AttributeFinding, ...]:
    """Return the columns with what a release adds to a guess of each, where that is known."""
    if risks is None:
        return attributes
    gains = {g.name: g.gain for g in risks.guesses if g.prior == "frequencies"}
    return tuple(replace(a, gain=gains.get(a.name)) for a in attributes)


def _finding(name: str, prior: str, found: Guess, rows: Sequence[int] | np.ndarray) -> GuessFinding:
    gain, right = np.asarray(found.gain()), np.asarray(found)
    worst = int(np.argmax(gain))
    return GuessFinding(
        name=name,
        prior=prior,
        right=float(right[worst]),
        baseline=float(found.baseline[worst]),
        row=int(rows[worst]),
        median_right=float(np.median(right)),
        median_baseline=float(np.median(found.baseline)),
        looked_at=len(right),
    )
