"""Risks of whole procedures beside refits by scikit-learn, written out by hand."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import statsmodels.formula.api as smf
from scipy.stats import norm
from sklearn.base import clone
from sklearn.compose import ColumnTransformer, make_column_transformer
from sklearn.feature_selection import SelectKBest, f_classif
from sklearn.impute import SimpleImputer
from sklearn.linear_model import (
    LassoCV,
    LogisticRegression,
    LogisticRegressionCV,
    PoissonRegressor,
    Ridge,
    RidgeCV,
)
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    KBinsDiscretizer,
    MinMaxScaler,
    OneHotEncoder,
    StandardScaler,
    TargetEncoder,
)

import seepage as sp
from sampled import sampled

# scikit-learn 1.9 says this of random_state in TargetEncoder, which older versions need.
pytestmark = pytest.mark.filterwarnings("ignore:`TargetEncoder:FutureWarning")

N, SIGMA = 40, 0.1
_RNG = np.random.default_rng(3)
PEOPLE = pd.DataFrame(
    {
        "age": _RNG.normal(50, 9, N),
        "income": _RNG.gamma(1.0, size=N),
        "dose": _RNG.standard_normal(N),
        "town": _RNG.choice(list("abc"), N),
        "sex": np.where(_RNG.random(N) < 0.4, "f", "m"),
    }
)
_SCORE = (PEOPLE["age"] - 50) / 9 + PEOPLE["income"] - 1 + (PEOPLE["town"] == "a")
ILL = (_SCORE + _RNG.logistic(size=N) > 0).to_numpy().astype(int)
REAL = (_SCORE + _RNG.standard_normal(N)).to_numpy()
COUNTS = _RNG.poisson(np.exp(0.3 * _SCORE))
NUMBERS = PEOPLE[["age", "income", "dose"]]
GAPS = NUMBERS.mask(_RNG.random(NUMBERS.shape) < 0.1)
TIGHT = {"tol": 1e-12, "max_iter": 10_000, "solver": "newton-cholesky"}


def bins() -> KBinsDiscretizer:
    return KBinsDiscretizer(3, encode="onehot-dense", quantile_method="averaged_inverted_cdf")


def encoded() -> object:
    """Scaled numbers, one-hot towns."""
    return make_column_transformer(
        (StandardScaler(), ["age", "income"]), (OneHotEncoder(), ["town", "sex"])
    )


def logistic(**more: object) -> LogisticRegression:
    return LogisticRegression(**TIGHT, **more)


# The procedure, its table and labels, what derivatives hold fixed, and what refits do.
CASES = {
    "scaler": (make_pipeline(StandardScaler(), logistic()), NUMBERS, ILL, ("scaling",)),
    "range": (make_pipeline(MinMaxScaler(), Ridge(0.5)), NUMBERS, REAL, ("scaling",)),
    "median": (
        make_pipeline(SimpleImputer(strategy="median"), Ridge(0.5)),
        GAPS,
        REAL,
        ("imputed values",),
    ),
    "encoder": (make_pipeline(encoded(), logistic()), PEOPLE, ILL, ("scaling", "levels")),
    "RidgeCV": (RidgeCV(np.logspace(-2, 3, 12)), NUMBERS, REAL, ("penalty",)),
    "LassoCV": (
        LassoCV(cv=2, alphas=8, tol=1e-12, max_iter=100_000),
        NUMBERS,
        REAL,
        ("selected columns", "penalty"),
    ),
    "LogisticRegressionCV": (
        LogisticRegressionCV(
            Cs=3,
            cv=2,
            l1_ratios=(0.0,),
            use_legacy_attributes=False,
            scoring="neg_log_loss",
            **TIGHT,
        ),
        NUMBERS,
        ILL,
        ("penalty",),
    ),
    "GridSearchCV": (
        GridSearchCV(
            make_pipeline(StandardScaler(), logistic()),
            {"logisticregression__C": [0.1, 10.0]},
            cv=2,
        ),
        NUMBERS,
        ILL,
        ("settings", "scaling"),
    ),
    "SelectKBest": (
        make_pipeline(SelectKBest(f_classif, k=2), logistic()),
        NUMBERS,
        ILL,
        ("selected columns",),
    ),
    "KBinsDiscretizer": (make_pipeline(bins(), logistic()), NUMBERS, ILL, ("bins",)),
    "TargetEncoder": (
        make_pipeline(TargetEncoder(cv=3, random_state=0), logistic()),
        PEOPLE[["town"]],
        ILL,
        ("encodings",),
    ),
    "a penalty beside a mean": (
        make_pipeline(StandardScaler(), PoissonRegressor(alpha=0.1, tol=1e-12, max_iter=10_000)),
        NUMBERS,
        COUNTS,
        ("scaling",),
    ),
}


def final(fitted: object) -> object:
    while hasattr(fitted, "best_estimator_") or hasattr(fitted, "steps"):
        fitted = fitted.best_estimator_ if hasattr(fitted, "best_estimator_") else fitted[-1]
    return fitted


def released(procedure: object, X: pd.DataFrame, y: np.ndarray) -> tuple[np.ndarray, object]:
    """Return what a procedure releases from a table, and which columns these numbers are of."""
    fitted = clone(procedure).fit(X, y)
    model = final(fitted)
    steps = getattr(fitted, "steps", None)
    chosen = steps[0][1].get_support().tolist() if "select" in str(steps) else None
    kept = np.flatnonzero(np.ravel(model.coef_)).tolist()
    numbers = np.append(np.ravel(model.coef_), np.ravel(model.intercept_))
    return numbers, (chosen, kept)


def without(procedure: object, X: pd.DataFrame, y: np.ndarray, row: int) -> float:
    here, meaning = released(procedure, X, y)
    kept = np.delete(np.arange(len(y)), row)
    there, other = released(procedure, X.iloc[kept], y[kept])
    # Numbers of other columns give the record away.
    return float(np.linalg.norm(there - here)) / SIGMA if meaning == other else np.inf


@pytest.mark.parametrize("name", sampled(list(CASES), 12))
def test_membership_is_that_of_the_whole_procedure(name: str) -> None:
    procedure, X, y, learnt = CASES[name]
    leak = sp.leakage(clone(procedure).fit(X, y), X, y, noise=sp.Gaussian(SIGMA))
    rows = range(0, N, 8)
    found = leak.membership(rows)
    truth = np.array([without(procedure, X, y, row) for row in rows])
    assert np.asarray(found) == pytest.approx(truth, rel=1e-5)
    assert (leak.held, found.mu.held, found.mu.kind) == (learnt, (), "exact")
    assert any("learnt again" in text for text in found.mu.assumptions)


def test_a_choice_on_a_grid_leaks_though_its_derivative_is_zero() -> None:
    """The penalty changes without some records, and the coefficients with it."""
    procedure, X, y, _ = CASES["RidgeCV"]
    model = clone(procedure).fit(X, y)
    leak = sp.leakage(model, X, y, noise=sp.Gaussian(SIGMA))
    other = [
        row
        for row in range(N)
        if clone(procedure).fit(np.delete(X.to_numpy(), row, 0), np.delete(y, row)).alpha_
        != model.alpha_
    ]
    assert other
    fixed, whole = (np.asarray(leak.membership(other, refit=w)) for w in ("model", None))
    assert np.all(np.abs(whole - fixed) > 0.05 * fixed)
    assert leak.membership(other, refit="model").mu.held == ("penalty",)


def test_other_selected_columns_give_a_record_away() -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, N)
    X = rng.standard_normal((N, 6))
    model = make_pipeline(SelectKBest(f_classif, k=1), logistic()).fit(X, y)
    chosen = [
        SelectKBest(f_classif, k=1).fit(np.delete(X, row, 0), np.delete(y, row)).get_support()
        for row in range(N)
    ]
    changed = np.array([not np.array_equal(one, model[0].get_support()) for one in chosen])
    found = sp.leakage(model, X, y, noise=sp.Gaussian(SIGMA)).membership()
    assert changed.any()
    assert not changed.all()
    assert np.array_equal(np.isinf(np.asarray(found)), changed)


@pytest.mark.parametrize("frame", ["pandas", "array", "polars"])
@pytest.mark.parametrize("first", [StandardScaler(), bins()], ids=["scaled", "binned"])
def test_a_raw_column_is_guessed_by_refits(frame: str, first: object) -> None:
    X = PEOPLE[["age", "income", "town", "sex"]]
    parts = [("numbers", first, ["age"]), ("levels", OneHotEncoder(), ["sex", "town"])]
    table: object = X
    if frame == "array":
        X = PEOPLE[["dose", "income"]].assign(sex=(PEOPLE["sex"] == "f").astype(float))
        table, parts = X.to_numpy(), [("numbers", first, [0, 1]), ("level", StandardScaler(), [2])]
    elif frame == "polars":
        table = pytest.importorskip("polars").from_pandas(X)
    procedure = make_pipeline(ColumnTransformer(parts), logistic())
    leak = sp.leakage(clone(procedure).fit(table, ILL), table, ILL, noise=sp.Gaussian(SIGMA))
    rows = [0, 9, 21]
    found = leak.guess("x2" if frame == "array" else "sex", prior="equal", rows=rows)
    levels = X["sex"].unique().tolist()
    truth = []
    for row in rows:
        fits = []
        for level in levels:
            other = X.copy()
            other.iloc[row, other.columns.get_loc("sex")] = level
            other = other.to_numpy() if frame == "array" else other
            model = clone(procedure).fit(other, ILL)[-1]
            fits.append(np.append(np.ravel(model.coef_), model.intercept_))
        truth.append(np.linalg.norm(fits[0] - fits[1]) / SIGMA)
    assert found.mu == pytest.approx(np.array(truth), rel=1e-6)
    assert np.asarray(found) == pytest.approx(norm.cdf(np.array(truth) / 2), rel=1e-6)
    assert found.right.held == ()


def test_a_raw_column_is_guessed_with_the_preprocessing_held() -> None:
    procedure = make_pipeline(encoded(), logistic())
    fitted = clone(procedure).fit(PEOPLE, ILL)
    leak = sp.leakage(fitted, PEOPLE, ILL, noise=sp.Gaussian(SIGMA))
    found = leak.guess("town", prior="equal", rows=[4], refit="model")
    fits = []
    for level in "abc":
        other = PEOPLE.copy()
        other.loc[4, "town"] = level
        model = logistic().fit(fitted[:-1].transform(other), ILL)
        fits.append(np.append(np.ravel(model.coef_), model.intercept_))
    apart = max(np.linalg.norm(a - b) for a in fits for b in fits) / SIGMA
    assert found.mu[0] == pytest.approx(apart, rel=1e-6)
    assert found.right.held == ("scaling", "levels")


def test_a_label_is_guessed_by_refits_of_everything() -> None:
    procedure = CASES["TargetEncoder"][0]
    X = PEOPLE[["town"]]
    leak = sp.leakage(clone(procedure).fit(X, ILL), X, ILL, noise=sp.Gaussian(SIGMA))
    found = leak.guess(prior="model", rows=[2])
    other = ILL.copy()
    other[2] = 1 - other[2]
    here, there = (released(procedure, X, y)[0] for y in (ILL, other))
    assert found.mu[0] == pytest.approx(np.linalg.norm(there - here) / SIGMA, rel=1e-6)
    kept = np.delete(np.arange(N), 2)
    odds = clone(procedure).fit(X.iloc[kept], ILL[kept]).predict_proba(X.iloc[[2]])[0]
    assert found.baseline[0] == pytest.approx(odds.max(), rel=1e-9)


def test_people_leave_a_whole_procedure_together() -> None:
    person = np.arange(N) // 4
    procedure = CASES["scaler"][0]
    leak = sp.leakage(
        clone(procedure).fit(NUMBERS, ILL), NUMBERS, ILL, noise=sp.Gaussian(SIGMA), person=person
    )
    found = np.asarray(leak.membership([0, 9]))
    for k, who in enumerate((0, 2)):
        kept = np.flatnonzero(person != who)
        here = released(procedure, NUMBERS, ILL)[0]
        there = released(procedure, NUMBERS.iloc[kept], ILL[kept])[0]
        assert found[k] == pytest.approx(np.linalg.norm(there - here) / SIGMA, rel=1e-6)


# What is refused, and what is said ------------------------------------------------------------


@pytest.mark.parametrize("name", ["KBinsDiscretizer", "SelectKBest", "TargetEncoder"])
def test_without_a_derivative_risks_are_left(name: str) -> None:
    procedure, X, y, _ = CASES[name]
    leak = sp.leakage(clone(procedure).fit(X, y), X, y, noise=sp.Gaussian(SIGMA))
    for ask in (leak.records, leak.cells, leak.columns, leak.dataset, leak.labels):
        with pytest.raises(sp.InputError, match=rf"{name}.*use leak\.membership\(\)"):
            ask()
    with pytest.raises(sp.InputError, match="which refit the whole procedure"):
        leak.membership(refit="model")
    assert name in leak._repr_html_()


def test_a_procedure_that_draws_is_refused() -> None:
    X = PEOPLE[["town"]]
    model = make_pipeline(TargetEncoder(cv=3), logistic()).fit(X, ILL)
    with pytest.raises(sp.InputError, match="uses randomness"):
        sp.leakage(model, X, ILL, noise=sp.Gaussian(SIGMA)).membership()
    folds = KFold(2, shuffle=True, random_state=np.random.RandomState(0))
    model = GridSearchCV(Ridge(), {"alpha": np.logspace(-3, 3, 40)}, cv=folds).fit(NUMBERS, REAL)
    leak = sp.leakage(model, NUMBERS, REAL, noise=sp.Gaussian(SIGMA))
    with pytest.raises(sp.InputError, match="different coefficients"):
        leak.membership([0])
    assert leak.membership(refit="model").mu.held == ("settings",)


def test_more_runs_than_expected_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seepage.core.risk_views._FREE_FITS", 20)
    procedure, X, y, _ = CASES["scaler"]
    leak = sp.leakage(clone(procedure).fit(X, y), X, y, noise=sp.Gaussian(SIGMA))
    with pytest.raises(sp.InputError, match=r"needs 40 runs .*\(scaling\); by default, at most 20"):
        leak.membership()
    with pytest.raises(sp.InputError, match="needs 40 runs"):
        leak.guess()
    assert len(leak.membership(range(20))) == 20
    assert leak.membership(refit="model").mu.held == ("scaling",)
    every = leak.membership(exact=True)
    assert np.array_equal(every, leak.membership(refit="pipeline"))
    assert np.array_equal(every, leak.membership(exact=40))


# Formulas -------------------------------------------------------------------------------------


@pytest.mark.parametrize("formula", ["y ~ age + C(race)", "y ~ age + C(Q('race'), Sum) + income"])
def test_codes_of_a_formula_are_categories(formula: str) -> None:
    """No difference is taken along a code: 2.0009 is no level of C(race)."""
    frame = PEOPLE.assign(race=np.arange(N) % 3 + 1, y=REAL)
    fitted = smf.ols(formula, frame).fit()
    leak = sp.leakage(fitted, frame, noise=sp.Gaussian(SIGMA))
    assert {"race=2", "race=3"} <= set(leak.source.names)
    assert leak.records().held == ("levels",)
    found = leak.guess("race", prior="equal", rows=[5])
    fits = []
    for level in (1, 2, 3):
        other = frame.copy()
        other.loc[5, "race"] = level
        fits.append(smf.ols(formula, other).fit().params.to_numpy())
    apart = max(np.linalg.norm(a - b) for a in fits for b in fits) / SIGMA
    assert found.mu[0] == pytest.approx(apart, rel=1e-6)
    # The move from the first level to another, as η counts it: the Jacobian of the whole level.
    cells = np.asarray(leak.cells(["race"]))
    assert cells.shape == (N, 2)
    assert np.all(cells > 0)
