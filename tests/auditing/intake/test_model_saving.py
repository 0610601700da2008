"""``sp.save``: fitted models go to the command line, with their scaling, and agree with Python."""

import json
import stat

import numpy as np
import pytest
import statsmodels.api as sm
from people import people
from sklearn.compose import make_column_transformer
from sklearn.decomposition import PCA
from sklearn.linear_model import Lasso, LogisticRegression, PoissonRegressor, Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    MaxAbsScaler,
    MinMaxScaler,
    OneHotEncoder,
    RobustScaler,
    StandardScaler,
)
from typer.testing import CliRunner

import seepage as sp
from seepage.cli import app

NUMBERS = ["age", "weight"]
TIGHT = {"solver": "newton-cholesky", "tol": 1e-12}


@pytest.fixture(scope="module")
def table():
    frame = people(80).to_pandas()
    return frame.assign(smoker=frame["smoker"].astype(int))


def audit_by_command(tmp_path, table, columns, target, *more):
    path = tmp_path / "people.csv"
    table[[*columns, target]].to_csv(path, index=False)
    given = ["--target", target, "--sigma", "0.5", "--json", "--quick", *more]
    file = str(tmp_path / "model.json")
    return CliRunner().invoke(app, ["audit", str(path), "--model", file, *given])


def towns(scaler, drop="first"):
    return make_column_transformer(
        (scaler, NUMBERS), (OneHotEncoder(drop=drop), ["town"]), ("passthrough", ["smoker"])
    )


MIXED = [*NUMBERS, "town", "smoker"]
CASES = {
    "scaled": (make_pipeline(StandardScaler(), Ridge(2.0)), NUMBERS, "dose"),
    "bare": (Ridge(2.0), NUMBERS, "dose"),
    "levels": (
        make_pipeline(towns(RobustScaler()), LogisticRegression(C=0.4, **TIGHT)),
        MIXED,
        "ill",
    ),
    "all levels": (make_pipeline(towns(MinMaxScaler(), None), Ridge(1.0)), MIXED, "dose"),
    "counts": (
        make_pipeline(StandardScaler(), PoissonRegressor(alpha=0.1, **TIGHT)),
        NUMBERS,
        "visits",
    ),
    "classes": (
        make_pipeline(StandardScaler(), LogisticRegression(C=0.4, tol=1e-12, max_iter=2000)),
        NUMBERS,
        "stage",
    ),
    "searched": (
        GridSearchCV(make_pipeline(StandardScaler(), Ridge()), {"ridge__alpha": [1.0, 9.0]}),
        NUMBERS,
        "dose",
    ),
}


@pytest.mark.minutes
@pytest.mark.parametrize("case", list(CASES))
def test_the_command_line_agrees_with_python(case, table, tmp_path):
    model, columns, target = CASES[case]
    X, y = table[columns], table[target]
    model.fit(X, y)
    path = sp.save(model, tmp_path / "model.json")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    result = audit_by_command(tmp_path, table, columns, target)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    ours = sp.audit(model, X, y, noise=0.5)
    assert found["records"]["eta"]["1"] == pytest.approx(float(ours.eta.max()), rel=1e-6)
    theirs = {a["name"]: a["eta"] for a in found["attributes"]}
    for attribute in ours.attributes:
        assert theirs[attribute.name] == pytest.approx(attribute.eta, rel=1e-6)


def test_results_of_statsmodels(table, tmp_path):
    X, y = table[NUMBERS], table["dose"]
    results = sm.OLS(y, sm.add_constant(X)).fit()
    sp.save(results, tmp_path / "model.json")
    result = audit_by_command(tmp_path, table, NUMBERS, "dose")
    assert result.exit_code == 0, result.output
    assert json.loads((tmp_path / "model.json").read_text())["features"] == NUMBERS


def told(model, tmp_path):
    return json.loads(sp.save(model, tmp_path / "model.json").read_text())


def test_columns_left_out_and_scalers_in_pipelines_of_their_own(table, tmp_path):
    columns = make_column_transformer(
        ("drop", ["town"]),
        (make_pipeline(MaxAbsScaler()), ["age"]),
        ("passthrough", ["weight"]),
        remainder="drop",
    )
    model = make_pipeline(columns, Ridge(1.0)).fit(table[MIXED], table["dose"])
    found = told(model, tmp_path)
    assert found["features"] == NUMBERS
    scales = [(c["name"], c["centre"], c["unit"]) for c in found["columns"]]
    assert scales == [("age", 0.0, table["age"].abs().max()), ("weight", 0.0, 1.0)]
    X = table[NUMBERS] / [table["age"].abs().max(), 1.0]
    np.testing.assert_allclose(
        X @ found["coefficients"] + found["intercept"], model.predict(table[MIXED])
    )


def test_a_model_without_names_or_intercept(table, tmp_path):
    X, y = table[NUMBERS].to_numpy(), table["dose"].to_numpy()
    found = told(Ridge(2.0, fit_intercept=False).fit(X, y), tmp_path)
    assert set(found) == {"family", "coefficients", "ridge"}
    gram = X.T @ X + 2.0 * np.eye(2)
    np.testing.assert_allclose(found["coefficients"], np.linalg.solve(gram, X.T @ y))


def test_a_mismatch_is_answered_in_the_command_lines_own_words(table, tmp_path):
    model = make_pipeline(StandardScaler(), Ridge(2.0)).fit(table[NUMBERS], table["dose"])
    sp.save(model, tmp_path / "model.json")
    result = audit_by_command(tmp_path, table[:70], NUMBERS, "dose")
    assert result.exit_code == 2
    assert "The coefficients in model.json do not minimise" in result.stderr
    for word in ("on_mismatch", "sample_weight=", "tol,"):
        assert word not in result.stderr
    both = audit_by_command(
        tmp_path, table, NUMBERS, "dose", "--model-file", str(tmp_path / "model.json")
    )
    assert both.exit_code == 2
    assert "give only one of them" in both.stderr
    for stated in (("--l2", "1"), ("--no-intercept",)):
        refused = audit_by_command(tmp_path, table, NUMBERS, "dose", *stated)
        assert refused.exit_code == 2
        assert "A model file states its family, penalty and intercept" in refused.stderr


@pytest.mark.parametrize(
    ("model", "complaint"),
    [
        (make_pipeline(StandardScaler(), PCA(1), Ridge()), "this pipeline has 2"),
        (make_pipeline(PCA(1), Ridge()), "the encoding of a PCA step"),
        (Lasso(0.1), "Audit it in Python"),
    ],
)
def test_what_a_file_cannot_hold_is_refused(model, complaint, table, tmp_path):
    with pytest.raises(sp.InputError, match=complaint):
        sp.save(model.fit(table[NUMBERS], table["dose"]), tmp_path / "model.json")
    assert not (tmp_path / "model.json").exists()


def test_weights_and_names_that_a_file_cannot_hold(table, tmp_path):
    weighted = LogisticRegression(class_weight="balanced").fit(table[NUMBERS], table["ill"])
    with pytest.raises(sp.InputError, match="cannot store record or class weights"):
        sp.save(weighted, tmp_path / "model.json")
    ours = sp.glm.LinearRegression(l2=0.1)
    ours.fit(table[NUMBERS], table["dose"], sample_weight=np.arange(1.0, 81.0))
    with pytest.raises(sp.InputError, match="cannot store record weights"):
        sp.save(ours, tmp_path / "model.json")
    for encoder in (OneHotEncoder(min_frequency=5), OneHotEncoder(drop=["Bonn"])):
        levels = make_pipeline(encoder, Ridge()).fit(table[["town"]], table["dose"])
        with pytest.raises(sp.InputError, match="with all levels or without the first"):
            sp.save(levels, tmp_path / "model.json")
    assert not (tmp_path / "model.json").exists()
    with pytest.raises(sp.InputError, match=r"saved as \.json"):
        sp.save(Ridge().fit(table[NUMBERS], table["dose"]), tmp_path / "model.pkl")
    with pytest.raises(sp.InputError, match="fit it first"):
        sp.save(Ridge(), tmp_path / "model.json")


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"ridge": 1.0}, "both 'l2' and 'ridge'"),
        ({"columns": [{"name": "age"}]}, "a different name, a centre and a positive"),
        ({"columns": [{"name": "age", "centre": 0, "unit": 0}]}, "positive unit"),
    ],
)
def test_files_that_make_no_sense(change, complaint, tmp_path):
    from seepage.auditing.intake.model_file import load_model

    told = {"family": "linear", "coefficients": [1.0], "l2": 0.1} | change
    (tmp_path / "model.json").write_text(json.dumps(told))
    with pytest.raises(sp.InputError, match=complaint):
        load_model(tmp_path / "model.json")


def test_pipelines_and_searches_are_released(table):
    X, y = table[NUMBERS], table["dose"]
    pipeline = make_pipeline(StandardScaler(), Ridge(2.0)).fit(X, y)
    released = sp.release(pipeline, sp.Gaussian(0.1))
    assert released.release_.public == ("StandardScaler",)
    assert not np.allclose(released[-1].coef_, pipeline[-1].coef_)
    assert np.allclose(released[-1].coef_, pipeline[-1].coef_, atol=1.0)
    assert released.predict(X).shape == (80,)
    assert not hasattr(released[0], "n_samples_seen_")
    assert hasattr(pipeline[0], "n_samples_seen_")
    search = GridSearchCV(pipeline, {"ridge__alpha": [1.0, 9.0]}).fit(X, y)
    best = sp.release(search, sp.Gaussian(0.1))
    assert type(best).__name__ == "Pipeline"
    assert not hasattr(best, "cv_results_")
    with pytest.raises(sp.InputError, match="already been released"):
        sp.release(released, sp.Gaussian(0.1))
    leaving = sp.Release.of(released)
    told = {item.name: item for item in leaving.items}
    assert told["learnt by StandardScaler"].protection == "declared"


@pytest.mark.parametrize("case", list(CASES))
def test_a_loaded_model_predicts_and_leaks_as_the_saved_one(case, table, tmp_path):
    model, columns, target = CASES[case]
    X, y = table[columns], table[target]
    fitted = model.fit(X, y)
    read = sp.load(sp.save(fitted, tmp_path / "model.json"))
    ask = "predict_proba" if hasattr(fitted, "predict_proba") else "predict"
    np.testing.assert_allclose(getattr(read, ask)(X), getattr(fitted, ask)(X), rtol=1e-9)
    ours, theirs = (sp.leakage(m, X, y, noise=0.5).records() for m in (read, fitted))
    np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), rtol=1e-6)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (
            {"columns": [{"name": "age", "kind": "numeric", "centre": 1.0, "unit": 1.0}]},
            "1 column for 2 coefficients",
        ),
        ({"columns": [{"name": 3, "centre": 1.0, "unit": 1.0}] * 2}, "columns"),
        ({"code": "import os"}, "has the unknown key"),
        ({"coefficients": ["a", "b"]}, "list of numbers"),
    ],
)
def test_what_a_model_file_does_not_hold_is_refused(change, complaint, table, tmp_path):
    X, y = table[NUMBERS], table["dose"]
    path = sp.save(make_pipeline(StandardScaler(), Ridge()).fit(X, y), tmp_path / "model.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(sp.InputError, match=complaint):
        sp.load(path)


def test_neither_a_pickle_nor_a_folder_is_loaded(tmp_path):
    (tmp_path / "model.pkl").write_bytes(b"x")
    with pytest.raises(sp.InputError, match="may contain executable code"):
        sp.load(tmp_path / "model.pkl")
    with pytest.raises(sp.InputError, match=r"sp\.load_release"):
        sp.load(tmp_path)
