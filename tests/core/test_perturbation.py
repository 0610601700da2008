"""Released models: noise on everything that leaves, and nothing else that was fitted."""

import numpy as np
import pytest
from sklearn import linear_model
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

import seepage as sp

RNG = np.random.default_rng(2)
X = RNG.standard_normal((50, 3))
Y = X @ [1.0, -1.0, 0.5] + 0.1 * RNG.standard_normal(50)
THREE = RNG.integers(3, size=50)

MODELS = [
    (sp.glm.LinearRegression(), Y),
    (sp.glm.LinearRegression(fit_intercept=True), Y),
    (sp.glm.LogisticRegression(fit_intercept=True), Y > 0),
    (sp.glm.PoissonRegression(l2=0.1), np.round(np.exp(Y))),
    (sp.glm.SoftmaxRegression(fit_intercept=True), THREE),
    (linear_model.LinearRegression(), Y),
    (linear_model.Ridge(fit_intercept=False), Y),
    (linear_model.LogisticRegression(), THREE),
    (linear_model.PoissonRegressor(), np.round(np.exp(Y))),
]


@pytest.mark.parametrize(("model", "y"), MODELS, ids=lambda value: type(value).__name__)
def test_the_copy_predicts_from_noisy_coefficients(model, y):
    model.fit(X, y)
    before = np.copy(model.coef_), np.copy(model.intercept_)
    released = sp.release(model, sp.Gaussian(1e-3))
    assert type(released) is type(model)
    assert released.release_.noise.sigma == 1e-3
    assert not released.release_.seeded
    assert released.coef_.shape == model.coef_.shape
    assert np.all(released.coef_ != model.coef_)
    assert np.shape(released.intercept_) == np.shape(model.intercept_)
    assert np.all((np.asarray(released.intercept_) != model.intercept_) == model.fit_intercept)
    assert released.predict(X).shape == model.predict(X).shape
    np.testing.assert_array_equal(model.coef_, before[0])
    np.testing.assert_array_equal(model.intercept_, before[1])
    fitted = {name for name in vars(released) if name.endswith("_") and name[0] != "_"}
    allowed = {"coef_", "intercept_", "classes_", "n_features_in_", "feature_names_in_", "release_"}
    assert fitted <= allowed


def test_the_noise_goes_where_the_jacobian_expects_it():
    """Softmax parameters are ordered by feature, then by class, the intercepts last."""
    model = sp.glm.SoftmaxRegression(fit_intercept=True).fit(X, THREE)
    scales = np.full(12, 1e-9)
    scales[1 * 3 + 2] = 10.0  # the weight of feature 1 for class 2
    scales[3 * 3 + 0] = 20.0  # the intercept of class 0
    moved = sp.release(model, sp.Gaussian(scales))
    assert np.argmax(np.abs(moved.coef_ - model.coef_)) == np.ravel_multi_index((2, 1), (3, 3))
    assert np.argmax(np.abs(moved.intercept_ - model.intercept_)) == 0
    assert np.sum(np.abs(moved.coef_ - model.coef_) > 1e-6) == 1


def test_a_seed_is_announced_and_repeatable():
    model = sp.glm.LinearRegression().fit(X, Y)
    with pytest.warns(UserWarning, match="experiments only"):
        one = sp.release(model, sp.Gaussian(1.0), seed=7)
    with pytest.warns(UserWarning, match="experiments only"):
        two = sp.release(model, sp.Gaussian(1.0), seed=7)
    np.testing.assert_array_equal(one.coef_, two.coef_)
    assert one.release_.seeded


def test_steps_without_a_count_of_records_stay_as_they_are():
    pipeline = make_pipeline(FunctionTransformer(), StandardScaler(), linear_model.Ridge())
    released = sp.release(pipeline.fit(X, Y), sp.Gaussian(1e-3))
    assert released[0] is pipeline[0]
    assert not hasattr(released[1], "n_samples_seen_")
    np.testing.assert_array_equal(released[1].mean_, pipeline[1].mean_)
