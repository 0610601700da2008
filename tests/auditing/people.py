"""Small tables of every kind for the audit's tests, and the slow truth about them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from seepage.auditing.intake import table as intake
from seepage.auditing.intake.table import TableInMemory
from seepage.auditing.trained_model import ROW


def people(n=60, seed=0):
    """A table with a number, a flag, a category, and a target of each kind."""
    rng = np.random.default_rng(seed)
    age = rng.normal(50, 12, n)
    smoker = rng.random(n) < 0.4
    town = rng.choice(["Aachen", "Bonn", "Celle"], n)
    signal = 0.05 * (age - 50) + smoker - (town == "Bonn") + rng.normal(0, 1, n)
    return pa.table(
        {
            "age": age,
            "smoker": smoker,
            "town": town,
            "weight": rng.normal(75, 9, n),
            "dose": 30 + 8 * signal,
            "ill": np.where(signal > 0.3, "yes", "no"),
            "visits": rng.poisson(np.exp(0.3 * signal)),
            "stage": np.select([signal < -0.5, signal < 0.7], ["low", "middle"], "high"),
        }
    )


TARGETS = {"linear": "dose", "logistic": "ill", "poisson": "visits", "softmax": "stage"}


def encoded_people(model, *, n=60, scale=True, sensitive=(), groups=()):
    table, target = people(n), TARGETS[model]
    others = [t for t in TARGETS.values() if t != target]
    plan = plan_columns(table, target, drop=others, sensitive=sensitive, groups=groups)
    return intake.encode(TableInMemory(table), plan, scale=scale)


def plan_columns(table, target, **options):
    """Plan the columns of an Arrow table."""
    return intake.plan_columns(TableInMemory(table), target, **options)


def encode(table, plan, **options):
    """Encode an Arrow table, and read back what was made of it."""
    return ReadBack(intake.encode(TableInMemory(table), plan, **options))


class ReadBack:
    """An encoded table by its features and columns."""

    def __init__(self, encoded):
        source, self.steps, self.raw = encoded.source, encoded.steps, encoded.raw
        self.X, self.y, self.names, self.groups = source.X, source.y, source.names, source.beside
        self.row_index, self.target_kind = source.beside[ROW], encoded.target_kind
        self._columns = encoded.attributes
        self.attributes = {
            a.name: tuple(self.names[j] for j in a.columns) for a in encoded.attributes
        }
        self.units, self.spread = units(encoded), spread(encoded)

    def positions(self):
        """Where the features of every column stand."""
        return {attribute.name: attribute.columns for attribute in self._columns}


def positions(encoded):
    """Where the features of every column stand."""
    return {attribute.name: attribute.columns for attribute in encoded.attributes}


def units(encoded):
    """How much of its column's own unit one unit of every feature is."""
    return np.concatenate([1 / np.diag(a.directions) for a in encoded.attributes])


def spread(encoded):
    """The standard deviation of every column in its own units."""
    return {attribute.name: attribute.spread for attribute in encoded.attributes}


def by_refits(fit, X, label, row, steps, label_step=None, h=1e-4):
    """The Jacobian of the parameters by one record, from refits: one column per direction.

    ``steps`` are directions in the space of the features, ``(t, D)``; ``label`` the labels as
    numbers that ``fit`` takes; ``label_step`` the size of one step of the label.
    """
    columns = []
    for step in steps:
        ends = []
        for sign in (1, -1):
            moved = X.copy()
            moved[row] += sign * h * step
            ends.append(fit(moved, label))
        columns.append((ends[0] - ends[1]) / (2 * h))
    if label_step is not None:
        ends = []
        for sign in (1, -1):
            moved = label.copy()
            moved[row] += sign * h * label_step
            ends.append(fit(X, moved))
        columns.append((ends[0] - ends[1]) / (2 * h))
    return np.stack(columns, axis=1)
