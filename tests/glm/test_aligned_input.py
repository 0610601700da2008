"""Rows by their labels, columns by their names: what is out of order is refused, not measured."""

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import ColumnTransformer
from sklearn.linear_model import Lasso, Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import seepage as sp

NOISE = sp.Gaussian(0.1)
OUTSIDER = sp.Attacker(knows=0.0)
ROWS = 80
X = pd.DataFrame(np.random.default_rng(0).standard_normal((ROWS, 3)), columns=list("abc"))
Y = (X["a"] - X["b"] + np.random.default_rng(1).standard_normal(ROWS)).to_numpy()
PEOPLE = pd.Series(np.arange(ROWS) // 2, name="patient")
LABELS = {
    "numbers": X.index,
    "text": pd.Index([f"r{k}" for k in range(ROWS)]),
    "dates": pd.date_range("2020-01-01", periods=ROWS),
    "repeated": pd.Index(np.arange(ROWS) % 7),
    "with a gap": pd.Index([np.nan, *range(1, ROWS)]),
    "two levels": pd.MultiIndex.from_product([range(ROWS // 2), list("xy")]),
}
MODELS = {
    "ours": sp.glm.LinearRegression(),
    "lasso": Lasso(0.3, tol=1e-12),
    "pipeline": make_pipeline(StandardScaler(), Ridge(1.0)),
    "columns apart": make_pipeline(
        ColumnTransformer([("a", StandardScaler(), ["a"])], remainder="passthrough"), Ridge(1.0)
    ),
    "search": GridSearchCV(make_pipeline(StandardScaler(), Ridge()), {"ridge__alpha": [0.1, 1.0]}),
}


def leaked(frame, **stated):
    return sp.leakage(sp.glm.LinearRegression().fit(frame, Y), frame, Y, **stated)


def attacked():
    return sp.attacks.InformedAdversary(sp.glm.LinearRegression(l2=0.1)).fit(X, Y)


# Every question that takes one entry for each record, and what its sentence is about
ASKED = {
    "people": ("person", lambda s: leaked(X, noise=NOISE, person=s).people()),
    "groups": ("the group labels", lambda s: leaked(X, noise=NOISE).groups(s)),
    "members": ("the group labels", lambda s: leaked(X, noise=NOISE).membership(groups=s)),
    "outsider": ("the group labels", lambda s: leaked(X, attacker=OUTSIDER).membership(groups=s)),
    "mask": ("the mask of rows", lambda s: leaked(X, noise=NOISE).membership(s < 20)),
    "subset": ("the mask of rows", lambda s: leaked(X, noise=NOISE).subset(s < 20)),
    "outsider's": ("the mask of rows", lambda s: leaked(X, attacker=OUTSIDER).membership(s < 20)),
    "bound": (
        "the mask of rows",
        lambda s: sp.bounds.cramer_rao(leaked(X, noise=NOISE), rows=s < 20),
    ),
    "known": ("knows", lambda s: leaked(X, attacker=sp.Attacker(knows=s < 5)).membership()),
    "attack": (
        "the mask of rows",
        lambda s: attacked().reconstruct(sp.glm.LinearRegression(l2=0.1).fit(X, Y), rows=s < 20),
    ),
    "attack's errors": ("the mask of rows", lambda s: attacked().errors(NOISE, 2, rows=s < 20)),
    "weights": (
        "by",
        lambda s: sp.glm.reweight(sp.glm.LinearRegression(l2=0.1), X, Y, by=s < 20, rounds=1),
    ),
}


@pytest.mark.parametrize("kind", LABELS)
def test_a_series_in_another_order_than_the_table_is_refused(kind):
    frame, own = X.set_axis(LABELS[kind]), PEOPLE.set_axis(LABELS[kind])
    other = own.sample(frac=1, random_state=0)
    model = sp.glm.LinearRegression().fit(frame, Y)
    by_array = sp.leakage(model, frame, Y, noise=NOISE, person=PEOPLE.to_numpy()).people()
    by_series = sp.leakage(model, frame, Y, noise=NOISE, person=own).people()
    assert np.array_equal(by_series, by_array)
    with pytest.raises(sp.InputError, match=r"labels of person are .*; pass series\.reindex"):
        sp.leakage(model, frame, Y, noise=NOISE, person=other)


@pytest.mark.parametrize("question", ASKED)
def test_every_question_with_an_entry_for_each_record_reads_its_labels(question):
    what, ask = ASKED[question]
    ask(PEOPLE)
    with pytest.raises(sp.InputError, match=f"labels of {what} are those of X in another order"):
        ask(PEOPLE.sample(frac=1, random_state=0))


def test_other_labels_are_taken_by_position_where_the_table_has_row_numbers_only():
    later, shuffled = PEOPLE.set_axis(PEOPLE.index + 7), PEOPLE.sample(frac=1, random_state=0)
    for table, series in ((X, later), (X.to_numpy(), later), (X.to_numpy(), shuffled)):
        assert leaked(table, noise=NOISE, person=series).people().shape == (ROWS // 2,)
    with pytest.raises(sp.InputError, match="labels of person are not those of X"):
        leaked(X.set_axis(X.index + 1), noise=NOISE, person=later)


def test_an_audit_reads_the_labels_of_people_and_groups():
    model = sp.glm.LinearRegression().fit(X, Y)
    shuffled = PEOPLE.sample(frac=1, random_state=0)
    with pytest.raises(sp.InputError, match="labels of person are those of X in another order"):
        sp.audit(model, X, Y, noise=0.1, person=shuffled)
    with pytest.raises(sp.InputError, match="labels of the groups 'old' are those of X"):
        sp.audit(model, X, Y, noise=0.1, groups={"old": shuffled < 20})


@pytest.mark.parametrize("to", [{"noise": NOISE}, {"attacker": OUTSIDER}], ids=["all", "outsider"])
@pytest.mark.parametrize("name", MODELS)
def test_queries_have_the_names_of_the_fit(name, to):
    model = MODELS[name].fit(X, Y)

    def refusal(queries):
        with pytest.raises(sp.InputError) as refused:
            sp.leakage(model, X, Y, release=sp.Predictions(queries), **to)
        return str(refused.value)

    if name != "lasso":  # an outsider's view of an L1 penalty is not known
        sp.leakage(model, X, Y, release=sp.Predictions(X[:5]), **to)
    assert "Column 0 of the queries is 'b', but" in refusal(X[list("bac")][:5])
    assert "Column 1 of the queries is 'z', but" in refusal(X.rename(columns={"b": "z"})[:5])
    assert "have 4 columns, but the model has 3" in refusal(X.assign(z=1.0)[:5])
    assert "queries are empty" in refusal(X[:0])
    assert "queries are empty" in refusal(np.zeros((0, 3)))


def test_queries_to_data_read_in_chunks_have_the_names_of_the_fit(tmp_path):
    X.assign(y=Y).to_parquet(tmp_path / "x.parquet")
    source = sp.parquet(tmp_path / "x.parquet", target="y")
    model = sp.glm.LinearRegression(l2=0.1).fit(X, Y)
    release = sp.Predictions(X[list("cba")][:5])
    with pytest.raises(sp.InputError, match="Column 0 of the queries is 'c'"):
        sp.leakage(model, source, attacker=OUTSIDER, release=release)


@pytest.mark.parametrize(("name", "place"), list(zip(MODELS, [3, 0, 1, 2, 0], strict=True)))
def test_the_column_of_people_is_taken_out_wherever_it_stands(name, place):
    model = MODELS[name].fit(X, Y)
    frame = X.copy()
    frame.insert(place, "patient", [f"p{k:02}" for k in PEOPLE])
    leak = sp.leakage(model, frame, Y, noise=NOISE, person="patient")
    expected = sp.leakage(model, X, Y, noise=NOISE, person=PEOPLE).people()
    assert np.asarray(leak.people()) == pytest.approx(np.asarray(expected))
    release = sp.Predictions(X[:5])
    answers = sp.leakage(model, frame, Y, noise=NOISE, person="patient", release=release)
    assert answers.people().shape == expected.shape


@pytest.mark.filterwarnings("ignore:X has feature names")
def test_the_column_of_people_is_taken_out_before_a_pipeline_that_knows_no_names():
    model = make_pipeline(StandardScaler(), Ridge(1.0)).fit(X.to_numpy(), Y)
    frame = X.copy()
    frame.insert(1, "patient", PEOPLE)
    leak = sp.leakage(model, frame, Y, noise=NOISE, person="patient")
    assert leak.people().shape == (ROWS // 2,)


@pytest.mark.parametrize("name", ["pipeline", "columns apart", "search"])
def test_a_pipeline_takes_the_columns_of_its_fit_only(name):
    model = MODELS[name].fit(X, Y)
    for frame, words in {
        "order": (X[list("bac")], "Column 0 of X is 'b', but it was 'a' when"),
        "more": (X.assign(z=1.0), "X has 4 columns, but the model was fitted on 3"),
        "fewer": (X[["a", "b"]], "X has 2 columns, but the model was fitted on 3"),
        "array": (X[["a", "b"]].to_numpy(), "X has 2 columns, but the model was fitted on 3"),
    }.values():
        with pytest.raises(sp.InputError, match=words):
            sp.leakage(model, frame, Y, noise=NOISE)


def test_people_of_a_wrong_shape_are_refused_with_the_shape():
    sm = pytest.importorskip("statsmodels.api")
    pairs = np.zeros((ROWS, 2))
    table = sm.OLS(Y, X).fit()
    for ask in (
        lambda: sp.RegressionTable(table, person=pairs),
        lambda: sp.leakage(table, X, Y, noise=NOISE, person=pairs),
    ):
        with pytest.raises(sp.InputError, match=r"shape.* \(80, 2\)"):
            ask()
