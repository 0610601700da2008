"""The candidate models of the white-box attack, against one full refit for every row and level."""

import numpy as np
import pytest
from attribute_cases import CURVED, LINEAR, SETTINGS, Setting, parameters, with_attribute

import seepage as sp
from recipes import OWN_FAMILIES, binary, counts, table, uneven
from seepage.attacks import WhiteBox
from seepage.attacks.attribute import candidate_models
from seepage.attacks.attribute.candidate_models import third_derivatives
from seepage.glm.fitting.objective import Objective
from seepage.glm.losses import bernoulli


def _white(setting):
    white = WhiteBox(setting.attribute, setting.model)
    return white.fit(setting.X, setting.y, sample_weight=setting.sample_weight)


def _errors(setting, white):
    """Return the error of every candidate beside the size of its change, and those sizes."""
    truth = setting.refits - parameters(white.model_)
    found = white.candidates_.differences(slice(None))
    return np.linalg.norm(found - truth, axis=2), np.linalg.norm(truth, axis=2)


@pytest.mark.parametrize("setting", LINEAR, ids=lambda s: s.name)
def test_rank_two_updates_are_the_refits(setting):
    errors, sizes = _errors(setting, _white(setting))
    assert np.all(errors <= 1e-9 * sizes + 1e-13 * sizes.max())


@pytest.mark.slow
@pytest.mark.parametrize("setting", CURVED, ids=lambda s: s.name)
def test_newton_steps_are_the_refits(setting):
    errors, sizes = _errors(setting, _white(setting))
    assert np.all(errors <= 1e-6 * sizes + 1e-11 * sizes.max())


@pytest.mark.slow
@pytest.mark.parametrize("setting", CURVED, ids=lambda s: s.name)
def test_as_on_a_table_too_large_to_refit_every_candidate(setting, monkeypatch):
    monkeypatch.setattr(candidate_models, "_AFFORDABLE", 0)
    errors, sizes = _errors(setting, _white(setting))
    assert np.all(errors <= 1e-4 * sizes + 1e-11 * sizes.max())


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda s: s.name)
def test_the_level_a_row_has_changes_nothing(setting):
    own = setting.attribute.read(setting.X)
    found = _white(setting).candidates_.differences(slice(None))
    assert np.all(found[np.arange(len(own)), own] == 0)


def test_all_kinds_of_steps_are_visited(monkeypatch):
    # Else the table above would not test them.
    monkeypatch.setattr(candidate_models, "_AFFORDABLE", 0)
    candidates = {s.name: _white(s).candidates_ for s in CURVED}
    total = {s.name: len(s.X) * (len(s.attribute) - 1) for s in CURVED}
    assert any(c.refitted < total[name] for name, c in candidates.items())
    assert any(c.refitted for c in candidates.values())


def test_two_steps_suffice_for_most_of_a_large_table(monkeypatch):
    monkeypatch.setattr(candidate_models, "_AFFORDABLE", 0)
    X, attribute = with_attribute(30, 3000, 4, 3)
    setting = Setting("large", sp.glm.LogisticRegression(1e-3), X, binary(31, X), attribute)
    white = _white(setting)
    assert white.candidates_.refitted < 600
    theta = parameters(white.model_)
    for row in range(0, 3000, 300):
        found = white.candidates_.differences(slice(row, row + 1))[0]
        for difference, code in zip(found, attribute.codes, strict=True):
            truth = setting.refit(row, code) - theta
            assert np.linalg.norm(difference - truth) <= 1e-6 * np.linalg.norm(truth) + 1e-12


def test_only_the_rows_named():
    setting = CURVED[1]
    rows = np.array([5, 3, 39])
    every = _white(setting).candidates_.differences(slice(None))
    white = WhiteBox(setting.attribute, setting.model).fit(setting.X, setting.y, rows=rows)
    np.testing.assert_allclose(
        white.candidates_.differences(slice(None)), every[rows], rtol=1e-5, atol=1e-9
    )


def test_models_of_scikit_learn():
    from sklearn.linear_model import LogisticRegression, PoissonRegressor, Ridge

    X, attribute = with_attribute(20, 80, 3, 3)
    n = len(X)
    cases = [
        (Ridge(alpha=0.02 * n), sp.glm.LinearRegression(0.02, True), X[:, 0] + X[:, 1]),
        (
            LogisticRegression(C=1 / (0.02 * n)),
            sp.glm.LogisticRegression(0.02, True),
            binary(21, X),
        ),
        (PoissonRegressor(alpha=0.02), sp.glm.PoissonRegression(0.02, True), counts(22, X)),
    ]
    for theirs, ours, y in cases:
        expected = WhiteBox(attribute, ours).fit(X, y).candidates_.differences(slice(None))
        found = WhiteBox(attribute, theirs).fit(X, y).candidates_.differences(slice(None))
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-8)


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("weights", [None, uneven(41, 50)])
def test_third_derivatives_are_the_plain_sum(intercept, weights):
    X = table(40, 50, 4)
    y = binary(42, X)
    objective = Objective(X, bernoulli, y, weights, 0.1, intercept)
    design = np.hstack([X, np.ones((50, 1))]) if intercept else X
    rng = np.random.default_rng(43)
    theta = rng.standard_normal(design.shape[1])
    found, tensor = third_derivatives(objective, bernoulli, design @ theta)
    s = 1 / (1 + np.exp(-design @ theta))
    bend = s * (1 - s) * (1 - 2 * s) * (1 if weights is None else weights)
    step = rng.standard_normal(len(design.T))
    applied = sum((step[p] * step[p:]) @ part for p, part in enumerate(tensor))
    truth = 0.5 * np.einsum("j,jp,p,jq,q,jr->r", bend, design, step, design, step, design)
    np.testing.assert_allclose(applied, truth, rtol=1e-10)
    np.testing.assert_allclose(found, bend, rtol=1e-10)


def test_third_derivatives_of_a_family_that_does_not_state_them():
    family = OWN_FAMILIES["exponential"]
    X = table(44, 20, 3)
    y = np.abs(table(45, 20, 1)[:, 0])
    margins = X @ [0.3, -0.2, 0.5]
    found, _ = third_derivatives(Objective(X, family, y, None, 0.0, False), family, margins)
    np.testing.assert_allclose(found, -y * np.exp(-margins), rtol=1e-7, atol=1e-12)


def test_a_refit_that_does_not_exist_is_refused():
    # Without penalty, the column of a level that one row alone has vanishes with that row's level.
    X, _ = with_attribute(50, 30, 3, 3)
    X[:, 2] = np.arange(30) == 4
    X[4, 1] = 0
    attribute = sp.attacks.NominalAttribute.from_table(X, [1, 2], "level")
    y = X @ np.ones(5) + table(51, 30, 1)[:, 0]
    linear = WhiteBox(attribute, sp.glm.LinearRegression())
    with pytest.raises(sp.InputError, match="in row 4, the refit is not unique"):
        linear.fit(X, y).attack(X, y, sp.glm.LinearRegression().fit(X, y))
    others = np.delete(np.arange(30), 4)
    linear.fit(X, y, rows=others)
    assert linear.predict(X[others], y[others], linear.model_).shape == (29,)
