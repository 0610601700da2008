"""Reruns on neighbouring tables, from what is known, against reruns from the tables alone."""

import numpy as np
import pyarrow as pa
import pytest

from sampled import sampled
from seepage.auditing.release.disclosure import NeighbouringTables, rows_beside
from seepage.auditing.release.procedure import NeighbouringReruns, Procedure
from seepage.errors import InputError

ROWS = 300


def drawn(target):
    """Return people with numbers, two values, a category, and a target."""
    rng = np.random.default_rng(4)
    age, weight = rng.normal(50, 12, ROWS).round(1), rng.normal(70, 9, ROWS).round(1)
    member = rng.integers(0, 2, ROWS)
    town = rng.choice(["east", "north", "south", "west"], ROWS)
    score = (age - 50) / 12 + 0.7 * (town == "east") - 0.5 * member
    labels = {
        "dose": (score + rng.standard_normal(ROWS)).round(2),
        "visits": rng.poisson(np.exp(score / 2)),
        "ill": np.where(rng.random(ROWS) < 1 / (1 + np.exp(-score)), "yes", "no"),
        "grade": np.array(["low", "mid", "top"])[
            np.argmax(np.outer(score, [-1, 0, 1]) + rng.gumbel(size=(ROWS, 3)), axis=1)
        ],
    }
    columns = {"age": age, "weight": weight, "member": member, "town": town.tolist()}
    return pa.table({**columns, "person": np.arange(ROWS) // 2, target: labels[target].tolist()})


def with_gaps(raw):
    """Return the table with two missing ages."""
    age = raw.column("age").to_pylist()
    age[5] = age[9] = None
    return raw.set_column(0, "age", pa.array(age))


def with_rare_levels(raw):
    """Return the table with two towns of few people."""
    town = raw.column("town").to_pylist()
    town[:2], town[2:9] = ["nowhere"] * 2, ["far"] * 7
    return raw.set_column(raw.column_names.index("town"), "town", pa.array(town))


CASES = {
    "number": (drawn("dose"), {"target": "dose", "drop": ("person",)}, True),
    "count": (drawn("visits"), {"target": "visits", "drop": ("person",)}, True),
    "two classes": (drawn("ill"), {"target": "ill", "drop": ("person",)}, True),
    "three classes": (drawn("grade"), {"target": "grade", "drop": ("person",)}, True),
    "people": (drawn("visits"), {"target": "visits", "person": "person"}, True),
    "people with classes": (drawn("grade"), {"target": "grade", "person": "person"}, True),
    "domain": (
        drawn("ill"),
        {"target": "ill", "drop": ("person",), "domain": ("age=0:120",)},
        True,
    ),
    "gaps": (
        with_gaps(drawn("ill")),
        {"target": "ill", "drop": ("person",), "missing": "drop"},
        False,
    ),
    "rare levels": (
        with_rare_levels(drawn("ill")),
        {"target": "ill", "drop": ("person",), "rare": "merge"},
        None,
    ),
    "no penalty": (drawn("ill"), {"target": "ill", "drop": ("person",), "l2": 0.0}, False),
}


@pytest.mark.parametrize("name", sampled(CASES, 4))
def test_reruns_give_what_the_tables_alone_give(name, monkeypatch):
    raw, options, quick = CASES[name]
    procedure = Procedure(**options)
    prepared = procedure.prepare(raw)
    tables = NeighbouringTables(procedure, raw, prepared)
    reruns = NeighbouringReruns(procedure, raw, prepared)
    direct = []
    directly = NeighbouringReruns._directly
    monkeypatch.setattr(
        NeighbouringReruns,
        "_directly",
        lambda self, table, encoded=None: (direct.append(table), directly(self, table, encoded))[1],
    )
    tried = 0
    exposed = prepared.rows[np.argsort(-prepared.eta)[[0, 1, 2, len(prepared.eta) // 2]]]
    for row in exposed.tolist():
        rows = rows_beside(raw, row, procedure.person)
        changed = list(tables.of(rows))
        tried += len(changed)
        results = reruns.of(rows, [(table.table, table.columns) for table in changed])
        for table, result in zip(changed, results, strict=True):
            try:
                figures, needed, trained = procedure.rerun(table.table, prepared)
            except InputError:
                assert result is None
                continue
            assert result.figures == figures
            np.testing.assert_allclose(result.needed, needed, rtol=1e-7)
            ours, theirs = prepared.trained.model, trained.model
            moved = np.hypot(
                np.linalg.norm(ours.coef_ - theirs.coef_),
                np.linalg.norm(ours.intercept_ - theirs.intercept_),
            )
            np.testing.assert_allclose(result.moved, moved, rtol=1e-7)
    if quick is not None:
        # Only a change of the coding itself, such as of a column's unit, takes a fit from scratch.
        assert len(direct) <= tried / 4 if quick else len(direct) == tried
