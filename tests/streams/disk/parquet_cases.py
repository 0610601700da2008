"""Tables as Parquet in awkward pieces: many files, small uneven row groups, all column types."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ROWS = 700
CUTS = (0, 1, 260, 300, ROWS)  # one file has a single row
MODELS = {"linear": "amount", "logistic": "bought", "poisson": "visits", "softmax": "plan"}


def people(seed: int = 0) -> pa.Table:
    """Return a table with columns of every kind that can be a feature, labels and weights."""
    rng = np.random.default_rng(seed)
    age = rng.normal(50, 12, ROWS)
    height = rng.normal(1.7, 0.1, ROWS).astype(np.float32)
    children = rng.integers(0, 5, ROWS).astype(np.int16)
    insured = rng.random(ROWS) < 0.4
    city = np.array(["Oslo", "Bergen", "Å", "naïve, city"])[rng.integers(0, 4, ROWS)]
    grade = rng.integers(0, 3, ROWS)
    margin = 0.03 * (age - 50) + 0.4 * children - insured + (city == "Oslo") - 0.5
    return pa.table(
        {
            "age": age,
            "height": height,
            "children": children,
            "insured": insured,
            "grade": pa.array(grade).dictionary_encode(),
            "city": pa.array(city.tolist()).dictionary_encode(),
            "amount": margin + rng.normal(0, 1, ROWS),
            "bought": np.where(margin + rng.logistic(size=ROWS) > 0, "yes", "no"),
            "visits": rng.poisson(np.exp(0.5 * margin)),
            "plan": rng.integers(0, 3, ROWS) + 7,
            "weight": rng.choice([0.5, 1.0, 2.0], ROWS),
            "region": np.array(["north", "south", "west"])[rng.integers(0, 3, ROWS)],
        }
    )


def write_folder(table: pa.Table, folder: Path, cuts: tuple[int, ...] = CUTS) -> Path:
    """Write a table as several files of small row groups."""
    folder.mkdir(parents=True, exist_ok=True)
    for k, (start, stop) in enumerate(pairwise(cuts)):
        pq.write_table(table.slice(start, stop - start), folder / f"{k}.parquet", row_group_size=97)
    return folder


NUMERIC = ("age", "height", "children", "insured", "grade")
FEATURES = (*NUMERIC, "city")


def features(table: pa.Table, scale: bool = False, drop_first: bool = False) -> np.ndarray:
    """Return the features as they are meant, by NumPy alone."""
    columns = []
    for name in NUMERIC:
        values = np.asarray(table.column(name).to_pylist(), dtype=float)
        if scale and name != "insured":
            values = (values - values.mean()) / values.std()
        columns.append(values)
    city = np.asarray(table.column("city").to_pylist())
    for level in sorted(set(city.tolist()))[int(drop_first) :]:
        columns.append((city == level).astype(float))
    return np.stack(columns, axis=1)


def labels(table: pa.Table, name: str) -> np.ndarray:
    """Return a column of labels."""
    return np.asarray(table.column(name).to_pylist())
