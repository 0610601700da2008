"""Numbers that once were wrong in silence, each beside its truth in 60 digits or by another way."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.linear_model import LogisticRegression, Ridge
from truth import Digits60, Objective, Truth, Whitened
from typer.testing import CliRunner

import seepage as sp
from sampled import sampled
from seepage.cli import app

pytestmark = pytest.mark.usefixtures("few_neighbours")


def true_jacobian(
    family: str,
    X: np.ndarray,
    y: np.ndarray,
    l2: float,
    intercept: bool,
    sigma: float = 1.0,
    classes: int = 1,
) -> Whitened:
    """Return the whitened Jacobian of the exact minimiser on the data as they are stored."""
    objective = Objective(family, X, y, len(X) * l2, intercept, classes=classes)
    return Truth(objective, Digits60()).whitened(np.asarray(sigma))


def rows_of(W: Whitened, n: int, label: bool = True) -> np.ndarray:
    """Return the true η of every record."""
    return np.array([W.norm(W.block([i], None, label)[:, 0, :]) for i in range(n)])


# 1: one unknown column ---------------------------------------------------------------------------


def one_dummy() -> tuple[sp.Leakage, pd.DataFrame]:
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"age": rng.normal(50, 10, 30), "bmi": rng.normal(25, 4, 30), "e7": 0.0})
    X.loc[7, "e7"] = 1.0
    y = 0.1 * X["age"] + 0.3 * X["bmi"] + rng.standard_normal(30)
    model = sp.glm.LinearRegression(fit_intercept=True).fit(X, y)
    return sp.leakage(model, X, y, noise=sp.Gaussian(0.5)), X


@pytest.mark.parametrize("column", ["age", "bmi", "e7"])
def test_one_unknown_has_the_inverse_of_its_information_for_a_bound(column: str) -> None:
    leak, X = one_dummy()
    bound = np.asarray(sp.bounds.cramer_rao_rows(leak, columns=[column]))
    truth = [1 / float(leak.information(i, columns=[column])[0, 0]) for i in range(len(X))]
    np.testing.assert_allclose(bound, truth, rtol=1e-9)


def test_noise_calibrated_on_one_unknown_meets_its_target() -> None:
    leak, _ = one_dummy()
    view = sp.bounds.cramer_rao_rows(leak, columns=["age"])
    # The bound on one unknown grows as the square of the noise.
    cells = np.asarray(leak.cells(columns=["age"]).mse_bound()) / 0.5**2
    assert cells.min() * sp.calibrate(leak, mse=4.0, view=view).sigma ** 2 >= 4.0
    exact = sp.calibrate(leak, mse=4.0, view=view, grid=None)
    assert cells.min() * exact.sigma**2 == pytest.approx(4.0, rel=1e-9)


# 2: columns far from zero ------------------------------------------------------------------------


def timestamps(ratio: float) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    X = np.column_stack([ratio + rng.standard_normal(12), rng.standard_normal(12)])
    y = 2 * (X[:, 0] - ratio) + X[:, 1] + 0.5 * rng.standard_normal(12)
    return X, y


@pytest.mark.parametrize("l2", [1e-3, 0.0])
@pytest.mark.parametrize("ratio", [1e4, 1e6, 1.7e8, 1e9])
def test_columns_far_from_zero_with_an_intercept(ratio: float, l2: float) -> None:
    X, y = timestamps(ratio)
    model = sp.glm.LinearRegression(l2=l2, fit_intercept=True).fit(X, y)
    leak = sp.leakage(model, X, y, noise=sp.Gaussian(1.0))
    truth = true_jacobian("gaussian", X, y, l2, True)
    np.testing.assert_allclose(np.asarray(leak.rows()), rows_of(truth, 12), rtol=1e-8)
    np.testing.assert_allclose(
        float(leak.dataset()), truth.norm(truth.block(None, None, True).reshape(3, -1)), rtol=1e-8
    )


@pytest.mark.parametrize("ratio", [1e5, 1e7, 1e9])
def test_logistic_regression_of_columns_far_from_zero(ratio: float) -> None:
    X, z = timestamps(ratio)
    y = (z + np.random.default_rng(2).standard_normal(12) > 0).astype(float)
    model = sp.glm.LogisticRegression(l2=1e-2, fit_intercept=True).fit(X, y)
    leak = sp.leakage(model, X, y, noise=sp.Gaussian(1.0))
    truth = true_jacobian("bernoulli", X, y, 1e-2, True)
    np.testing.assert_allclose(np.asarray(leak.rows()), rows_of(truth, 12), rtol=1e-7)


# 3: more columns than records, and hardly a penalty ----------------------------------------------


@pytest.mark.parametrize("intercept", sampled([False, True], [True]))
@pytest.mark.parametrize("l2", sampled([1e-8, 1e-10, 1e-12], 1))
def test_more_columns_than_records_and_a_weak_penalty(l2: float, intercept: bool) -> None:
    rng = np.random.default_rng(3)
    X, y = rng.standard_normal((8, 16)), rng.standard_normal(8)
    model = sp.glm.LinearRegression(l2=l2, fit_intercept=intercept).fit(X, y)
    leak = sp.leakage(model, X, y, noise=sp.Gaussian(1.0))
    truth = true_jacobian("gaussian", X, y, l2, intercept)
    rows = rows_of(truth, 8)
    np.testing.assert_allclose(np.asarray(leak.rows()), rows, rtol=1e-6)
    whole = truth.block(None, None, True)
    np.testing.assert_allclose(
        float(leak.dataset()), truth.norm(whole.reshape(len(whole), -1)), rtol=1e-6
    )
    np.testing.assert_allclose(float(leak.subset([0], label=True)), rows[0], rtol=1e-6)
    squares = np.asarray(leak.rows(measure="dfil")) ** 2 * 17
    assert float(leak.dataset()) ** 2 <= squares.sum() * (1 + 1e-6)


# 4: biased adversaries ---------------------------------------------------------------------------


def test_a_biased_bound_does_not_depend_on_units() -> None:
    bound = sp.bounds.biased(np.diag([1e14, 1.0]), np.zeros((2, 2)))
    assert float(bound) == pytest.approx(0.5, rel=1e-12)


# 5: calibration of bounds that do not grow as the square of the noise ----------------------------


def small_leak(sigma: float) -> sp.Leakage:
    rng = np.random.default_rng(4)
    X, y = rng.standard_normal((40, 2)), rng.standard_normal(40)
    model = sp.glm.LinearRegression(l2=0.1).fit(X, y)
    return sp.leakage(model, X, y, noise=sp.Gaussian(sigma))


PRIOR = sp.bounds.GaussianPrior(std=1.0)
NOT_SQUARE = {
    "van Trees": lambda leak: sp.bounds.van_trees_rows(leak, PRIOR, rows=[0, 1]),
    "biased": lambda leak: sp.bounds.biased_leakage(leak.rows(), slope=0.5, bias=0.3),
    "finite changes": lambda leak: (
        sp.bounds.hammersley_chapman_robbins(leak, 0, 0, domain=(-3, 3)).bound
    ),
}


@pytest.mark.parametrize("name", sampled(list(NOT_SQUARE), ["biased", "finite changes"]))
def test_noise_calibrated_on_other_bounds_meets_its_target(name: str) -> None:
    bound = NOT_SQUARE[name]
    leak = small_leak(0.01)

    def reached(sigma: float) -> float:
        return float(np.min(np.asarray(bound(small_leak(sigma)))))

    assert reached(sp.calibrate(leak, mse=0.5, view=bound(leak)).sigma) >= 0.5
    exact = sp.calibrate(leak, mse=0.5, view=bound(leak), grid=None)
    assert reached(exact.sigma) == pytest.approx(0.5, rel=1e-3)


def test_a_target_beyond_the_prior_is_refused() -> None:
    leak = small_leak(0.01)
    with pytest.raises(sp.InputError, match="No amount of noise makes"):
        sp.calibrate(leak, mse=2.0, view=sp.bounds.van_trees_rows(leak, PRIOR, rows=[0]))


# 6: softmax of columns in unlike units -----------------------------------------------------------


@pytest.mark.parametrize("ratio", [1e6, 1e7, 1e12])
def test_softmax_does_not_depend_on_the_units_of_the_columns(ratio: float) -> None:
    rng = np.random.default_rng(5)
    X, y = rng.standard_normal((15, 2)) * [1.0, ratio], np.arange(15) % 3
    model = sp.glm.SoftmaxRegression(l2=0.0, fit_intercept=True).fit(X, y)
    leak = sp.leakage(model, X, y, noise=sp.Gaussian(1.0))
    truth = true_jacobian("categorical", X, y, 0.0, True, classes=3)
    np.testing.assert_allclose(np.asarray(leak.rows()), rows_of(truth, 15), rtol=1e-8)


# 7: float32 --------------------------------------------------------------------------------------


def test_columns_of_a_one_hot_attribute_in_float32() -> None:
    rng = np.random.default_rng(6)
    code = np.eye(3)[rng.integers(0, 3, 40)]
    X = np.column_stack([code, rng.standard_normal((40, 12))]).astype(np.float32).astype(float)
    y = rng.standard_normal(40).astype(np.float32).astype(float)
    model = sp.glm.LinearRegression(l2=0.1, fit_intercept=True).fit(X, y)
    for other in ([0, 1, 2], [0, 1, 2, 3], list(range(8))):
        options = {"noise": sp.Gaussian(1.0), "attributes": {"kind": other}}
        narrow = sp.leakage(model, X, y, dtype="float32", **options).columns()
        wide = sp.leakage(model, X, y, **options).columns()
        np.testing.assert_allclose(np.asarray(narrow), np.asarray(wide), rtol=1e-4)
    short = X[:, :3]
    model = sp.glm.LinearRegression(l2=0.8).fit(short, y)
    options = {"noise": sp.Gaussian(1.0), "attributes": {"kind": [0, 1, 2]}}
    narrow = sp.leakage(model, short, y, dtype="float32", **options).columns()
    wide = sp.leakage(model, short, y, **options).columns()
    np.testing.assert_allclose(np.asarray(narrow), np.asarray(wide), rtol=1e-4)


@pytest.mark.parametrize("l2", [1e-2, 1e-4, 1e-6])
def test_more_columns_than_records_in_float32(l2: float) -> None:
    rng = np.random.default_rng(7)
    X = rng.standard_normal((20, 60)).astype(np.float32).astype(float)
    y = rng.standard_normal(20).astype(np.float32).astype(float)
    model = sp.glm.LinearRegression(l2=l2).fit(X, y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        narrow = sp.leakage(model, X, y, noise=sp.Gaussian(1.0), dtype="float32")
        wide = sp.leakage(model, X, y, noise=sp.Gaussian(1.0))
    assert float(narrow.dataset()) == pytest.approx(float(wide.dataset()), rel=1e-3)
    np.testing.assert_allclose(np.asarray(narrow.rows()), np.asarray(wide.rows()), rtol=1e-3)


# 8: a model at scikit-learn's default tolerance --------------------------------------------------


def fair() -> tuple[np.ndarray, np.ndarray]:
    from statsmodels.datasets import fair as source

    table = source.load_pandas().data
    X = table.drop(columns="affairs").to_numpy()
    return (X - X.mean(axis=0)) / X.std(axis=0), (table["affairs"] > 0).astype(int).to_numpy()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::seepage.errors.NotConvergedWarning")
def test_finite_changes_start_from_the_minimiser_and_not_from_where_a_fit_stopped() -> None:
    X, y = fair()
    found = []
    for model in (LogisticRegression(), LogisticRegression(tol=1e-12, max_iter=10_000)):
        leak = sp.leakage(model.fit(X, y), X, y, noise=sp.Gaussian(0.1))
        found.append(float(sp.bounds.hammersley_chapman_robbins(leak, 329, 7)))
    assert found[0] == pytest.approx(found[1], rel=1e-2)


# 9: columns of two values ------------------------------------------------------------------------


def two_valued(low: object, high: object) -> pd.DataFrame:
    rng = np.random.default_rng(8)
    sick = rng.random(400) < 0.03
    visits = rng.poisson(np.exp(0.2 + 1.2 * sick + 0.1 * rng.standard_normal(400)))
    age = rng.normal(50, 10, 400).round(1)
    return pd.DataFrame({"sick": np.where(sick, high, low), "age": age, "visits": visits})


@pytest.mark.parametrize(("low", "high"), sampled([(0, 1), (1, 2)], 1))
def test_a_column_of_two_values_is_measured_in_whole_levels(low: int, high: int) -> None:
    table = two_valued(low, high)
    X, y = table[["sick", "age"]].astype({"sick": int}), table["visits"]
    scaled = (X - X.mean()) / [1.0, X["age"].std()]
    scaled["sick"] = X["sick"]
    model = sp.glm.PoissonRegression(l2=1e-3, fit_intercept=True).fit(scaled, y)
    found = sp.audit(model, scaled, y, sensitive=["sick"])
    leak = sp.leakage(model, scaled, y, noise=sp.Gaussian(found.sigma))
    # η = 1 is the default target: one flip must not move the release by more than that.
    assert float(np.max(np.asarray(leak.cells(columns=["sick"])))) <= 1 + 1e-6


@pytest.mark.minutes
@pytest.mark.parametrize(("low", "high"), [(0, 1), (1, 2), ("no", "yes")])
def test_both_doors_ask_for_the_same_noise(low: object, high: object, tmp_path: Path) -> None:
    table = two_valued(low, high)
    coded = table.assign(sick=(table["sick"] == high).astype(int))
    path = tmp_path / "table.csv"
    table.to_csv(path, index=False)
    told = CliRunner().invoke(
        app, ["audit", str(path), "--target", "visits", "--l2", "1e-3", "--json"]
    )
    assert told.exit_code == 0, told.output
    noise = json.loads(told.stdout)["release"]["sigma"]
    X = coded[["sick", "age"]].astype(float)
    X["age"] = (X["age"] - X["age"].mean()) / X["age"].std(ddof=0)
    X["sick"] = X["sick"].astype(int)
    model = sp.glm.PoissonRegression(l2=1e-3, fit_intercept=True).fit(X, coded["visits"])
    assert sp.audit(model, X, coded["visits"]).sigma == pytest.approx(noise, rel=1e-6)


# 10: and these -----------------------------------------------------------------------------------


def test_a_covariance_may_hold_very_unlike_variances() -> None:
    noise = sp.Gaussian(np.diag([1e-8, 1e8]))
    np.testing.assert_allclose(noise.information(2), np.diag([1e8, 1e-8]), rtol=1e-12)


def test_noise_for_another_number_of_outputs_is_refused_in_words() -> None:
    rng = np.random.default_rng(9)
    model = Ridge().fit(rng.standard_normal((30, 3)), rng.standard_normal((30, 2)))
    with pytest.raises(sp.InputError, match=r"has 8 numbers .*, but the noise has 4"):
        sp.release(model, sp.Gaussian(np.ones(4)))


@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("x", [0.8, 1.0, -3.7])
def test_one_record_with_an_intercept(d: int, x: float) -> None:
    X, y = np.full((1, d), x), np.array([2.0])
    model = sp.glm.LinearRegression(l2=0.3, fit_intercept=True).fit(X, y)
    leak = sp.leakage(model, X, y, noise=sp.Gaussian(1.0))
    truth = true_jacobian("gaussian", X, y, 0.3, True)
    np.testing.assert_allclose(np.asarray(leak.rows()), rows_of(truth, 1), rtol=1e-9)


def audited(table: pd.DataFrame, path: Path, *options: str) -> dict:
    pq.write_table(pa.Table.from_pandas(table, preserve_index=False), path)
    told = CliRunner().invoke(app, ["audit", str(path), "--target", "y", "--json", *options])
    assert told.exit_code == 0, told.output
    return dict(json.loads(told.stdout))


def test_a_column_far_from_zero_varies(tmp_path: Path) -> None:
    rng = np.random.default_rng(10)
    far = 1e15 + rng.normal(50, 10, 60)
    table = pd.DataFrame({"far": far, "x": rng.standard_normal(60)})
    table["y"] = (far - 1e15) / 10 + table["x"] + rng.standard_normal(60)
    found = audited(table, tmp_path / "far.parquet")
    assert "far" in [column["name"] for column in found["attributes"]]


def test_a_target_beyond_what_floats_can_tell_apart_is_refused(tmp_path: Path) -> None:
    rng = np.random.default_rng(11)
    y = np.uint64(2**60) + rng.integers(0, 100, 60).astype(np.uint64)
    table = pd.DataFrame({"x": rng.standard_normal(60), "y": y})
    pq.write_table(pa.Table.from_pandas(table, preserve_index=False), tmp_path / "large.parquet")
    told = CliRunner().invoke(
        app, ["audit", str(tmp_path / "large.parquet"), "--target", "y", "--json"]
    )
    assert told.exit_code != 0
    assert "2⁵³" in told.output


@pytest.mark.minutes
def test_the_spread_of_a_category_of_two_levels_is_that_of_zero_and_one() -> None:
    table = two_valued("no", "yes")
    share = float((table["sick"] == "yes").mean())
    from sklearn.compose import make_column_transformer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    model = make_pipeline(
        make_column_transformer(
            (OneHotEncoder(drop="first"), ["sick"]), (StandardScaler(), ["age"])
        ),
        Ridge(1.0),
    ).fit(table[["sick", "age"]], table["visits"])
    found = sp.audit(model, table[["sick", "age"]], table["visits"])
    spread = next(a.spread for a in found.attributes if a.name == "sick")
    assert spread == pytest.approx(np.sqrt(share * (1 - share)), rel=1e-9)


@pytest.mark.slow
def test_the_median_of_an_audit_is_the_median(tmp_path: Path) -> None:
    rng = np.random.default_rng(12)
    table = pd.DataFrame({"x": rng.standard_normal(60), "z": rng.standard_normal(60)})
    table["y"] = table["x"] + rng.standard_normal(60)
    found = audited(table, tmp_path / "even.parquet", "--l2", "1e-3")
    X = table[["x", "z"]]
    X = (X - X.mean()) / X.std(ddof=0)
    model = sp.glm.LinearRegression(l2=1e-3, fit_intercept=True).fit(X, table["y"])
    values = np.asarray(sp.audit(model, X, table["y"]).eta)
    assert found["records"]["eta"]["0.5"] == pytest.approx(np.median(values), rel=1e-9)


def test_who_has_set_a_penalty_is_not_told_to_set_one() -> None:
    X, z = timestamps(1e9)
    y = (z + np.random.default_rng(2).standard_normal(12) > 0).astype(float)
    told = ""
    try:
        sp.glm.LogisticRegression(l2=1e-2, fit_intercept=True).fit(X, y)
    except sp.InputError as refusal:
        told = str(refusal)
    assert "set l2" not in told
