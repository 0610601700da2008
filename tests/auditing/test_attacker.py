"""The bound in natural units against an attacker who does all that can be done.

Many noisy models are released. The attacker knows every other number of the table, the label, the
preprocessing, the penalty and σ, and looks for the value of one cell: the one with which training
gives the parameters nearest to the released ones (the maximum-likelihood estimate), found by
Gauss–Newton steps from the mean of the column with training repeated at every step. Where the
noise is small beside the curvature of that map the estimate is unbiased, and its standard
deviation must be the bound, neither less (the bound would be wrong) nor much more (it would be
loose).
"""

import numpy as np
import pytest
from people import encoded_people, positions, units

from seepage.auditing.audit import ONLY_NOISE, audit_table
from seepage.glm import LogisticRegression

RELEASES = 4000
L2 = 0.01
# Four standard deviations of the estimate of a standard deviation from so many releases.
LUCK = 4 / np.sqrt(2 * RELEASES)


def _train_linear(X, y):
    """Train on many tables at once: ``X`` (m, n, d) to parameters (m, d + 1)."""
    D = np.concatenate([X, np.ones((*X.shape[:2], 1))], axis=2)
    d, n = X.shape[2], X.shape[1]
    H = D.transpose(0, 2, 1) @ D + np.diag([*np.full(d, n * L2), 0.0])
    return np.linalg.solve(H, (D.transpose(0, 2, 1) @ y)[:, :, None])[:, :, 0]


def _attack(train, released, start, step):
    """Estimate the cell from every release; ``train`` maps values (m,) to parameters (m, P)."""
    guess = np.full(len(released), start)
    for _ in range(12):
        now = train(guess)
        slope = (train(guess + step) - train(guess - step)) / (2 * step)
        change = np.sum(slope * (released - now), axis=1) / np.sum(slope * slope, axis=1)
        guess = guess + np.clip(change, -3, 3)
    assert np.max(np.abs(change)) < 1e-6
    return guess


def _agrees(estimates, truth, bound):
    spread = np.std(estimates, ddof=1)
    bias = abs(np.mean(estimates) - truth)
    assert bias < 5 * spread / np.sqrt(RELEASES) + 0.02 * bound
    assert spread >= bound * (1 - LUCK)
    assert spread <= bound * 1.1


def _in_years(encoded, values, row):
    column = positions(encoded)["age"][0]
    unit = units(encoded)[column]
    truth = encoded.raw.column("age")[row].as_py()
    mean = truth - encoded.source.X[row, column] * unit
    return column, truth, mean, (values - mean) / unit


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 20, 40])
def test_the_best_attack_on_a_linear_model_meets_the_bound(rank):
    encoded = encoded_people("linear", n=60, sensitive=["age"])
    audit = audit_table(encoded, name="people", l2=L2, sigma=1.0, effort=ONLY_NOISE)
    row = int(np.argsort(audit.cell_errors["age"])[rank])
    # The bound grows with the noise: have it at half a year.
    sigma = 0.5 / audit.cell_errors["age"][row]
    audit = audit_table(encoded, name="people", l2=L2, sigma=sigma, effort=ONLY_NOISE)
    bound = audit.cell_errors["age"][row]
    assert bound == pytest.approx(0.5)
    column, truth, mean, _ = _in_years(encoded, 0.0, row)

    def train(years):
        X = np.repeat(encoded.source.X[None], len(years), axis=0)
        X[:, row, column] = _in_years(encoded, years, row)[3]
        return _train_linear(X, encoded.source.y)

    noise = sigma * np.random.default_rng(rank).standard_normal((RELEASES, audit.released))
    released = train(np.array([truth])) + noise
    _agrees(_attack(train, released, mean, 1e-3), truth, bound)


@pytest.mark.slow
def test_the_best_attack_on_a_logistic_model_meets_the_bound():
    encoded = encoded_people("logistic", n=60, sensitive=["age"])
    audit = audit_table(encoded, name="people", l2=L2, sigma=1.0, effort=ONLY_NOISE)
    row = int(np.argmin(audit.cell_errors["age"]))
    sigma = 0.25 / audit.cell_errors["age"][row]
    audit = audit_table(encoded, name="people", l2=L2, sigma=sigma, effort=ONLY_NOISE)
    bound = audit.cell_errors["age"][row]
    column, truth, _, _ = _in_years(encoded, 0.0, row)

    def train_once(years):
        X = encoded.source.X.copy()
        X[row, column] = _in_years(encoded, years, row)[3]
        model = LogisticRegression(l2=L2, fit_intercept=True).fit(X, encoded.source.y)
        return np.append(model.coef_, model.intercept_)

    # Training is slow here, so the attacker tabulates it over all ages first.
    ages = np.linspace(truth - 6, truth + 6, 241)
    table = np.array([train_once(age) for age in ages])

    noise = sigma * np.random.default_rng(1).standard_normal((RELEASES, audit.released))
    released = train_once(truth) + noise
    nearest = np.argmin(np.sum((released[:, None, :] - table[None]) ** 2, axis=2), axis=1)
    inside = np.clip(nearest, 1, len(ages) - 2)
    # A parabola through the three nearest entries refines the best of them.
    distance = np.stack(
        [np.sum((released - table[inside + k]) ** 2, axis=1) for k in (-1, 0, 1)], axis=1
    )
    bend = distance[:, 0] - 2 * distance[:, 1] + distance[:, 2]
    estimates = ages[inside] + (ages[1] - ages[0]) * (distance[:, 0] - distance[:, 2]) / (2 * bend)
    _agrees(estimates, truth, bound)
