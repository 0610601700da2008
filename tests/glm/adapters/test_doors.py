"""Every model is audited right, against refits by its own library, or refused with directions."""

import sys
from types import ModuleType

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import statsmodels.api as sm
import statsmodels.formula.api as smf
from sklearn import linear_model as lm
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.feature_selection import SelectKBest, f_regression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import FeatureUnion, make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    OneHotEncoder,
    OrdinalEncoder,
    PowerTransformer,
    SplineTransformer,
    StandardScaler,
    TargetEncoder,
)
from sklearn.svm import LinearSVC

import seepage as sp
from doors import (
    DOORS,
    FORMULAS,
    MIXED,
    PIPELINES,
    POSITIVE,
    RARE_STEPS,
    REAL,
    SEARCHES,
    VARIANTS,
    N,
    Z,
    door,
    released,
)
from sampled import sampled
from seepage.core.finite_changes import Alternatives
from seepage.core.jacobian import Unknowns
from seepage.glm.adapters.registry import (
    KINDS,
    ModelKind,
    RefusedKind,
)
from seepage.glm.preprocessing.chain import as_step

ROWS = (3, 12, 41)
SLOW = [name for name, (library, _) in DOORS.items() if library == "skglm"]  # compiles for long

# What every run tries of the others: each takes a path of its own through the code.
TRIED = [
    "GLM, Gaussian with an offset",
    "GLM, Tweedie with an offset",
    "LogisticRegression, three classes",
    "TweedieRegressor, power 0",
]
TRIED_PIPELINES = [
    "StandardScaler",
    "RobustScaler",
    "SimpleImputer, median",
    "OrdinalEncoder",
    "PCA, whitened",
    "SplineTransformer, quantiles",
    "Lasso after splines",
]


def derivative(at, step):
    """The derivative at 0, by five points."""
    return (8 * (at(step) - at(-step)) - (at(2 * step) - at(-2 * step))) / (12 * step)


def moved(opened, row, column, frozen, step):
    """How far what is released moves with one cell."""

    def at(t):
        table = opened.X.copy()
        table.loc[row, column] += t
        return opened.refit(table, opened.y, frozen)

    return np.linalg.norm(derivative(at, step * np.nanstd(opened.X[column])))


def leaked(opened, preprocessing):
    return sp.leakage(
        opened.model,
        opened.X,
        opened.y,
        noise=sp.Gaussian(1.0),
        preprocessing=preprocessing,
        **dict(opened.options),
    )


def check_cells(name, preprocessing, step=1e-4, columns=None, rows=ROWS):
    opened = door(name)
    leak = leaked(opened, preprocessing)
    cells, names = np.asarray(leak.cells()), list(leak.source.names)
    numbers = [c for c in opened.X.columns if opened.X[c].dtype.kind == "f"]
    assert set(numbers) & set(names)
    for column in columns or numbers:
        for row in rows:
            found = cells[row, names.index(column)] if column in names else 0.0
            if np.isnan(opened.X.loc[row, column]):
                assert found == 0
                continue
            truth = moved(opened, row, column, preprocessing == "frozen", step)
            assert found == pytest.approx(truth, rel=1e-6, abs=1e-9 * cells.max())
    if opened.labels:
        labels = opened.y.astype(float)

        def at(t):
            other = labels.copy()
            other[ROWS[0]] += t
            return opened.refit(opened.X, other, preprocessing == "frozen")

        truth = np.linalg.norm(derivative(at, 1e-4))
        assert np.asarray(leak.labels())[ROWS[0]] == pytest.approx(truth, rel=1e-6)
    return leak


@pytest.mark.parametrize(
    "name",
    [
        *sampled([n for n in DOORS if n not in SLOW], 8),
        *(pytest.param(n, marks=pytest.mark.minutes) for n in SLOW),
    ],
)
def test_models_agree_with_refits(name):
    # liblinear ends so far from its minimiser that only longer steps can be told from its noise.
    check_cells(name, "frozen", step=1e-2 if name == "LinearSVC" else 1e-4)


@pytest.mark.parametrize("name", sampled([*VARIANTS, *FORMULAS], TRIED))
def test_other_ways_to_fit_agree_with_refits(name):
    check_cells(name, "frozen")


@pytest.mark.parametrize("name", SEARCHES)
def test_searches_are_their_best_model(name):
    leak = check_cells(name, "frozen")
    assert any("A search on the data" in text for text in leak.assumptions())
    assert leak.records().assumptions == leak.assumptions()
    assert "settings" in leak.records().held


@pytest.mark.parametrize("preprocessing", ["frozen", "refitted"])
@pytest.mark.parametrize("name", sampled(list(PIPELINES), TRIED_PIPELINES, 5))
def test_pipelines_agree_with_refits(name, preprocessing):
    leak = check_cells(name, preprocessing)
    word = "counts as public" if preprocessing == "frozen" else "change with every record"
    assert any(word in text for text in leak.assumptions())


@pytest.mark.parametrize("preprocessing", ["frozen", "refitted"])
@pytest.mark.parametrize("name", sampled(list(RARE_STEPS), 7))
def test_rare_settings_of_steps_agree_with_refits(name, preprocessing):
    table = door(name).X
    outer = int(table["age"].argsort().iloc[-2])  # beyond the inner knots, and no end of the range
    check_cells(name, preprocessing, columns=["age"], rows=(ROWS[0], outer))


@pytest.mark.parametrize("preprocessing", ["frozen", "refitted"])
def test_clipping_to_a_range_hides_no_record_at_its_ends(preprocessing):
    """No row of the fit lies outside, so what is clipped there is nothing."""
    free, clipped = (
        np.asarray(leaked(door(name), preprocessing).cells())
        for name in ("MinMaxScaler", "MinMaxScaler, clipped")
    )
    np.testing.assert_allclose(clipped, free, rtol=1e-9)


def test_a_gap_that_has_a_marker_leaks_nothing():
    opened = door("SimpleImputer, a marker")
    cells = np.asarray(sp.leakage(opened.model, opened.X, opened.y, noise=sp.Gaussian(1.0)).cells())
    np.testing.assert_array_equal(cells == 0, opened.X == -9.0)


@pytest.mark.parametrize("column", ["town", "smoker"])
def test_categories_move_by_whole_levels(column):
    """A level in place of the first one, in proportion: the final model is fitted in between."""
    opened = door("OneHotEncoder")
    before, final = opened.model[:-1], opened.model[-1]
    leak = sp.leakage(opened.model, opened.X, opened.y, noise=sp.Gaussian(1.0))
    cells, names = np.asarray(leak.cells()), list(leak.source.names)
    levels = sorted(MIXED[column].unique())
    features = np.asarray(before.transform(MIXED), dtype=float)
    ends = [
        np.asarray(before.transform(MIXED.assign(**{column: level})), dtype=float)
        for level in levels
    ]
    for level, end in zip(levels[1:], ends[1:], strict=True):
        place = names.index(f"{column}={level}" if len(levels) > 2 else names[-1])
        for row in ROWS:

            def at(t, row=row, end=end):
                rows = features.copy()
                rows[row] += t * (end - ends[0])[row]
                return released(clone(final).fit(rows, opened.y))

            truth = np.linalg.norm(derivative(at, 1e-3))
            assert cells[row, place] == pytest.approx(truth, rel=1e-6)
    assert leak.attributes.each(False)[0] == ["age", "dose", "weight", "town", names[-1]]


def test_an_unconverged_model_is_refined_on_request():
    rough = lm.SGDRegressor(alpha=0.01, tol=1e-1, random_state=0).fit(Z, REAL)
    with pytest.raises(sp.NotTheMinimiserError, match=r"sp.refine"):
        sp.leakage(rough, Z, REAL, noise=sp.Gaussian(1.0))
    refined = sp.refine(rough, Z, REAL)
    twin = lm.Ridge(0.01 * N).fit(Z, REAL)
    np.testing.assert_allclose(refined.coef_, twin.coef_, rtol=1e-9)
    assert np.shape(refined.intercept_) == np.shape(rough.intercept_)
    assert not np.allclose(rough.coef_, twin.coef_, rtol=1e-6)


def test_what_can_be_refined():
    rough = lm.SGDRegressor(alpha=0.01, tol=1e-1, random_state=0, fit_intercept=False)
    twin = lm.Ridge(0.01 * N, fit_intercept=False).fit(Z, REAL)
    scaled = make_pipeline(FunctionTransformer(), rough)
    search = GridSearchCV(scaled, {"sgdregressor__alpha": (0.01,)}, cv=2).fit(Z, REAL)
    refined = sp.refine(search, Z, REAL)
    np.testing.assert_allclose(refined[-1].coef_, twin.coef_, rtol=1e-9)
    assert refined[-1].intercept_ == 0
    assert not np.allclose(search.best_estimator_[-1].coef_, twin.coef_, rtol=1e-6)
    lasso = lm.Lasso(0.01, tol=0.1).fit(Z, REAL)
    twin = lm.Lasso(0.01, tol=1e-14, max_iter=100_000).fit(Z, REAL)
    np.testing.assert_allclose(sp.refine(lasso, Z, REAL).coef_, twin.coef_, rtol=1e-9)
    assert not np.allclose(lasso.coef_, twin.coef_, rtol=1e-9)
    with pytest.raises(sp.InputError, match="it has no coef_ to change; refit it with a tighter"):
        sp.refine(door("OLS").model, Z, REAL)


def test_every_kind_that_is_read_has_a_door():
    """So that the table in the docs says of no model that it is audited right without a test."""
    read = {(kind.library, kind.name) for kind in KINDS if isinstance(kind, ModelKind)}
    doors = {(library, name.removeprefix("skglm ")) for name, (library, _) in DOORS.items()}
    assert {kind for kind in read if kind[0] != "seepage"} == doors


@pytest.mark.parametrize(
    "kind", [k for k in KINDS if isinstance(k, RefusedKind)], ids=lambda k: f"{k.library} {k.name}"
)
def test_refusals_say_why_and_what_instead(kind, monkeypatch):
    """A class that its library's module holds, whether or not that library is installed."""
    name = "Anything" if kind.name == "*" else kind.name
    home = ModuleType(f"{kind.library}.somewhere")
    cls = type(name, (), {"__module__": home.__name__})
    setattr(home, name, cls)
    monkeypatch.setitem(sys.modules, home.__name__, home)
    model = cls()
    with pytest.raises(sp.InputError) as refused:
        sp.leakage(model, Z, REAL, noise=sp.Gaussian(1.0))
    text = str(refused.value)
    why, instead, page = text.partition(". ")[0], kind.instead, "See docs/how-to/models.md."
    assert text.startswith(why)
    assert instead in text
    assert text.endswith(page)
    assert text.count(". ") == 2  # two sentences and the page


def test_settings_that_are_refused():
    cases = {
        "loss='hinge'": lm.SGDClassifier("hinge"),
        "an intercept": LinearSVC(dual=False),
        "power=3": lm.TweedieRegressor(power=3),
        "positive=True": lm.Lasso(0.01, positive=True),
        "average=True": lm.SGDRegressor(average=True),
        "penalty='l1'": lm.SGDRegressor(penalty="l1"),
    }
    for what, model in cases.items():
        y = np.where(REAL.mean() < REAL, 2.0, 1.0)
        with pytest.raises(sp.InputError, match=what):
            sp.leakage(model.fit(Z, y), Z, y, noise=sp.Gaussian(1.0))


GLUM_REFUSED = {
    "P2": {"P2": np.eye(3)},
    "scale_predictors": {"scale_predictors": True},
    "lower_bounds": {"lower_bounds": np.full(3, -9.0)},
    "the family 'inverse.gaussian' and the link 'auto'": {"family": "inverse.gaussian"},
}


@pytest.mark.parametrize("what", GLUM_REFUSED)
def test_settings_of_glum_that_are_refused(what):
    import glum

    model = glum.GeneralizedLinearRegressor(alpha=0.1, **GLUM_REFUSED[what]).fit(Z, POSITIVE)
    with pytest.raises(sp.InputError, match=f"with {what} is not supported"):
        sp.leakage(model, Z, POSITIVE, noise=sp.Gaussian(1.0))


def test_tweedie_of_glum_is_that_of_scikit_learn():
    import glum

    model = glum.GeneralizedLinearRegressor(
        alpha=0.1, family=glum.TweedieDistribution(1.5), link="log", gradient_tol=1e-12
    ).fit(Z, POSITIVE)
    twin = lm.TweedieRegressor(power=1.5, alpha=0.1, solver="newton-cholesky", tol=1e-12)
    found, known = (
        np.asarray(sp.leakage(m, Z, POSITIVE, noise=sp.Gaussian(1.0)).records())
        for m in (model, twin.fit(Z, POSITIVE))
    )
    np.testing.assert_allclose(found, known, rtol=1e-6)


def test_models_that_are_no_model_are_refused():
    search = GridSearchCV(lm.Ridge(), {"alpha": (1.0, 2.0)}, cv=2, refit=False).fit(Z, REAL)
    with pytest.raises(
        sp.InputError, match="GridSearchCV has no refitted best model; fit it with refit="
    ):
        sp.leakage(search, Z, REAL, noise=sp.Gaussian(1.0))
    with pytest.raises(sp.InputError, match="The penalty dropped every column"):
        sp.leakage(lm.Lasso(100.0).fit(Z, REAL), Z, REAL, noise=sp.Gaussian(1.0))
    both = np.column_stack([REAL, -REAL])
    model = lm.Lasso(0.3).fit(Z, both)
    assert np.any(model.coef_ == 0)  # some columns dropped, and still two models
    with pytest.raises(sp.InputError, match="Lasso with 2 outputs is not supported"):
        sp.leakage(model, Z, REAL, noise=sp.Gaussian(1.0))


def test_preprocessing_is_frozen_or_refitted():
    with pytest.raises(sp.InputError, match="must be 'frozen' or 'refitted', not 'thawed'"):
        sp.leakage(
            door("LinearRegression").model,
            Z,
            REAL,
            noise=sp.Gaussian(1.0),
            preprocessing="thawed",
        )


def test_an_arrow_table_goes_through_a_pipeline():
    pipeline = make_pipeline(StandardScaler(), lm.Ridge()).fit(Z, REAL)
    ours, theirs = (
        np.asarray(sp.leakage(pipeline, X, REAL, noise=sp.Gaussian(1.0)).records())
        for X in (pa.Table.from_pandas(Z), Z)
    )
    np.testing.assert_allclose(ours, theirs, rtol=1e-12)


def test_tables_that_no_pipeline_can_be_followed_from():
    numbered = Z.set_axis(range(3), axis=1)
    pipeline = make_pipeline(StandardScaler(), lm.Ridge()).fit(numbered, REAL)
    with pytest.raises(sp.InputError, match="Column names of X must be text; rename the"):
        sp.leakage(pipeline, numbered, REAL, noise=sp.Gaussian(1.0))
    mixed = Z.set_axis(["a", 1, "c"], axis=1)
    with pytest.raises(sp.InputError, match="Column names of X must be text; rename the"):
        sp.leakage(pipeline, mixed, REAL, noise=sp.Gaussian(1.0))
    codes, y = pd.DataFrame({"code": [f"v{i}" for i in range(1001)]}), np.arange(1001.0)
    pipeline = make_pipeline(OrdinalEncoder(), lm.Ridge()).fit(codes, y)
    with pytest.raises(sp.InputError, match="'code' has 1001 distinct values, more than the 1000"):
        sp.leakage(pipeline, codes, y, noise=sp.Gaussian(1.0))


def test_steps_whose_numbers_cannot_be_followed():
    weighted = FeatureUnion([("scaled", StandardScaler())], transformer_weights={"scaled": 2.0})
    pipeline = make_pipeline(weighted, lm.Ridge()).fit(Z, REAL)
    with pytest.raises(sp.InputError, match="FeatureUnion with transformer_weights is not"):
        sp.leakage(pipeline, Z, REAL, noise=sp.Gaussian(1.0))
    corners = np.array([[1, 1], [1, -1], [-1, 1], [-1, -1]] * 6, dtype=float)
    corners[:, 1] *= np.repeat([0.5, 1.0, np.sqrt(1.75)], 8)  # more than two values, as spread out
    y = np.arange(24.0)
    pipeline = make_pipeline(PCA(2), lm.Ridge()).fit(corners, y)
    with pytest.raises(sp.InputError, match="Two principal components have the same variance"):
        sp.leakage(pipeline, corners, y, noise=sp.Gaussian(1.0), preprocessing="refitted").cells()


@pytest.mark.slow
def test_an_array_through_a_pipeline_is_as_its_frame():
    steps = (SplineTransformer(n_knots=4), FunctionTransformer(np.tanh))
    for preprocessing in ("frozen", "refitted"):
        cells = []
        for table in (Z, Z.to_numpy()):
            pipeline = make_pipeline(*(clone(s) for s in steps), lm.Ridge(2.0)).fit(table, REAL)
            leak = sp.leakage(
                pipeline, table, REAL, noise=sp.Gaussian(1.0), preprocessing=preprocessing
            )
            cells.append(np.asarray(leak.cells()))
        np.testing.assert_allclose(cells[1], cells[0], rtol=1e-9)


def test_rows_with_gaps_that_a_formula_left_out():
    frame = MIXED.assign(outcome=REAL)
    frame.loc[3, "age"] = np.nan
    results = smf.ols("outcome ~ age + dose", frame).fit()
    with pytest.raises(sp.InputError, match="dropped 1 row with missing values; drop all"):
        sp.leakage(results, frame, noise=sp.Gaussian(1.0))


@pytest.fixture(params=["patsy", "formulaic"])
def formula_engine(request, monkeypatch):
    pytest.importorskip(request.param)
    monkeypatch.setattr("statsmodels.formula.options.formula_engine", request.param)


@pytest.mark.slow
@pytest.mark.usefixtures("formula_engine")
def test_what_a_formula_learns_is_frozen_or_refused():
    frame = MIXED.assign(outcome=REAL)
    plain = frame.assign(age=frame["age"] - frame["age"].mean())
    centred = smf.ols("outcome ~ center(age) * dose + C(town)", frame).fit()
    twin = smf.ols("outcome ~ age * dose + C(town)", plain).fit()
    found = sp.leakage(centred, frame, noise=sp.Gaussian(1.0))
    known = sp.leakage(twin, plain, noise=sp.Gaussian(1.0), preprocessing="refitted")
    np.testing.assert_allclose(np.asarray(found.cells()), np.asarray(known.cells()), rtol=1e-6)
    with pytest.raises(sp.InputError, match=r"formula library.*Use preprocessing='frozen'"):
        sp.leakage(centred, frame, noise=sp.Gaussian(1.0), preprocessing="refitted")


def test_what_reads_the_target_has_no_derivative():
    pipeline = make_pipeline(TargetEncoder(), lm.Ridge()).fit(MIXED[["town"]], REAL)
    with pytest.raises(sp.InputError, match=r"TargetEncoder uses the target.*Use OneHotEncoder"):
        sp.audit(pipeline, MIXED[["town"]], REAL)
    pipeline = make_pipeline(SelectKBest(f_regression, k=2), lm.Ridge()).fit(Z, REAL)
    with pytest.raises(sp.InputError, match=r"SelectKBest uses the target.*use leak\.membership"):
        sp.leakage(pipeline, Z, REAL, noise=sp.Gaussian(1.0)).records()


def test_codes_of_categories_are_asked_about():
    codes = Z.assign(town=np.arange(N) % 4.0)[["town"]]
    pipeline = make_pipeline(OneHotEncoder(), lm.Ridge()).fit(codes, REAL)
    with pytest.raises(sp.InputError, match="name these columns in categorical="):
        sp.leakage(pipeline, codes, REAL, noise=sp.Gaussian(1.0))
    leak = sp.leakage(pipeline, codes, REAL, noise=sp.Gaussian(1.0), categorical=["town"])
    assert leak.attributes.each(False)[0] == ["town"]


def test_what_is_cut_has_no_derivative():
    ranked = make_pipeline(FunctionTransformer(lambda rows: rows.rank()), lm.Ridge()).fit(Z, REAL)
    with pytest.raises(sp.InputError, match="does not transform each row separately"):
        sp.leakage(ranked, Z, REAL, noise=sp.Gaussian(1.0)).records()
    cut = make_pipeline(FunctionTransformer(lambda rows: rows.round(2)), lm.Ridge()).fit(Z, REAL)
    with pytest.raises(sp.InputError, match="FunctionTransformer has no derivative for some"):
        sp.leakage(cut, Z, REAL, noise=sp.Gaussian(1.0)).records()
    power = make_pipeline(PowerTransformer(), lm.Ridge(2.0)).fit(Z, REAL)
    assert sp.leakage(power, Z, REAL, noise=sp.Gaussian(1.0)).records().shape == (N,)
    with pytest.raises(sp.InputError, match="PowerTransformer cannot be refitted"):
        sp.leakage(power, Z, REAL, noise=sp.Gaussian(1.0), preprocessing="refitted")


def test_correlated_errors_and_logistic_offsets_are_refused():
    coupled = sm.GLS(REAL, Z, sigma=0.5 * np.eye(N) + 0.5).fit()
    with pytest.raises(sp.InputError, match=r"correlated errors.*Fit WLS"):
        sp.leakage(coupled, Z, REAL, noise=sp.Gaussian(1.0))
    ill = (REAL.mean() < REAL).astype(float)
    offset = sm.GLM(ill, Z, family=sm.families.Binomial(), offset=REAL * 0 + 0.1).fit()
    with pytest.raises(sp.InputError, match=r"with an offset is not supported.*Add the offset"):
        sp.leakage(offset, Z, ill, noise=sp.Gaussian(1.0))
    cox = sm.PHReg(np.exp(REAL), Z).fit()
    with pytest.raises(sp.InputError, match="Cox's partial likelihood couples records"):
        sp.leakage(cox, Z, REAL, noise=sp.Gaussian(1.0))


def test_a_formula_takes_the_labels_from_its_own_data_frame():
    opened = door("ols formula")
    given = sp.leakage(opened.model, opened.X, opened.y, noise=sp.Gaussian(1.0))
    whole = MIXED.assign(outcome=REAL)
    found = sp.leakage(opened.model, whole, noise=sp.Gaussian(1.0))
    np.testing.assert_allclose(found.records(), given.records())
    assert found.attributes.each(False)[0] == ["age", "dose", "town"]


def test_membership_through_a_pipeline():
    opened = door("StandardScaler")
    leak = sp.leakage(opened.model, opened.X, opened.y, noise=sp.Gaussian(0.1))
    inner = sp.leakage(
        opened.model[-1],
        opened.model[:-1].transform(opened.X),
        opened.y,
        noise=sp.Gaussian(0.1),
    )
    fixed = leak.membership(refit="model")
    np.testing.assert_allclose(np.asarray(fixed), np.asarray(inner.membership()))
    assert fixed.mu.held == ("scaling",)
    np.testing.assert_allclose(np.asarray(leak.labels()), np.asarray(inner.labels()))
    label, row = Alternatives(labels=np.array([0.5])), np.array([0])
    found, known = (one.release.finite_changes().moves(row, label) for one in (leak, inner))
    np.testing.assert_allclose(found.distances(), known.distances())
    again = sp.leakage(
        opened.model, opened.X, opened.y, noise=sp.Gaussian(0.1), preprocessing="refitted"
    )
    with pytest.raises(sp.InputError, match="requires reruns; omit refit="):
        again.membership(refit="model")
    some = [0, 3, 7]
    np.testing.assert_allclose(again.membership(some), leak.membership(some))


@pytest.mark.slow
def test_the_adjoint_through_a_pipeline():
    """⟨Jz, v⟩ = ⟨z, Jᵀv⟩ for a change of some rows, and J is that of each row."""
    opened = door("OneHotEncoder")
    leak = sp.leakage(
        opened.model, opened.X, opened.y, noise=sp.Gaussian(1.0), preprocessing="refitted"
    )
    jacobian, rng = leak.release.template, np.random.default_rng(0)
    rows, unknowns = np.array([4, 17, 60]), Unknowns(None, True)
    each = jacobian.row_jacobians(unknowns, rows)
    z, v = rng.standard_normal((3, each.shape[2])), rng.standard_normal(jacobian.size)
    forward = jacobian.forward(z, unknowns, rows)
    np.testing.assert_allclose(forward, sum(J @ one for J, one in zip(each, z, strict=True)))
    assert forward @ v == pytest.approx(np.sum(z * jacobian.adjoint(v, unknowns, rows)), rel=1e-12)


def test_text_in_place_of_a_transformer_passes_rows_through():
    step = as_step("passthrough", Z)
    np.testing.assert_array_equal(step.transform(Z), Z)
    np.testing.assert_allclose(step.push(Z, np.ones((N, 3))), 1.0, rtol=1e-9)
    assert step.held == ()
