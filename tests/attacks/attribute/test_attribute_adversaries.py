"""The four adversaries, against their definitions spelt out row by row, and the laws they obey."""

import numpy as np
import pytest
from attribute_cases import CURVED, LINEAR, SETTINGS, parameters, with_attribute
from hypothesis import given, settings
from hypothesis import strategies as st

import seepage as sp
from recipes import binary, counts, straight, table
from sampled import sampled
from seepage.attacks import (
    BlackBox,
    Ideal,
    NominalAttribute,
    Prior,
    Releases,
    WhiteBox,
    draw_releases,
)


def _white(setting, prior=False):
    white = WhiteBox(setting.attribute, setting.model, prior=prior)
    return white.fit(setting.X, setting.y, sample_weight=setting.sample_weight)


def _typical_change(white):
    return float(np.median(np.linalg.norm(white.candidates_.differences(slice(None)), axis=2)))


@pytest.mark.parametrize("setting", sampled(SETTINGS, 0, 9, whole=True), ids=lambda s: s.name)
def test_white_box_guesses_are_those_of_full_refits(setting):
    white = _white(setting)
    for times in (0.1, 1.0, 30.0):
        noise = sp.Gaussian(times * max(_typical_change(white), 1e-9))
        releases = draw_releases(white.model_, noise, 20, seed=1)
        gaps = releases.parameters[:, None, None, :] - setting.refits
        distances = np.sum(gaps**2, axis=3)
        guesses = white.predict(setting.X, setting.y, releases)
        nearest = np.argmin(distances, axis=2)
        # Rows of no weight leave every refit the same, and their levels apart by rounding only.
        told = np.ptp(setting.refits, axis=1).max(axis=1) > 1e-12
        np.testing.assert_array_equal(guesses[:, told], nearest[:, told])


@pytest.mark.slow
@pytest.mark.parametrize("setting", [LINEAR[2], CURVED[1]], ids=lambda s: s.name)
def test_white_box_with_the_prior_is_the_most_probable_level(setting):
    white = _white(setting, prior=True)
    shares = np.bincount(setting.attribute.read(setting.X)) / len(setting.X)
    for sigma in (1e-3, 0.05, 1.0):
        releases = draw_releases(white.model_, sp.Gaussian(sigma), 20, seed=2)
        gaps = releases.parameters[:, None, None, :] - setting.refits
        posterior = np.log(shares) - np.sum(gaps**2, axis=3) / (2 * sigma**2)
        guesses = white.predict(setting.X, setting.y, releases)
        np.testing.assert_array_equal(guesses, np.argmax(posterior, axis=2))


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda s: s.name)
def test_without_noise_to_speak_of_everything_is_found(setting):
    white = _white(setting)
    found = white.candidates_.differences(slice(None))
    # Rows that move nothing (no weight, or saturated) cannot be found out at any noise.
    sizes = np.linalg.norm(found, axis=2)
    own = setting.attribute.read(setting.X)
    sizes[np.arange(len(own)), own] = np.inf
    moved = sizes.min(axis=1) > 1e-6
    releases = draw_releases(white.model_, sp.Gaussian(1e-9), 5, seed=0)
    result = white.attack(setting.X, setting.y, releases)
    assert moved.sum() > len(moved) / 3
    assert np.all(result.row_accuracy[moved] == 1)


def test_under_overwhelming_noise_white_box_guesses_at_random_and_with_the_prior_like_the_prior():
    X, attribute = with_attribute(60, 300, 3, 3)
    y = straight(61, X)
    model = sp.glm.LinearRegression(1e-2)
    plain = WhiteBox(attribute, model).fit(X, y)
    releases = draw_releases(plain.model_, sp.Gaussian(1e4), 200, seed=3)
    assert plain.attack(X, y, releases).accuracy == pytest.approx(1 / 3, abs=0.05)
    informed = WhiteBox(attribute, model, prior=True).fit(X, y)
    expected = Prior(attribute).fit(X, y).predict(X, y)
    guesses = informed.predict(X, y, releases)
    assert np.all(guesses == expected)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    row=st.integers(0, 29),
    level=st.integers(0, 2),
    logistic=st.booleans(),
)
def test_white_box_guesses_do_not_depend_on_what_is_guessed(seed, row, level, logistic):
    X, attribute = with_attribute(70, 30, 3, 3)
    y = binary(71, X) if logistic else straight(71, X)
    kind = sp.glm.LogisticRegression if logistic else sp.glm.LinearRegression
    model = kind(0.05, fit_intercept=True)
    other = X.copy()
    other[row, list(attribute.columns)] = attribute.codes[level]
    white = WhiteBox(attribute, model).fit(X, y, rows=[row])
    releases = draw_releases(white.model_, sp.Gaussian(0.05), 50, seed=seed)
    turned = WhiteBox(attribute, model).fit(other, y, rows=[row])
    first = white.predict(X[[row]], y[[row]], releases)
    second = turned.predict(other[[row]], y[[row]], releases)
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("family", ["gaussian", "poisson", "bernoulli"])
@pytest.mark.parametrize("intercept", [False, True])
def test_black_box_is_its_definition(family, intercept):
    X, attribute = with_attribute(80, 50, 3, 3)
    kind, y = {
        "gaussian": (sp.glm.LinearRegression, straight(81, X)),
        "poisson": (sp.glm.PoissonRegression, counts(81, X)),
        "bernoulli": (sp.glm.LogisticRegression, np.where(binary(81, X) == 1, "yes", "no")),
    }[family]
    model = kind(0.02, fit_intercept=intercept).fit(X, y)
    releases = draw_releases(model, sp.Gaussian(0.2), 10, seed=4)
    guesses = BlackBox(attribute).fit(X, y).predict(X, y, releases)
    levels = attribute.read(X)
    for t, theta in enumerate(releases.parameters):
        said = _predictions(model, family, theta, X)
        for i in range(len(X)):
            scores = []
            for k, code in enumerate(attribute.codes):
                x = X[i].copy()
                x[list(attribute.columns)] = code
                answer = _predictions(model, family, theta, x[None])[0]
                share = np.mean(levels == k)
                scores.append(share * _performance(family, said, y, answer, y[i], X.shape[1]))
            assert guesses[t, i] == np.argmax(scores)


def _predictions(model, family, theta, X):
    margins = X @ theta[: X.shape[1]] + (theta[-1] if model.fit_intercept else 0)
    if family == "bernoulli":
        return np.where(margins > 0, "yes", "no")
    return np.exp(margins) if family == "poisson" else margins


def _performance(family, said, y, answer, label, d):
    if family == "bernoulli":
        alike = said == answer
        return (np.sum(alike & (y == label)) + np.mean(y == label)) / (np.sum(alike) + 1)
    squared = np.sum((said - y) ** 2) / (len(y) - d)
    return np.exp(-((answer - label) ** 2) / (2 * squared))


def test_black_box_asks_any_model():
    from sklearn.ensemble import RandomForestClassifier

    X, attribute = with_attribute(90, 200, 3, 3)
    level = attribute.read(X)
    y = np.array(["low", "middle", "high"])[level]
    forest = RandomForestClassifier(10, random_state=0).fit(X, y)
    result = BlackBox(attribute).fit(X, y).attack(X, y, forest)
    assert result.accuracy > 0.8 > Prior(attribute).fit(X, y).attack(X, y).accuracy


def test_black_box_falls_back_on_the_prior_where_predictions_overflow():
    X, attribute = with_attribute(91, 60, 3, 3)
    y = counts(92, X)
    model = sp.glm.PoissonRegression(0.01).fit(X, y)
    releases = draw_releases(model, sp.Gaussian(1e5), 5, seed=5)
    guesses = BlackBox(attribute).fit(X, y).predict(X, y, releases)
    assert np.all(guesses == Prior(attribute).fit(X, y).predict(X, y))


def test_black_box_on_a_perfect_fit_finds_the_level():
    X, attribute = with_attribute(93, 40, 2, 3)
    y = X @ np.array([1.0, 4.0, 9.0, -2.0])
    model = sp.glm.LinearRegression().fit(X, y)
    assert BlackBox(attribute).fit(X, y).attack(X, y, model).accuracy == 1


def test_the_prior_names_the_commonest_level():
    X = np.repeat([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]], [2, 5, 3], axis=0)
    attribute = NominalAttribute.from_table(X, [0, 1], "level")
    result = Prior(attribute).fit(X, X[:, 0]).attack(X, X[:, 0])
    assert result.accuracy == 0.5
    assert result.kind == "attack"
    assert Prior(attribute).fit(X, X[:, 0]).predict(X, X[:, 0]).tolist() == [1] * 10


def test_the_ideal_learns_from_the_label_too():
    rng = np.random.default_rng(6)
    level = rng.integers(0, 3, 600)
    X = np.column_stack([np.eye(3)[level][:, 1:], rng.standard_normal(600)])
    attribute = NominalAttribute.from_table(X, [0, 1], "level")
    telling, silent = np.array(["a", "b", "c"])[level], np.full(600, "a")
    assert Ideal(attribute).fit(X[:300], telling[:300]).attack(X[300:], telling[300:]).accuracy == 1
    blind = Ideal(attribute).fit(X[:300], silent[:300]).attack(X[300:], silent[300:])
    assert blind.accuracy < 0.5


def test_the_ideal_takes_any_classifier():
    from sklearn.neighbors import KNeighborsClassifier

    X, attribute = with_attribute(94, 90, 2, 3)
    X[:, 0] = attribute.read(X)
    neighbours = KNeighborsClassifier(1)
    ideal = Ideal(attribute, neighbours).fit(X, X[:, 0])
    assert ideal.attack(X, X[:, 0]).accuracy == 1
    assert not hasattr(neighbours, "classes_")


ADVERSARIES = {
    "prior": lambda a: Prior(a),
    "ideal": lambda a: Ideal(a),
    "black-box": lambda a: BlackBox(a),
    "white-box": lambda a: WhiteBox(a, sp.glm.LinearRegression(0.01, True)),
}


@pytest.mark.parametrize("name", ADVERSARIES)
def test_the_attribute_of_the_targets_is_never_looked_at(name):
    X, attribute = with_attribute(95, 40, 3, 3)
    y = straight(96, X)
    adversary = ADVERSARIES[name](attribute).fit(X, y)
    release = sp.glm.LinearRegression(0.01, True).fit(X, y)
    release.coef_ = release.coef_ + 0.1
    hidden = X.copy()
    hidden[:, list(attribute.columns)] = np.nan
    expected = adversary.predict(X, y, release)
    assert expected.shape == (40,)
    np.testing.assert_array_equal(adversary.predict(hidden, y, release), expected)
    guessed = adversary.attack(X, y, release)
    assert guessed.adversary == name
    many = draw_releases(sp.glm.LinearRegression(0.01, True).fit(X, y), sp.Gaussian(0.1), 3)
    assert adversary.predict(hidden, y, many).shape == (3, 40)
    assert guessed.accuracy == np.mean(expected == attribute.read(X))


@pytest.mark.parametrize("name", ADVERSARIES)
def test_tables_of_every_library_give_the_same(name):
    import pandas as pd
    import polars as pl
    import torch

    X, attribute = with_attribute(97, 40, 3, 3)
    y = straight(98, X)
    columns = [f"c{j}" for j in range(X.shape[1])]
    release = sp.glm.LinearRegression(0.01, True).fit(X, y)
    release.coef_ = release.coef_ + 0.05
    expected = ADVERSARIES[name](attribute).fit(X, y).predict(X, y, release)
    frames = (pd.DataFrame(X, columns=columns), pl.DataFrame(X, schema=columns), torch.tensor(X))
    for frame in frames:
        labels = torch.tensor(y) if isinstance(frame, torch.Tensor) else y
        guesses = ADVERSARIES[name](attribute).fit(frame, labels).predict(frame, labels, release)
        np.testing.assert_array_equal(guesses, expected)


def test_one_release_is_one_of_many():
    X, attribute = with_attribute(99, 60, 3, 2)
    y = straight(100, X)
    model = sp.glm.LinearRegression(0.01, True).fit(X, y)
    many = draw_releases(model, sp.Gaussian(0.02), 1, seed=7)
    with pytest.warns(UserWarning, match="fixed seed"):
        one = sp.release(model, sp.Gaussian(0.02), seed=7)
    np.testing.assert_array_equal(many.parameters[0], parameters(one))
    for adversary in (BlackBox(attribute), WhiteBox(attribute, model, prior=True)):
        adversary.fit(X, y)
        first, second = adversary.predict(X, y, one), adversary.predict(X, y, many)
        assert second.shape == (1, 60)
        np.testing.assert_array_equal(first, second[0])


def test_releases_predict_what_each_would():
    X = table(101, 20, 3)
    for model, y in (
        (sp.glm.LinearRegression(0.1, True), straight(102, X)),
        (sp.glm.PoissonRegression(0.1), counts(103, X)),
        (sp.glm.LogisticRegression(0.1, True), np.where(binary(104, X) == 1, "b", "a")),
    ):
        releases = draw_releases(model.fit(X, y), sp.Laplace(0.3), 4, seed=8)
        assert isinstance(releases, Releases)
        assert len(releases) == 4
        for theta, said in zip(releases.parameters, releases.predict(X), strict=True):
            model.coef_ = theta[:3].reshape(np.shape(model.coef_))
            if model.fit_intercept:
                model.intercept_ = theta[3:].reshape(np.shape(model.intercept_))
            expected = model.predict(X)
            assert said.dtype.kind == expected.dtype.kind
            if said.dtype.kind == "f":
                np.testing.assert_allclose(said, expected, rtol=1e-12)
            else:
                np.testing.assert_array_equal(said, expected)


def test_chunks_do_not_change_the_guesses(monkeypatch):
    from seepage.attacks.attribute import adversary

    X, attribute = with_attribute(105, 50, 3, 3)
    y = straight(106, X)
    white = WhiteBox(attribute, sp.glm.LinearRegression(0.01)).fit(X, y)
    releases = draw_releases(white.model_, sp.Gaussian(0.01), 30, seed=9)
    whole = [a.predict(X, y, releases) for a in (white, BlackBox(attribute).fit(X, y))]
    small = adversary.row_slices
    monkeypatch.setattr(adversary, "row_slices", lambda n, width, what: small(n, 1, chunk=7))
    parts = [a.predict(X, y, releases) for a in (white, BlackBox(attribute).fit(X, y))]
    np.testing.assert_array_equal(parts, whole)
