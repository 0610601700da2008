"""Bad input to the leakage and what stands on it: one clear sentence each, and no number."""

import numpy as np
import pandas as pd
import pytest
from statsmodels.regression.linear_model import OLS

import seepage as sp

RNG = np.random.default_rng(0)
X = RNG.standard_normal((40, 3))
Y = X @ [1.0, -1.0, 0.5] + RNG.standard_normal(40)
MODEL = sp.glm.LinearRegression().fit(X, Y)
NOISE = sp.Gaussian(1.0)
FRAME = pd.DataFrame(X, columns=["age", "height", "weight"])


def leak(**changes):
    settings = {"X": X, "y": Y, "noise": NOISE} | changes
    table, labels = settings.pop("X"), settings.pop("y")
    return sp.leakage(settings.pop("model", MODEL), table, labels, **settings)


def framed(**changes):
    return leak(model=sp.glm.LinearRegression().fit(FRAME, Y), X=FRAME, **changes)


def holed(value):
    table = FRAME.copy()
    table.iloc[7, 1] = value
    return table


SILENT = np.array([[1.0], [2.0], [3.0]])


def silent():
    """No cell of this table leaks, since all labels and the coefficient are zero."""
    return leak(model=sp.glm.LinearRegression().fit(SILENT, np.zeros(3)), X=SILENT, y=np.zeros(3))


def with_coefficient(value):
    model = sp.glm.LinearRegression().fit(X, Y)
    model.coef_[1] = value
    return model


class Uniform(sp.Noise):
    """Noise of a law that nothing but its stated information is known of."""

    def information(self, size):
        return np.eye(size)

    def scaled(self, factor):
        return self

    def _draw(self, shape, source):
        return source.uniform(-1, 1, size=shape)

    def _scales(self):
        return np.ones(1)

    def __repr__(self):
        return "Uniform(1)"


CASES = {
    "columns of one name": (
        lambda: leak(X=FRAME.set_axis(["age", "age", "weight"], axis=1)),
        "Several columns of X have the same name",
    ),
    "columns whose names read alike": (
        lambda: leak(X=FRAME.set_axis([0, "0", "b"], axis=1)).rows(columns=["0"]),
        "Several columns are called '0'",
    ),
    "noise that leaves a number bare": (
        lambda: sp.Gaussian([[1.0, 0.0], [0.0, 0.0]]),
        "positive definite",
    ),
    "calibrating what does not leak": (
        lambda: sp.calibrate(silent(), eta=1.0, view=silent().cells()),
        "Nothing leaks in this view",
    ),
    "a mean of infinite bounds": (
        lambda: sp.calibrate(silent(), mse=1.0, view=silent().cells(), over="mean"),
        "Some entries do not leak",
    ),
    "a target below the bias": (
        lambda: sp.calibrate(
            leak(), mse=0.5, view=sp.bounds.biased_leakage(leak().rows(), bias=1.0)
        ),
        "met without noise",
    ),
    "rows and groups that leave": (
        lambda: leak().membership(rows=[1], groups=Y > 0),
        "cannot be combined",
    ),
    "a refit of another length": (
        lambda: leak().membership(refit=lambda rows: np.zeros(5)),
        "refit returned 5 numbers, but the release has 3",
    ),
    "a guess about different labels": (
        lambda: sp.compose(leak(), leak(model=sp.glm.LinearRegression().fit(X, -Y), y=-Y)).within(
            "label", 1.0
        ),
        "there is no common label to guess",
    ),
    "a number guessed among values given twice": (
        lambda: leak().within("x0", 1.0, values=[1, 1, 2]),
        "distinct finite numbers",
    ),
    "a number guessed among values that are none": (
        lambda: leak().within("x0", 1.0, values=["a", "b"]),
        "distinct finite numbers",
    ),
    "a number guessed among values with a gap": (
        lambda: leak().within("x0", 1.0, values=[np.nan, 1.0]),
        "distinct finite numbers",
    ),
    "a number guessed among one value": (
        lambda: leak().within("x0", 1.0, values=[1.0]),
        "x0 has fewer than two values",
    ),
    "a number that is several columns": (
        lambda: leak(attributes={"g": [0, 1]}).within("g", 1.0),
        "has several columns",
    ),
    "no measure to write": (
        lambda: leak().write_rows("never.parquet", measures=[]),
        "name at least one of fil",
    ),
    "releasing results of statsmodels": (
        lambda: sp.release(OLS(Y, X).fit(), NOISE),
        "because they contain the training data",
    ),
    "releasing what is not finite": (
        lambda: sp.release(with_coefficient(np.nan), NOISE),
        "coefficients are not finite",
    ),
    "privacy of noise of an unknown law": (
        lambda: sp.privacy.output_perturbation(
            leak(model=sp.glm.LinearRegression(l2=1.0).fit(X, Y), noise=Uniform()),
            row_norm=10.0,
            label_bound=10.0,
        ),
        r"No privacy guarantee is known for Uniform\(1\)",
    ),
    "a finite-change bound of noise of an unknown law": (
        lambda: sp.bounds.hammersley_chapman_robbins(leak(noise=Uniform()), 0, "x0"),
        r"The divergence of Uniform\(1\) is not known",
    ),
    "NaN in a column": (lambda: leak(X=holed(np.nan)), r"'height' \(first in row 7\)"),
    "infinity in a column": (lambda: leak(X=holed(np.inf)), "'height'"),
    "X and y of different lengths": (lambda: leak(y=Y[:-1]), "40 rows but y has 39"),
    "empty table": (lambda: leak(X=X[:0], y=Y[:0]), "X is empty"),
    "no columns": (lambda: leak(X=X[:, :0]), "X is empty"),
    "one dimension": (lambda: leak(X=X[:, 0]), "rows and columns"),
    "text columns": (lambda: leak(X=FRAME.assign(age="old")), "not numeric: 'age'"),
    "object array": (lambda: leak(X=X.astype(object)), "object values"),
    "complex numbers": (lambda: leak(X=X * 1j), "[Cc]omplex"),
    "no such type": (lambda: leak(dtype="int8"), "float64"),
    "noise that is a word": (lambda: leak(noise="0.1"), r"sp.Gaussian\(sigma\)"),
    "noise of the wrong size": (lambda: leak(noise=sp.Gaussian([1.0, 2.0])), "the noise has 2"),
    "other data": (lambda: leak(X=X[::-1].copy()), "gradient"),
    "a column that is not there": (lambda: framed().rows(columns=["wieght"]), "mean 'weight'"),
    "a column number too high": (lambda: leak().rows(columns=[3]), "choose columns from 0 to 2"),
    "a column named twice": (lambda: leak().rows(columns=[0, -3]), "named twice"),
    "no column at all": (lambda: leak().rows(columns=[]), "No column was named"),
    "an unknown measure": (lambda: leak().rows(measure="fill"), "'fil' or 'dfil', not 'fill'"),
    "a group nobody is in": (
        lambda: leak().groups(["a"] * 20 + ["bb"] * 20, only=["bbb"]),
        "in the group 'bbb' .did you mean 'bb'",
    ),
    "group labels of another length": (lambda: leak().groups(["a"]), "40 rows"),
    "a missing group label": (lambda: leak().groups([None] + ["a"] * 39), "Row 0 has no group"),
    "a row that is not there": (lambda: leak().subset(rows=[40]), "no row 40"),
    "rows that are not positions": (lambda: leak().subset(rows=[0.5]), "row positions"),
    "no rows": (lambda: leak().subset(rows=np.zeros(40, bool)), "No row was selected"),
    "a mask of another length": (lambda: leak().subset(rows=np.ones(39, bool)), "40 rows"),
    "an attribute without columns": (lambda: leak(attributes={"g": []}), "without a column"),
    "a column in two attributes": (
        lambda: leak(attributes={"g": [0, 1], "h": [1, 2]}),
        "belongs to both 'g' and 'h'",
    ),
    "a simplex that is none": (
        lambda: leak(attributes={"g": [0, 1]}).rows(columns=["g"], simplex=True),
        "not a complete one-hot attribute",
    ),
    "composition of other tables": (
        lambda: sp.compose(leak(), leak(model=sp.glm.LinearRegression().fit(2 * X, Y), X=2 * X)),
        "values of these tables differ",
    ),
    "composition of other columns": (lambda: sp.compose(leak(), framed()), "same table"),
    "composition about other labels": (
        lambda: sp.compose(leak(), leak(model=sp.glm.LinearRegression().fit(X, -Y), y=-Y)).rows(),
        "different labels",
    ),
    "two targets": (lambda: sp.calibrate(leak(), eta=1.0, mse=1.0), "exactly one target"),
    "no target": (lambda: sp.calibrate(leak()), "exactly one target"),
    "a target of zero": (lambda: sp.calibrate(leak(), eta=0.0), "above zero"),
    "an odd summary": (lambda: sp.calibrate(leak(), eta=1.0, over="median"), "quantile"),
    "a quantile above one": (lambda: sp.calibrate(leak(), eta=1.0, over=2), "quantile"),
    "a view of another leak": (
        lambda: sp.calibrate(leak(), eta=1.0, view=leak(noise=sp.Gaussian(2.0)).rows()),
        "different noise",
    ),
    "calibrating a composition": (
        lambda: sp.calibrate(sp.compose(leak(), leak()), eta=1.0),
        "single release",
    ),
    "releasing what is not fitted": (
        lambda: sp.release(sp.glm.LinearRegression(), NOISE),
        "fit it first",
    ),
    "releasing with a number": (lambda: sp.release(MODEL, 0.1), r"sp.Gaussian\(sigma\)"),
    "a block too large": (
        lambda: sp.bounds.cramer_rao(
            leak(X=np.tile(X, (50, 1)), y=np.tile(Y, 50)), rows=range(2000)
        ),
        "more than the 5000",
    ),
    "an unknown rest": (lambda: sp.bounds.cramer_rao(leak(), 0, rest="all"), "'unknown'"),
    "information that is no matrix": (lambda: sp.bounds.biased(np.ones(3), np.eye(3)), "square"),
    "a bias of other size": (lambda: sp.bounds.biased(np.eye(3), np.eye(2)), "of the inf"),
    "a prior that is none": (lambda: sp.bounds.van_trees(np.eye(2), 1.0), "GaussianPrior"),
    "a prior without width": (
        lambda: sp.bounds.van_trees(np.eye(2), sp.bounds.BoundedPrior(1.0, 1.0)),
        "upper limits",
    ),
    "a bound of a bound": (lambda: leak().rows().mse_bound().mse_bound(), "already a bound"),
}


@pytest.mark.parametrize("case", CASES)
def test_bad_input_is_one_sentence(case):
    attempt, says = CASES[case]
    with pytest.raises(sp.InputError, match=says) as caught:
        attempt()
    message = str(caught.value)
    assert message.endswith(".")
    assert "\n" not in message
    assert len(message) < 500


def test_on_mismatch_may_go_on_with_a_warning():
    with pytest.warns(sp.NotConvergedWarning, match="gradient"):
        other = sp.leakage(MODEL, X[::-1].copy(), Y, noise=NOISE, on_mismatch="warn")
    assert np.all(np.isfinite(np.asarray(other.rows())))


def test_a_released_model_is_refused():
    with pytest.warns(UserWarning, match="fixed seed"):
        released = sp.release(MODEL, NOISE, seed=1)
    with pytest.raises(sp.InputError, match="noisy release"):
        leak(model=released)
    with pytest.raises(sp.InputError, match="already been released"):
        sp.release(released, NOISE)
