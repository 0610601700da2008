"""Time one core's passes over a Parquet table, and the model of a pass that is fitted to them."""

from __future__ import annotations

import math
import pickle
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from scipy.optimize import nnls

import seepage as sp
from measuring import seconds
from seepage import parquet
from seepage.glm.fitting.objective import Objective, PenalisedLoss, Sums
from seepage.glm.losses import bernoulli

NAMES = ("reading", "one Newton step", "η of every row", "dFIL of every row")


@dataclass(frozen=True)
class Passes:
    """The seconds of every pass over a table, and the bytes of one chunk's sums."""

    rows: int
    columns: int
    times: dict[str, float]
    sums: int


def measure_passes(rows: int, columns: int, repeats: int) -> Passes:
    """Write a table to Parquet and time one core's passes over it."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((rows, columns))
    y = X @ rng.standard_normal(columns) / math.sqrt(columns) + rng.logistic(size=rows) > 0
    with tempfile.TemporaryDirectory() as folder:
        table = pa.table({f"x{j}": X[:, j] for j in range(columns)} | {"y": y})
        pq.write_table(table, f"{folder}/rows.parquet", row_group_size=100_000)
        data = parquet(folder, target="y")
        model = sp.glm.LogisticRegression(l2=1e-2).fit(data)
        leak = sp.leakage(model, data, noise=sp.Gaussian(1.0))
        loss = PenalisedLoss(bernoulli, data.classes, 0.0, False, columns)
        objective = Objective.over(data, loss)
        found: list[Sums] = []
        work: dict[str, Callable[[], object]] = {
            "reading": lambda: sum(data.each(len, "reading")),
            "one Newton step": lambda: found.append(objective.at(model.coef_[0])),
            "η of every row": lambda: sum(map(len, leak.rows().chunks())),
            "dFIL of every row": lambda: sum(map(len, leak.rows(measure="dfil").chunks())),
        }
        times = {name: seconds(task, repeats, time.process_time) for name, task in work.items()}
    return Passes(rows, columns, times, len(pickle.dumps(found[0])))


@dataclass(frozen=True)
class PassModel:
    """Seconds per row on one core, from the columns."""

    read: float
    linear: dict[str, float]
    square: dict[str, float]

    def per_row(self, name: str, columns: int) -> float:
        """Return the seconds of one row in a pass."""
        work = 0.0
        if name != "reading":
            work = self.linear[name] * columns + self.square[name] * columns**2
        return self.read * columns + work


def fit_passes(measured: list[Passes]) -> PassModel:
    """Fit non-negative constants with the least relative errors."""
    d = np.asarray([m.columns for m in measured], dtype=float)
    n = np.asarray([m.rows for m in measured])

    def per_row(name: str) -> np.ndarray:
        return np.asarray([m.times[name] for m in measured]) / n

    total = per_row("reading")
    read = float(nnls((d / total)[:, None], np.ones(len(d)))[0][0])
    linear, square = {}, {}
    for name in NAMES[1:]:
        total = per_row(name)
        work = total - read * d
        found = nnls(np.stack([d, d**2], axis=1) / total[:, None], work / total)[0]
        linear[name], square[name] = map(float, found)
    return PassModel(read, linear, square)
