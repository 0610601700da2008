"""``sp.audit``: fitted models and pipelines, with the leakage about their raw columns."""

from functools import partial

import numpy as np
import pandas as pd
import polars as pl
import pyarrow.parquet as pq
import pytest
import statsmodels.formula.api as smf
from people import people
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_diabetes
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    MinMaxScaler,
    OneHotEncoder,
    OrdinalEncoder,
    PolynomialFeatures,
    RobustScaler,
    StandardScaler,
)

import seepage as sp
from doors import PIPELINES, door
from sampled import sampled
from seepage.auditing.audit import ONLY_NOISE, audit_model
from seepage.auditing.entry.audit import audit
from seepage.errors import InputError

NUMBERS = ["age", "weight"]


@pytest.fixture(scope="module")
def table():
    return people(80).to_pandas()


def _refit_jacobian(pipeline, X, y, row, columns, label_step):
    """The release's Jacobian by raw numbers of a record, with the preprocessing left as it is."""
    before, final = pipeline[:-1], pipeline[-1]
    transform = before.transform if len(before) else (lambda frame: frame)

    def fit(frame, labels):
        model = type(final)(**final.get_params()).fit(transform(frame), labels)
        return np.append(model.coef_, model.intercept_)

    out = []
    for name in columns:
        ends = []
        for sign in (1, -1):
            moved = X.copy()
            moved.loc[row, name] += sign * 1e-4 * X[name].std(ddof=0)
            ends.append(fit(moved, y))
        out.append((ends[0] - ends[1]) / 2e-4)
    ends = []
    for sign in (1, -1):
        moved = y.copy()
        moved[row] += sign * 1e-4 * label_step
        ends.append(fit(X, moved))
    out.append((ends[0] - ends[1]) / 2e-4)
    return np.stack(out, axis=1)


@pytest.mark.parametrize(
    "steps",
    [
        [],
        [StandardScaler()],
        [MinMaxScaler(), PCA(1)],
        [RobustScaler(), PCA(2), StandardScaler()],
    ],
    ids=["none", "scaled", "one component", "rotated"],
)
def test_raw_numbers_agree_with_refits(table, steps):
    X, y = table[NUMBERS], table["dose"]
    pipeline = make_pipeline(*steps, Ridge(2.0)).fit(X, y)
    found = audit(pipeline, X, y, noise=0.5, sensitive=["age", "dose"])
    assert found.l2 == pytest.approx(2.0 / 80)
    assert found.target == "dose"
    for row in (3, 50):
        J = _refit_jacobian(pipeline, X, y, row, NUMBERS, y.std(ddof=0)) / 0.5
        assert found.eta[row] == pytest.approx(np.linalg.norm(J, 2), rel=1e-5)
        assert found.eta_features[row] == pytest.approx(np.linalg.norm(J[:, :-1], 2), rel=1e-5)
        years = X["age"].std(ddof=0) / np.linalg.norm(J[:, 0])
        assert found.cell_errors["age"][row] == pytest.approx(years, rel=1e-5)
        information = J[:, :-1].T @ J[:, :-1]
        if np.linalg.matrix_rank(information, rtol=1e-9) == 2:
            exact = np.sqrt(np.trace(np.linalg.inv(information)) / 2)
            assert found.exact_error[row] == pytest.approx(exact, rel=1e-4)
        else:
            assert found.exact_error[row] == np.inf
        dose = y.std(ddof=0) / np.linalg.norm(J[:, 2])
        assert found.cell_errors["dose"][row] == pytest.approx(dose, rel=1e-5)


def _mixed():
    return make_column_transformer(
        (StandardScaler(), NUMBERS),
        (OneHotEncoder(drop="first"), ["town"]),
        ("passthrough", ["smoker"]),
    )


@pytest.mark.slow
def test_a_mixed_table_agrees_with_the_encoded_one(table):
    """Dropping the first level by scikit-learn or by the audit's own encoding is the same."""
    from people import encoded_people

    from seepage.auditing.audit import ONLY_NOISE, audit_table

    encoded = encoded_people("logistic", n=80, sensitive=["town", "smoker", "age"])
    direct = audit_table(encoded, name="people", l2=0.05, sigma=0.2, effort=ONLY_NOISE)
    X, y = table[["age", "weight", "town", "smoker"]], table["ill"]
    final = LogisticRegression(C=1 / (80 * 0.05), tol=1e-10, solver="newton-cholesky")
    pipeline = make_pipeline(_mixed(), final).fit(X, y)
    found = audit(pipeline, X, y, noise=sp.Gaussian(0.2), sensitive=["town", "smoker", "age"])
    assert np.allclose(found.eta, direct.eta, rtol=1e-6)
    for name in ("town", "smoker", "age"):
        assert np.allclose(found.cell_errors[name], direct.cell_errors[name], rtol=1e-6)
    kinds = {a.name: a.kind for a in found.attributes}
    assert kinds == {
        "age": "numeric",
        "weight": "numeric",
        "town": "categorical",
        "smoker": "boolean",
        "ill": "boolean",
    }
    spreads = {a.name: a.spread for a in direct.attributes}
    for attribute in found.attributes:
        assert attribute.spread == pytest.approx(spreads[attribute.name])
    assert any("counts as public" in step for step in found.steps)


@pytest.mark.slow
def test_arrays_polars_and_a_bare_model_give_the_same(table):
    X, y = table[NUMBERS], table["dose"]
    frame = audit(make_pipeline(StandardScaler(), Ridge(1.0)).fit(X, y), X, y)
    bare = make_pipeline(StandardScaler(), Ridge(1.0)).fit(X.to_numpy(), y)
    array = audit(bare, X.to_numpy(), y.to_numpy())
    other = pl.from_pandas(X)
    polars = audit(make_pipeline(StandardScaler(), Ridge(1.0)).fit(other, y), other, y)
    assert np.allclose(array.eta, frame.eta)
    assert np.allclose(polars.eta, frame.eta)
    assert [a.name for a in array.attributes] == ["x0", "x1", "label"]
    own = audit(sp.glm.LinearRegression(l2=0.1).fit(X.to_numpy(), y), X.to_numpy(), y)
    assert not own.intercept
    assert own.released == 2


@pytest.mark.slow
def test_class_weights_take_part(table):
    X, y = table[NUMBERS], table["ill"]
    final = LogisticRegression(class_weight={"no": 1.0, "yes": 5.0}, tol=1e-10, max_iter=1000)
    pipeline = make_pipeline(StandardScaler(), final).fit(X, y)
    Z = pipeline[:-1].transform(X)
    expected = sp.leakage(final, Z, y, noise=sp.Gaussian(0.3)).rows()
    assert np.allclose(audit(pipeline, X, y, noise=0.3).eta, expected, rtol=1e-8)


@pytest.mark.slow
def test_a_model_of_statsmodels(table):
    import statsmodels.api as sm

    X = table[NUMBERS].to_numpy()
    y = (table["ill"] == "yes").to_numpy().astype(float)
    results = sm.GLM(y, sm.add_constant(X), family=sm.families.Binomial()).fit(tol=1e-12)
    found = audit(results, X, y, noise=0.3)
    ours = sp.glm.LogisticRegression(l2=0.0, fit_intercept=True).fit(X, y)
    assert found.model == "logistic"
    assert found.released == 3
    assert np.allclose(found.eta, audit(ours, X, y, noise=0.3).eta, rtol=1e-5)


@pytest.mark.slow
def test_a_softmax_of_scikit_learn(table):
    X, y = table[NUMBERS], table["stage"]
    final = LogisticRegression(C=0.5, tol=1e-10, max_iter=1000)
    pipeline = make_pipeline(StandardScaler(), final).fit(X, y)
    found = audit(pipeline, X, y, noise=0.3)
    leak = sp.leakage(final, pipeline[:-1].transform(X), y, noise=sp.Gaussian(0.3))
    assert found.model == "softmax"
    assert found.classes == ("high", "low", "middle")
    assert np.allclose(found.eta, leak.rows(), rtol=1e-8)


def test_codes_of_categories_are_told(table):
    X = table[["age"]].assign(code=np.arange(80) % 3)
    encoder = make_column_transformer(
        (StandardScaler(), ["age"]), (OneHotEncoder(drop="first"), ["code"])
    )
    pipeline = make_pipeline(encoder, Ridge(1.0)).fit(X, table["dose"])
    with pytest.raises(InputError, match="categorical="):
        audit(pipeline, X, table["dose"])
    found = audit(pipeline, X, table["dose"], categorical=["code"])
    assert [a.kind for a in found.attributes] == ["numeric", "categorical", "numeric"]


@pytest.mark.slow
def test_groups_by_column_and_by_label(table):
    X, y = table[["age", "weight", "town", "smoker"]], table["dose"]
    pipeline = make_pipeline(_mixed(), Ridge(1.0)).fit(X, y)
    by_name = audit(pipeline, X, y, groups=["town"])
    by_label = audit(pipeline, X, y, groups={"town": table["town"]})
    assert by_name.groupings == by_label.groupings
    assert len(by_name.groupings[0].groups) == 3


def test_a_dropped_column_is_no_attribute(table):
    X, y = table[["age", "weight", "town"]], table["dose"]
    chosen = make_column_transformer((StandardScaler(), ["age"]))
    found = audit(make_pipeline(chosen, Ridge(1.0)).fit(X, y), X, y)
    assert [a.name for a in found.attributes] == ["age", "dose"]


def test_maps_that_are_not_affine_agree_with_refits(table):
    X, y = table[NUMBERS], table["dose"]
    squares = make_pipeline(StandardScaler(), PolynomialFeatures(2, include_bias=False), Ridge(1.0))
    squares.fit(X, y)
    found = audit(squares, X, y, noise=0.5, sensitive=["age"])
    for row in (3, 50):
        J = _refit_jacobian(squares, X, y, row, NUMBERS, y.std(ddof=0)) / 0.5
        assert found.eta[row] == pytest.approx(np.linalg.norm(J, 2), rel=1e-5)
        assert found.eta_features[row] == pytest.approx(np.linalg.norm(J[:, :-1], 2), rel=1e-5)
        years = X["age"].std(ddof=0) / np.linalg.norm(J[:, 0])
        assert found.cell_errors["age"][row] == pytest.approx(years, rel=1e-5)


AUDITED = [
    "Lasso",
    "RidgeClassifier",
    "GammaRegressor",
    "LinearSVC",
    "GLM",
    "glm formula",
    "GridSearchCV",
    "SimpleImputer",
    "SplineTransformer",
]


@pytest.mark.parametrize("preprocessing", ["frozen", "refitted"])
@pytest.mark.parametrize("name", sampled(AUDITED, [*AUDITED[2:5], "SimpleImputer"]))
def test_audits_have_the_numbers_of_the_leakage(name, preprocessing):
    if preprocessing == "refitted" and name not in PIPELINES:
        return  # nothing is fitted before the model
    opened = door(name)
    options = dict(opened.options) | {"preprocessing": preprocessing}
    leak = sp.leakage(opened.model, opened.X, opened.y, noise=sp.Gaussian(0.5), **options)
    columns = [c for c in leak.source.names if c in opened.X.columns]
    found = audit(opened.model, opened.X, opened.y, noise=0.5, sensitive=columns, **options)
    for column in columns:
        cells = np.asarray(leak.cells([column]))[:, 0]
        with np.errstate(divide="ignore"):
            assert np.allclose(found.cell_errors[column], 1 / cells, rtol=1e-9)
    assert all(text in found.steps for text in leak.assumptions())
    assert found.released == leak.release.template.size
    assert found.curve.error.shape == found.curve.sigma.shape


def test_an_ordinal_code_is_one_direction_with_many_levels(table):
    X, y = table[["town"]], table["dose"]
    found = audit(make_pipeline(OrdinalEncoder(), Ridge(1.0)).fit(X, y), X, y, sensitive=["town"])
    # From the first town to the last is two steps of the code.
    Z = OrdinalEncoder().fit_transform(X)
    leak = sp.leakage(Ridge(1.0).fit(Z, y), Z, y, noise=sp.Gaussian(found.sigma))
    steps = np.linalg.norm([1.0, 2.0])
    assert np.allclose(found.cell_errors["town"], 1 / (np.asarray(leak.cells())[:, 0] * steps))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"sensitive": ["agee"]}, "did you mean 'age'"),
        ({"groups": ["sexe"]}, "There is no column 'sexe'"),
        ({"groups": {"town": ["a", "b"]}}, "one label for each of the 80 records"),
        ({"noise": sp.Gaussian([1.0, 2.0, 3.0])}, "one standard deviation"),
        ({"noise": "much"}, "noise must be"),
        ({"preprocessing": "learnt"}, "preprocessing must be .* not 'learnt'"),
        ({"categorical": ["coed"]}, "There is no column 'coed'"),
    ],
)
def test_what_makes_no_sense_is_refused(table, change, complaint):
    X, y = table[NUMBERS], table["dose"]
    pipeline = make_pipeline(StandardScaler(), Ridge(1.0)).fit(X, y)
    with pytest.raises(InputError, match=complaint):
        audit(pipeline, X, y, **change)


def test_a_formula_knows_its_labels_and_a_column_may_be_called_like_them(table, monkeypatch):
    short = partial(audit_model, effort=ONLY_NOISE)
    monkeypatch.setattr("seepage.auditing.pipeline.audit_model", short)
    results = smf.ols("dose ~ age + weight", table).fit()
    found, given = audit(results, table), audit(results, table, table["dose"])
    np.testing.assert_array_equal(found.eta, given.eta)
    X, y = table[NUMBERS], table["dose"]
    model = Ridge().fit(X, y)
    assert audit(model, X, y.rename("age")).target == "age (label)"
    assert given.target == "dose (label)"  # the table has it too


def test_missing_values_and_other_data_are_refused(table):
    X, y = table[NUMBERS], table["dose"]
    pipeline = make_pipeline(StandardScaler(), Ridge(1.0)).fit(X, y)
    with pytest.raises(sp.NotTheMinimiserError):
        audit(pipeline, X, y[::-1].to_numpy())
    with pytest.raises(InputError, match="X has 1 column, but the model was fitted on 2"):
        audit(pipeline, X[["age"]], y)
    gaps = X.copy()
    gaps.loc[3, "age"] = np.nan
    with pytest.raises(InputError):
        audit(pipeline, gaps, y)
    with pytest.raises(InputError, match="not an array of shape"):
        audit(pipeline, np.zeros(4), y)
    assert isinstance(X, pd.DataFrame)


@pytest.mark.slow
def test_records_are_called_as_the_table_calls_them(tmp_path):
    X, y = load_diabetes(return_X_y=True, as_frame=True)
    X, y = X[["age", "bmi", "bp"]][:80], y[:80]
    model = make_pipeline(StandardScaler(), Ridge(1.0))
    plain = sp.audit(model.fit(X, y), X, y)
    named = X.set_axis([f"person <{k}>" for k in range(len(X))])
    found = sp.audit(model.fit(named, y), named, y)
    row, _ = plain.records.worst()
    assert plain.index[row] == row
    assert found.index[row] == f"person <{row}>"
    assert f"record is row {row} (" in " ".join(repr(plain).split())
    assert f"record is row person <{row}> (" in " ".join(repr(found).split())
    assert found.guarantees.label == f"person <{found.guarantees.row}>"
    page = sp.report(found, tmp_path / "report")
    assert f"person &lt;{row}&gt;" in page.read_text("utf-8")
    table = pq.read_table(tmp_path / "report/leakage.parquet")
    assert table["index"].to_pylist() == list(named.index)
    # What may be shared names no record.
    assert "person" not in (tmp_path / "report/model-card.md").read_text("utf-8")
