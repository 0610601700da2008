"""A user's own class that has the name of a known one, or is derived from it: measured by what it
does, or refused; never by what the class of that name would do.
"""

import numpy as np
import pytest
import statsmodels.api as sm
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, MinMaxScaler, StandardScaler

import seepage as sp

RNG = np.random.default_rng(0)
X = RNG.standard_normal((60, 3)) * [1.0, 2.0, 3.0]
Y = X @ [0.5, -0.5, 0.25] + RNG.standard_normal(60)
TWO = (Y > 0).astype(int)
NOISE = sp.Gaussian(0.1)


class OwnScaler(TransformerMixin, BaseEstimator):
    """A hyperbolic sine of the standardised columns."""

    def fit(self, X, y=None):
        self.mean_, self.scale_, self.var_ = X.mean(axis=0), X.std(axis=0), X.var(axis=0)
        self.n_features_in_ = X.shape[1]
        return self

    def transform(self, X):
        return np.sinh((X - self.mean_) / self.scale_)


OwnScaler.__name__ = OwnScaler.__qualname__ = "StandardScaler"


def derived(base, **members):
    """Return a class of the same name with some members of its own."""
    return type(base.__name__, (base,), members)


def bent(base, curve):
    return derived(base, transform=lambda self, X: curve(base.transform(self, X)))


BENT = {
    "an own StandardScaler": OwnScaler(),
    "a derived StandardScaler": bent(StandardScaler, np.sinh)(),
    "a derived MinMaxScaler": bent(MinMaxScaler, np.exp)(),
    "a derived PCA": derived(
        PCA,
        transform=lambda self, X: np.tanh(PCA.transform(self, X)),
        fit_transform=lambda self, X, y=None: self.fit(X).transform(X),
    )(n_components=2),
    "a derived union": derived(
        FeatureUnion,
        transform=lambda self, X: np.sinh(FeatureUnion.transform(self, X)),
        fit_transform=lambda self, X, y=None: self.fit(X).transform(X),
    )([("one", StandardScaler()), ("two", MinMaxScaler())]),
    "derived columns apart": derived(
        ColumnTransformer,
        transform=lambda self, X: np.sinh(ColumnTransformer.transform(self, X)),
        fit_transform=lambda self, X, y=None: np.sinh(ColumnTransformer.fit_transform(self, X)),
    )([("one", StandardScaler(), [0, 1]), ("two", MinMaxScaler(), [2])]),
    "a derived pipeline": derived(
        Pipeline,
        transform=lambda self, X: np.sinh(Pipeline.transform(self, X)),
        fit_transform=lambda self, X, y=None: self.fit(X).transform(X),
    )([("one", StandardScaler())]),
}


def by_refits(pipeline, step=1e-5):
    """Return every record's η by finite differences of refits, with the step before held."""
    before = pipeline[:-1]

    def released(rows, labels):
        model = Ridge(1.0).fit(before.transform(rows), labels)
        return np.append(model.coef_, model.intercept_)

    etas = []
    for i in range(len(X)):
        columns = []
        for j in range(X.shape[1] + 1):
            ends = []
            for sign in (1, -1):
                rows, labels = X.copy(), Y.copy()
                if j < X.shape[1]:
                    rows[i, j] += sign * step
                else:
                    labels[i] += sign * step
                ends.append(released(rows, labels))
            columns.append((ends[0] - ends[1]) / (2 * step))
        etas.append(np.linalg.norm(np.array(columns), 2) / 0.1)
    return np.array(etas)


@pytest.mark.parametrize("case", BENT)
def test_leakage_through_an_own_class_is_that_of_refits(case):
    """0.497 by the name of the first, which refits put at 1.016."""
    pipeline = make_pipeline(BENT[case], Ridge(1.0)).fit(X, Y)
    eta = np.asarray(sp.leakage(pipeline, X, Y, noise=NOISE).records())
    np.testing.assert_allclose(eta, by_refits(pipeline), rtol=1e-5)


def test_an_audit_through_an_own_class_does_not_hang_on_its_name():
    pipeline = make_pipeline(OwnScaler(), Ridge(1.0)).fit(X, Y)
    renamed = make_pipeline(derived(OwnScaler)(), Ridge(1.0)).fit(X, Y)
    type(renamed[0]).__name__ = "Renamed"
    own, other = (
        sp.audit(model, X, Y, noise=1.0).records.every.numbers["eta"]
        for model in (pipeline, renamed)
    )
    np.testing.assert_array_equal(own, other)


def test_a_derived_class_that_overrides_nothing_stays_exact():
    plain = make_pipeline(StandardScaler(), Ridge(1.0)).fit(X, Y)
    same = make_pipeline(derived(StandardScaler)(), derived(Ridge)(1.0)).fit(X, Y)
    for how in ("frozen", "refitted"):
        one, two = (
            np.asarray(sp.leakage(m, X, Y, noise=NOISE, preprocessing=how).records())
            for m in (plain, same)
        )
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("case", BENT)
def test_what_an_own_class_learnt_cannot_be_followed(case):
    pipeline = make_pipeline(BENT[case], Ridge(1.0)).fit(X, Y)
    with pytest.raises(sp.InputError, match="cannot be refitted"):
        sp.leakage(pipeline, X, Y, noise=NOISE, preprocessing="refitted")


def test_what_an_own_class_learnt_need_not_end_in_an_underscore():
    class Centred(TransformerMixin, BaseEstimator):
        def __init__(self, unit=2.0):
            self.unit = unit

        def fit(self, X, y=None):
            self.centre = X.mean(axis=0)
            return self

        def transform(self, X):
            return (X - self.centre) / self.unit

    pipeline = make_pipeline(Centred(), Ridge(1.0)).fit(X, Y)
    leak = sp.leakage(pipeline, X, Y, noise=NOISE)
    assert any("counts as public" in text for text in leak.assumptions())
    with pytest.raises(sp.InputError, match="Centred cannot be refitted"):
        sp.leakage(pipeline, X, Y, noise=NOISE, preprocessing="refitted")


def test_an_own_selection_by_the_label_has_no_derivative():
    from sklearn.feature_selection import SelectFromModel

    chosen = derived(SelectFromModel)(Ridge(1.0), threshold="0.1*mean")
    pipeline = make_pipeline(chosen, Ridge(1.0)).fit(X, Y)
    with pytest.raises(sp.InputError, match="uses the target"):
        sp.leakage(pipeline, X, Y, noise=NOISE).records()


MODELS = {
    "fit": derived(Ridge, fit=lambda self, X, y: Ridge.fit(self, X, y)),
    "predict": derived(Ridge, predict=lambda self, X: np.zeros(len(X))),
    "decision_function": derived(
        LogisticRegression, decision_function=lambda self, X: np.zeros(len(X))
    ),
    "predict_proba": derived(
        sp.glm.LogisticRegression, predict_proba=lambda self, X: np.full((len(X), 2), 0.5)
    ),
}


@pytest.mark.parametrize("method", MODELS)
def test_a_model_that_overrides_a_method_is_refused(method):
    cls = MODELS[method]
    y = Y if issubclass(cls, Ridge) else TWO
    model = cls().fit(X, y)
    message = f"overrides {method} of (scikit-learn|seepage)'s"
    for ask in (
        lambda: sp.leakage(model, X, y, noise=NOISE),
        lambda: sp.refine(model, X, y),
        lambda: sp.save(model, "never.json"),
        lambda: sp.leakage(make_pipeline(StandardScaler(), cls()).fit(X, y), X, y, noise=NOISE),
    ):
        with pytest.raises(sp.InputError, match=message):
            ask()


def test_an_own_model_of_a_known_name_is_not_that_model():
    own = type("Ridge", (), {"__module__": Ridge.__module__, "alpha": 1.0, "fit_intercept": True})
    model = own()
    plain = Ridge(1.0).fit(X, Y)
    model.coef_, model.intercept_ = plain.coef_, plain.intercept_
    with pytest.raises(sp.InputError, match="is not supported, because seepage does not know"):
        sp.leakage(model, X, Y, noise=NOISE)


def test_an_own_family_of_statsmodels_is_not_the_one_of_that_name():
    own = derived(sm.families.Gaussian, deviance=lambda self, *args, **kwargs: 0.0)
    results = sm.GLM(Y, sm.add_constant(X), family=own()).fit()
    with pytest.raises(sp.InputError, match="a class other than statsmodels' own"):
        sp.leakage(results, X, Y, noise=NOISE)
    own = derived(sm.OLS, whiten=lambda self, values: 2 * values)
    with pytest.raises(sp.InputError, match="overrides whiten of"):
        sp.leakage(own(Y, sm.add_constant(X)).fit(), X, Y, noise=NOISE)


def test_a_search_or_pipeline_that_overrides_a_method_is_refused():
    search = derived(GridSearchCV, predict=lambda self, X: X[:, 0])(Ridge(), {"alpha": [1.0, 2.0]})
    steps = [("scale", StandardScaler()), ("model", Ridge())]
    pipeline = derived(Pipeline, predict=lambda self, X: X[:, 0])(steps)
    for model in (search.fit(X, Y), pipeline.fit(X, Y)):
        for ask in (
            lambda model=model: sp.leakage(model, X, Y, noise=NOISE),
            lambda model=model: sp.refine(model, X, Y),
            lambda model=model: sp.save(model, "never.json"),
        ):
            with pytest.raises(sp.InputError, match="overrides predict of"):
                ask()


def test_a_file_holds_only_what_a_scaler_of_scikit_learn_does(tmp_path):
    tanh = bent(StandardScaler, np.tanh)()
    plain = make_pipeline(derived(StandardScaler)(), Ridge()).fit(X, Y)
    assert sp.save(plain, tmp_path / "plain.json").exists()
    refused = {
        "overrides transform of": tanh,
        "not the scikit-learn class of that name": OwnScaler(),
        "cannot describe the encoding of a FunctionTransformer": FunctionTransformer(np.tanh),
    }
    for message, step in refused.items():
        pipeline = make_pipeline(step, Ridge()).fit(X, Y)
        apart = make_pipeline(ColumnTransformer([("all", step, [0, 1, 2])]), Ridge()).fit(X, Y)
        for model in (pipeline, apart):
            with pytest.raises(sp.InputError, match=message):
                sp.save(model, tmp_path / "never.json")
    assert not (tmp_path / "never.json").exists()


def test_a_release_keeps_what_an_own_step_needs():
    """An own class may need the number of records, which scikit-learn's scaler does not."""

    def shrunk(self, X):
        return StandardScaler.transform(self, X) / self.n_samples_seen_

    own = make_pipeline(derived(StandardScaler, transform=shrunk)(), Ridge()).fit(X, Y)
    released = sp.release(own, sp.Gaussian(1e-9))
    np.testing.assert_allclose(released.predict(X), own.predict(X), rtol=1e-6)
    plain = make_pipeline(StandardScaler(), Ridge()).fit(X, Y)
    assert not hasattr(sp.release(plain, NOISE)[0], "n_samples_seen_")


def test_a_release_takes_no_pipeline_but_scikit_learns():
    """A derived one may keep the records, and a copy of it would publish them."""

    def fit(self, X, y):
        self.kept = X
        return Pipeline.fit(self, X, y)

    steps = [("scale", StandardScaler()), ("model", Ridge())]
    with pytest.raises(sp.InputError, match="overrides fit of"):
        sp.release(derived(Pipeline, fit=fit)(steps).fit(X, Y), NOISE)
    own = type("Pipeline", (), {"steps": steps})
    with pytest.raises(sp.InputError, match="Only a fitted model with coef_"):
        sp.release(own(), NOISE)
