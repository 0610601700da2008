"""A neighbouring table is encoded from what is known of the others, as if it were read anew."""

import numpy as np
import pyarrow as pa
import pytest

from seepage.auditing.intake.neighbouring_table import NeighbouringTable
from seepage.auditing.intake.table import TableInMemory, central_scale, encode, plan_columns

ROWS = 240


def raw_table():
    """Return numbers, two values, a category with a rare level, and three classes."""
    rng = np.random.default_rng(0)
    town = rng.choice(["east", "north", "west"], ROWS).astype(object)
    town[7] = "alone"
    return pa.table(
        {
            "age": rng.normal(50, 12, ROWS).round(1),
            "count": rng.integers(0, 9, ROWS),
            "smoker": rng.integers(0, 2, ROWS),
            "town": pa.array(town.tolist()),
            "class": rng.choice(["a", "b", "c"], ROWS).tolist(),
        }
    )


CHANGES = {
    "number": {"age": 400.0},
    "ends": {"age": -20.0, "count": 8},
    "two values": {"smoker": 1},
    "level": {"town": "west"},
    "label": {"class": "b"},
}


@pytest.mark.parametrize("rows", [[3], [7], [3, 4, 7]], ids=str)
@pytest.mark.parametrize("cells", CHANGES.values(), ids=CHANGES)
def test_a_neighbouring_table_is_encoded_as_if_it_were_read_anew(rows, cells):
    raw, rows = raw_table(), np.array(rows)
    changed = raw
    for name, cell in cells.items():
        column = raw.column(name).to_pylist()
        for row in rows.tolist():
            column[row] = cell
        field = raw.schema.field(name)
        place = raw.column_names.index(name)
        changed = changed.set_column(place, field, pa.array(column, field.type))

    def encoded(table):
        plan = plan_columns(table, "class")
        return plan, encode(table, plan, public={})

    before = TableInMemory(raw)
    rest = TableInMemory(raw.take(pa.array(np.delete(np.arange(ROWS), rows))))
    beside = NeighbouringTable(changed, before, encoded(before)[1], rest, rows, list(cells))
    plan, found = encoded(beside)
    anew, truth = encoded(TableInMemory(changed))
    assert (plan.kinds, plan.target_kind) == (anew.kinds, anew.target_kind)
    for name in raw.column_names:
        ours, theirs = plan.sums[name], anew.sums[name]
        assert (ours.rows, ours.missing, ours.levels) == (
            theirs.rows,
            theirs.missing,
            theirs.levels,
        )
        assert (ours.least, ours.most, ours.whole) == (theirs.least, theirs.most, theirs.whole)
        np.testing.assert_allclose(ours.mean, theirs.mean, rtol=1e-12)
        np.testing.assert_allclose(ours.squares, theirs.squares, rtol=1e-12)
    assert found.source.names == truth.source.names
    np.testing.assert_array_equal(found.source.X, truth.source.X)
    np.testing.assert_array_equal(found.source.y, truth.source.y)
    assert found.labels.counts == truth.labels.counts
    assert found.steps == truth.steps


@pytest.mark.parametrize("rows", [2, 11, 20, 39, 40, 41, 100, 1001])
def test_the_centre_and_spread_come_from_the_5th_and_95th_percentile(rows):
    rng = np.random.default_rng(rows)
    for values in (rng.standard_normal(rows), rng.integers(0, 4, rows).astype(float)):
        low, high = np.quantile(values, (0.05, 0.95), method="inverted_cdf").tolist()
        spread = (high - low) / 3.2897 if high > low else 9.0
        assert central_scale(values, 9.0) == ((low + high) / 2, spread)
