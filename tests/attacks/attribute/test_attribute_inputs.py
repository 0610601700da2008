"""Attributes as tables hold them, and what adversaries refuse: in one clear sentence."""

import numpy as np
import pytest
from attribute_cases import with_attribute

import seepage as sp
from recipes import binary, straight
from seepage.attacks import BlackBox, Ideal, NominalAttribute, Prior, WhiteBox, draw_releases
from seepage.data import Problem


def _table():
    return np.array([[0.5, 1, 0, 0], [0.1, 0, 1, 0], [0.2, 0, 0, 1], [0.3, 0, 1, 0]])


def test_complete_one_hot_columns():
    attribute = NominalAttribute.from_table(_table(), [1, 2, 3], "gene")
    np.testing.assert_array_equal(attribute.codes, np.eye(3))
    assert attribute.levels == ("x1", "x2", "x3")
    assert attribute.read(_table()).tolist() == [0, 1, 2, 1]


def test_one_hot_columns_with_a_level_dropped():
    attribute = NominalAttribute.from_table(_table(), [2, 3])
    assert attribute.name == "x2"
    assert attribute.levels == ("none of these", "x2", "x3")
    assert attribute.read(_table()).tolist() == [0, 1, 2, 1]


def test_columns_by_name_and_names_of_levels():
    import pandas as pd

    frame = pd.DataFrame(_table(), columns=["age", "gene=CC", "gene=CT", "gene=TT"])
    columns = ["gene=CC", "gene=CT", "gene=TT"]
    assert NominalAttribute.from_table(frame, columns, "gene").levels == ("CC", "CT", "TT")
    named = NominalAttribute.from_table(frame, columns, "gene", levels=("a", "b", "c"))
    assert named.levels == ("a", "b", "c")
    assert repr(named) == "<gene: a, b, c>"
    assert len(named) == 3


def test_other_codes_are_taken_as_they_come():
    X = np.array([[1.5, -1.0], [0.5, 2.0], [1.5, -1.0], [0.5, 2.0], [0.5, -1.0], [1.5, -1.0]])
    attribute = NominalAttribute.from_table(X, [0, 1], "group")
    assert attribute.levels == ("0.5, -1", "0.5, 2", "1.5, -1")
    assert attribute.read(X).tolist() == [2, 1, 2, 1, 0, 2]


def test_attributes_of_a_problem():
    X = _table()[:, [0, 2, 3]]
    names = ("age", "gene=CT", "gene=TT")
    problem = Problem(X, X[:, 0], X, X[:, 0], names, {"gene": names[1:]})
    attribute = NominalAttribute.from_problem(problem, "gene", dropped="CC")
    assert attribute.levels == ("CC", "CT", "TT")
    assert attribute.columns == (1, 2)
    assert attribute.read(X).tolist() == [0, 1, 2, 1]
    with pytest.raises(sp.InputError, match=r"no attribute 'gent' \(did you mean 'gene'\?\)"):
        NominalAttribute.from_problem(problem, "gent")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("a", (), np.empty((2, 0)), ("x", "y")), "has no columns"),
        (("a", (0,), np.array([[0.0]]), ("x",)), "only one level"),
        (("a", (0,), np.array([[1.0], [1.0]]), ("x", "y")), "have the same code"),
        (("a", (0, 1), np.array([[1.0], [0.0]]), ("x", "y")), "their shape is"),
        (("a", (0,), np.array([[np.nan], [0.0]]), ("x", "y")), "NaN or infinity"),
    ],
)
def test_attributes_that_make_no_sense(arguments, message):
    with pytest.raises(sp.InputError, match=message):
        NominalAttribute(*arguments)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ([], "No column was named"),
        ([1, 1], "named twice"),
        ([7], "There is no column 7"),
        (["x9"], "There is no column 'x9'"),
    ],
)
def test_columns_that_do_not_exist(columns, message):
    with pytest.raises(sp.InputError, match=message):
        NominalAttribute.from_table(_table(), columns)


def test_a_quantity_is_no_attribute():
    X = np.arange(20.0).reshape(10, 2)
    with pytest.raises(sp.InputError, match="it is continuous"):
        NominalAttribute.from_table(X, [0])


def _known():
    X, attribute = with_attribute(110, 40, 3, 3)
    return X, straight(111, X), attribute


def test_codes_that_no_level_has():
    X, y, attribute = _known()
    X[4, list(attribute.columns)] = 0.5
    with pytest.raises(sp.InputError, match=r"Row 4 has \[0.5, 0.5\] in the columns of 'level'"):
        Prior(attribute).fit(X, y)


def test_knowing_nothing():
    X, y, attribute = _known()
    with pytest.raises(sp.InputError, match="This Prior has not been fitted; call fit"):
        Prior(attribute).predict(X, y)


def test_other_tables_than_the_one_known():
    X, y, attribute = _known()
    with pytest.raises(sp.InputError, match="a table with 5 columns, but X has 3"):
        Prior(attribute).fit(X, y).predict(X[:, :3], y)
    with pytest.raises(sp.InputError, match="is encoded in columns"):
        Prior(attribute).fit(X[:, :2], y)
    with pytest.raises(sp.InputError, match="y has 39 entries"):
        Prior(attribute).fit(X, y[1:])
    hole = X.copy()
    hole[3, 0] = np.nan
    with pytest.raises(sp.InputError, match="X contains NaN or infinity in 'x0'"):
        Prior(attribute).fit(X, y).predict(hole, y)


def test_nothing_to_learn_from():
    X, y, attribute = _known()
    same = X.copy()
    same[:, list(attribute.columns)] = 0
    with pytest.raises(sp.InputError, match="All rows have the level 'none of these'"):
        Ideal(attribute).fit(same, y)


def test_adversaries_that_need_a_release():
    X, y, attribute = _known()
    with pytest.raises(sp.InputError, match="needs a release"):
        WhiteBox(attribute, sp.glm.LinearRegression()).fit(X, y).predict(X, y)
    with pytest.raises(sp.InputError, match="queries a released model"):
        BlackBox(attribute).fit(X, y).predict(X, y)


def test_black_box_labels_the_model_does_not_know():
    X, y, attribute = _known()
    model = sp.glm.LogisticRegression().fit(X, binary(112, X))
    with pytest.raises(sp.InputError, match="not one of the model's classes"):
        BlackBox(attribute).fit(X, y).predict(X, y, model)


def test_black_box_labels_that_are_not_numbers():
    X, y, attribute = _known()
    model = sp.glm.LinearRegression().fit(X, y)
    with pytest.raises(sp.InputError, match="but the released model predicts numbers"):
        BlackBox(attribute).fit(X, y.astype(str)).predict(X, y, model)


def test_white_box_targets_that_are_not_training_rows():
    X, y, attribute = _known()
    white = WhiteBox(attribute, sp.glm.LinearRegression(0.01)).fit(X, y)
    other = X.copy()
    other[6, 0] += 1
    with pytest.raises(sp.InputError, match="Row 6 of X, or its label, does not match row 6"):
        white.predict(other, y, white.model_)
    with pytest.raises(sp.InputError, match="Row 0 of X, or its label, does not match row 0"):
        white.predict(X, y + 1, white.model_)
    with pytest.raises(sp.InputError, match="X has 10 rows, but fit was given 40 to attack"):
        white.predict(X[:10], y[:10], white.model_)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "at least one row"),
        ([0.5], "must be positions"),
        ([40], "between 0 and 39"),
        ([-1], "between 0 and 39"),
    ],
)
def test_white_box_rows_that_are_not_there(rows, message):
    X, y, attribute = _known()
    with pytest.raises(sp.InputError, match=message):
        WhiteBox(attribute, sp.glm.LinearRegression()).fit(X, y, rows=np.array(rows))


def test_white_box_rows_by_a_mask():
    X, y, attribute = _known()
    mask = np.arange(40) % 3 == 0
    white = WhiteBox(attribute, sp.glm.LinearRegression()).fit(X, y, rows=mask)
    assert white.predict(X[mask], y[mask], white.model_).shape == (14,)


def test_white_box_models_it_cannot_refit():
    from sklearn.tree import DecisionTreeRegressor

    X, y, attribute = _known()
    with pytest.raises(sp.InputError, match="FIL is undefined"):
        WhiteBox(attribute, DecisionTreeRegressor()).fit(X, y)
    softmax = WhiteBox(attribute, sp.glm.SoftmaxRegression(0.1))
    with pytest.raises(sp.InputError, match="one margin for each class"):
        softmax.fit(X, np.arange(40) % 3)
    with pytest.raises(sp.InputError, match="cannot be refitted"):
        WhiteBox(attribute, "linear regression").fit(X, y)


def test_white_box_releases_of_another_size():
    X, y, attribute = _known()
    white = WhiteBox(attribute, sp.glm.LinearRegression()).fit(X, y)
    larger = sp.glm.LinearRegression(fit_intercept=True).fit(X, y)
    with pytest.raises(sp.InputError, match="The release has 6 parameters, but the model has 5"):
        white.predict(X, y, larger)


def test_the_prior_can_only_be_weighed_against_known_noise():
    X, y, attribute = _known()
    white = WhiteBox(attribute, sp.glm.LinearRegression(), prior=True).fit(X, y)
    several = draw_releases(white.model_, sp.Gaussian(np.full(5, 0.1)), 3)
    for release in (white.model_, several, draw_releases(white.model_, sp.Laplace(0.1), 3)):
        with pytest.raises(sp.InputError, match="prior=True needs Gaussian noise"):
            white.predict(X, y, release)


def test_releases_of_models_that_have_none():
    from sklearn.linear_model import LinearRegression

    X, y, _ = _known()
    ours = sp.glm.LinearRegression().fit(X, y)
    noise = sp.Gaussian(0.1)
    with pytest.raises(sp.InputError, match=r"noise must be sp\.Gaussian"):
        draw_releases(ours, 0.1)
    with pytest.raises(sp.InputError, match="trials must be at least 1"):
        draw_releases(ours, noise, 0)
    with pytest.raises(sp.InputError, match="pass another linear model"):
        draw_releases(sp.glm.LinearRegression(), noise)
    with pytest.raises(sp.InputError, match="is a model from another library"):
        draw_releases(LinearRegression().fit(X, y), noise)
    with pytest.raises(sp.InputError, match="models with one margin"):
        draw_releases(sp.glm.SoftmaxRegression(0.1).fit(X, np.arange(40) % 3), noise)


def test_names_that_are_not_there():
    with pytest.raises(AttributeError, match="no attribute 'Oracle'"):
        sp.attacks.Oracle  # noqa: B018
    assert set(dir(sp.attacks)) >= {"WhiteBox", "BlackBox", "Prior", "Ideal"}
