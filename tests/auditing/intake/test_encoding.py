"""The encoded table against the values it came from."""

import numpy as np
import pyarrow as pa
import pytest
from people import encode, plan_columns

from seepage.auditing.intake import table as intake
from seepage.core.noise import Gaussian
from seepage.errors import InputError
from seepage.glm import LinearRegression, LogisticRegression, SoftmaxRegression
from seepage.glm.leakage import leakage

N = 90
RNG = np.random.default_rng(11)
COLUMNS = {
    "age": RNG.normal(50, 10, N),
    "town": RNG.choice(["Bonn", "Aachen", "Celle"], N),
    "smoker": RNG.random(N) < 0.4,
    "weight": RNG.integers(40, 120, N),
    "sex": RNG.choice(["m", "f"], N),
    "y": RNG.normal(size=N),
}


def table(**more):
    return pa.table({**COLUMNS, **more})


def encoded(columns, target="y", *, scale=True, drop_first=True, **options):
    return encode(
        columns, plan_columns(columns, target, **options), scale=scale, drop_first=drop_first
    )


def test_every_cell_can_be_read_back():
    found = encoded(table(), drop_first=False)
    assert found.X.shape == (N, len(found.names))
    assert found.X.flags.c_contiguous
    where = found.positions()
    for name in ("age", "weight"):
        (j,) = where[name]
        np.testing.assert_allclose(found.X[:, j].mean(), 0, atol=1e-12)
        np.testing.assert_allclose(found.X[:, j].std(), 1)
        column = np.asarray(COLUMNS[name], dtype=float)
        np.testing.assert_allclose(found.X[:, j] * found.units[j] + column.mean(), column)
        assert found.spread[name] == pytest.approx(column.std())
    np.testing.assert_array_equal(found.X[:, where["smoker"][0]], COLUMNS["smoker"])
    levels = ["Aachen", "Bonn", "Celle"]
    assert found.attributes["town"] == tuple(f"town={level}" for level in levels)
    block = found.X[:, where["town"]]
    np.testing.assert_array_equal(block.sum(axis=1), 1)
    assert [levels[k] for k in block.argmax(axis=1)] == COLUMNS["town"].tolist()
    assert found.spread["town"] == pytest.approx(np.sqrt(block.var(axis=0).sum()))
    others = [j for j in range(len(found.names)) if found.names[j] not in ("age", "weight")]
    np.testing.assert_array_equal(found.units[others], 1)


def test_first_level_is_dropped_for_an_intercept_only():
    full, less = encoded(table(), drop_first=False), encoded(table())
    assert less.attributes["town"] == ("town=Bonn", "town=Celle")
    assert less.attributes["sex"] == ("sex=m",)
    kept = [full.names.index(name) for name in less.names]
    np.testing.assert_array_equal(less.X, full.X[:, kept])
    assert np.linalg.matrix_rank(np.column_stack([less.X, np.ones(N)])) == less.X.shape[1] + 1


def test_without_scaling_values_and_units_stay():
    found = encoded(table(), scale=False)
    j = found.names.index("age")
    np.testing.assert_array_equal(found.X[:, j], COLUMNS["age"])
    np.testing.assert_array_equal(found.units, 1)
    assert found.spread["age"] == pytest.approx(COLUMNS["age"].std())
    assert any("used as they are" in step for step in found.steps)


def test_dropping_rows_keeps_their_numbers_groups_and_values_together():
    age = [None if i in (3, 40) else v for i, v in enumerate(COLUMNS["age"])]
    y = [None if i == 7 else v for i, v in enumerate(COLUMNS["y"])]
    region = [None if i == 5 else "north" for i in range(N)]
    found = encoded(
        table(age=age, y=y, region=region),
        missing="drop",
        groups=["sex", "region"],
        drop=["region"],
    )
    rows = np.array([i for i in range(N) if i not in (3, 7, 40)])
    np.testing.assert_array_equal(found.row_index, rows)
    np.testing.assert_array_equal(found.y, COLUMNS["y"][rows])
    assert found.groups["sex"].tolist() == COLUMNS["sex"][rows].tolist()
    assert found.groups["region"].tolist() == ["(missing)" if i == 5 else "north" for i in rows]
    assert found.raw.column("age").to_pylist() == [age[i] for i in rows]
    assert "1 row was dropped because of a missing target." in found.steps
    assert "2 rows were dropped (of 90) because of a missing value in a feature." in found.steps


def test_imputing_fills_with_what_it_says():
    gaps = [2, 30, 31]
    age = [None if i in gaps else v for i, v in enumerate(COLUMNS["age"])]
    town = [None if i in gaps else v for i, v in enumerate(COLUMNS["town"])]
    smoker = [None if i in gaps else bool(v) for i, v in enumerate(COLUMNS["smoker"])]
    y = [None if i == 7 else v for i, v in enumerate(COLUMNS["y"])]
    found = encoded(table(age=age, town=town, smoker=smoker, y=y), missing="impute", scale=False)
    assert len(found.y) == N - 1
    rest = [i for i in range(N) if i not in [*gaps, 7]]
    median = np.median(COLUMNS["age"][rest])
    np.testing.assert_allclose(found.X[[2, 29, 30], found.names.index("age")], median)
    names, counts = np.unique(COLUMNS["town"][rest], return_counts=True)
    usual = names[counts.argmax()]
    for k, name in enumerate(found.names):
        if name.startswith("town="):
            np.testing.assert_array_equal(found.X[[2, 29, 30], k], float(name == f"town={usual}"))
    mostly = float(COLUMNS["smoker"][rest].mean() > 0.5)
    np.testing.assert_array_equal(found.X[[2, 29, 30], found.names.index("smoker")], mostly)
    said = " ".join(found.steps)
    assert f"In 'age', 3 gaps were filled with the median, {median:g}." in said
    assert f"In 'town', 3 gaps were filled with the most frequent value, '{usual}'." in said
    assert "dropped because of a missing target" in said


@pytest.mark.parametrize("drop_first", [True, False])
def test_leakage_reads_the_encoding(drop_first):
    found = encoded(table(), drop_first=drop_first)
    model = LinearRegression(l2=1e-3, fit_intercept=drop_first).fit(found.X, found.y)
    leak = leakage(model, found.X, found.y, noise=Gaussian(1.0), attributes=found.positions())
    assert list(leak.columns().labels()) == list(found.attributes)
    assert np.all(np.asarray(leak.rows(columns="town")) > 0)


@pytest.mark.parametrize(
    ("values", "kind", "dtype"),
    [
        (np.where(np.arange(N) % 3 == 0, "no", "yes"), "binary", object),
        (np.arange(N) % 3 == 0, "binary", np.int64),
        (np.arange(N) % 2 + 1.0, "binary", np.int64),
        (np.array(["a", "b", "c"])[np.arange(N) % 3], "multiclass", object),
        (RNG.poisson(2, N), "count", np.float64),
    ],
)
def test_targets_fit_the_models_they_are_for(values, kind, dtype):
    found = encoded(table(y=values))
    assert found.target_kind == kind
    assert found.y.dtype == dtype
    assert found.y.tolist() == values.tolist()
    if kind != "count":
        model = (LogisticRegression if kind == "binary" else SoftmaxRegression)(l2=0.1)
        assert set(model.fit(found.X, found.y).predict(found.X)) <= set(values.tolist())


def test_codes_named_as_categories_are_in_the_order_of_numbers():
    codes = np.array([2, 10, 1])[np.arange(N) % 3]
    found = encoded(table(code=codes), categorical=["code"], drop_first=False)
    assert found.attributes["code"] == ("code=1", "code=2", "code=10")
    np.testing.assert_array_equal(found.X[:, found.names.index("code=10")], codes == 10)
    halves = encoded(table(y=codes / 2), categorical=["y"])
    assert sorted(set(halves.y)) == ["0.5", "1", "5"]


def test_what_row_dropping_makes_constant_is_dropped_or_refused():
    almost = np.zeros(N)
    almost[4] = 1.0
    age = [None if i == 4 else v for i, v in enumerate(COLUMNS["age"])]
    found = encoded(table(almost=almost, age=age), missing="drop")
    assert "almost" not in found.attributes
    assert "'almost'" in " ".join(found.steps)
    with pytest.raises(InputError, match="'almost' has only one value"):
        encoded(table(almost=almost, age=age), missing="drop", sensitive=["almost"])
    with pytest.raises(InputError, match="target 'almost' has only one value"):
        encoded(table(almost=almost, age=age), "almost", missing="drop")
    with pytest.raises(InputError, match="Every feature"):
        encoded(
            pa.table({"almost": almost, "y": [None if i == 4 else i / 3 for i in range(N)]}),
            missing="drop",
        )


def test_too_few_rows_left():
    half = N // 2
    left = [1.5 + i if i < half else None for i in range(N)]
    right = [None if i < half else 2.5 + i for i in range(N)]
    with pytest.raises(InputError, match=r"0 rows are left of 90 .* at least 10 .* impute"):
        encoded(table(left=left, right=right), missing="drop")
    few = [1.5 + i if i < 9 else None for i in range(N)]
    with pytest.raises(InputError, match="at least 10 are needed; provide more rows with a target"):
        encoded(table(few=few), "few", missing="impute")


def test_rounding_is_no_variation_and_huge_values_are_refused():
    found = encoded(table(flat=1e9 + 1e-7 * (np.arange(N) % 2)))
    assert "flat" not in found.attributes
    with pytest.raises(InputError, match=r"'huge' .* are too large"):
        encoded(table(huge=1e300 * (np.arange(N) + 1.0)))


def test_table_too_large_is_refused_before_it_is_made(monkeypatch):
    monkeypatch.setattr(intake, "MOST_BYTES", 8 * N * 5)
    with pytest.raises(
        InputError, match=r"90 rows and 6 columns .* 'town' accounts for 2 of these"
    ):
        encoded(table())


def test_features_called_alike_stay_apart():
    found = encoded(table(**{"town=Bonn": RNG.normal(size=N)}))
    assert len(set(found.names)) == len(found.names)
    assert sorted(j for where in found.positions().values() for j in where) == list(
        range(found.X.shape[1])
    )


def test_booleans_numbers_and_decimals_of_any_width():
    import decimal

    found = encoded(
        table(
            tiny=pa.array(np.arange(N) % 50, pa.uint8()),
            single=pa.array(COLUMNS["age"], pa.float32()),
            money=[decimal.Decimal(i % 17) / 4 for i in range(N)],
        ),
        scale=False,
    )
    np.testing.assert_array_equal(found.X[:, found.names.index("tiny")], np.arange(N) % 50)
    np.testing.assert_allclose(
        found.X[:, found.names.index("single")], COLUMNS["age"].astype(np.float32)
    )
    np.testing.assert_array_equal(found.X[:, found.names.index("money")], np.arange(N) % 17 / 4)


def test_the_two_zeros_of_floating_point_are_one_level():
    codes = np.tile([0.0, -0.0, 2.5], N // 3)
    found = encoded(table(code=codes), categorical=["code"], groups=["code"], drop_first=False)
    assert found.attributes["code"] == ("code=0", "code=2.5")
    block = found.X[:, found.positions()["code"]]
    np.testing.assert_array_equal(block, np.stack([codes == 0, codes == 2.5], axis=1))
    assert set(found.groups["code"]) == {"0", "2.5"}


def test_values_of_few_records_are_counted():
    jobs = ["baker"] * 15 + ["judge"] * 3 + ["smith"] * 12 + ["queen"]
    table = pa.table({"job": jobs, "y": np.arange(31.0) ** 1.5})
    said = " ".join(encode(table, plan_columns(table, "y")).steps)
    assert "'job' (2 of 4 levels, 1 of them in only one record)" in said
    common = pa.table({"job": ["baker"] * 15 + ["smith"] * 16, "y": np.arange(31.0) ** 1.5})
    assert "would leave" not in " ".join(encode(common, plan_columns(common, "y")).steps)


def test_public_records_are_many_enough_and_have_known_labels_and_columns():
    rng = np.random.default_rng(2)
    x = rng.normal(size=40)
    private = pa.table({"x": x, "y": np.where(x > 0, "yes", "no")})
    plan = plan_columns(private, "y")

    def public(records):
        mine, theirs = intake.TableInMemory(private), intake.TableInMemory(records)
        return intake.encode(mine, plan, public_records=theirs).public

    # They are scaled like the private records, not by their own mean.
    want = (x[:20] - x.mean()) / x.std()
    np.testing.assert_allclose(public(private.slice(0, 20)).X[:, 0], want)
    for few in (
        private.slice(0, 9),
        pa.table({"x": x, "y": ["perhaps"] * 40}),
    ):
        with pytest.raises(InputError, match="at least 10 public records, each with a label"):
            public(few)
    with pytest.raises(InputError, match="The public records have no column 'x'"):
        public(private.drop_columns("x"))
