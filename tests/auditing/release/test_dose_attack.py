"""Somebody who knows everything but one extreme dose learns next to nothing from the figures."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np
import pytest
from release_cases import find_disclosures, patients, release_attack
from scipy.special import ndtri

from sampled import sampled
from seepage.auditing.release import noise_vote
from seepage.auditing.release.noise_vote import interval_kept, noise_grid
from seepage.auditing.release.procedure import Procedure

BLOCKS, EPSILON = release_attack.BLOCKS, release_attack.EPSILON
DEFAULT, PRIORS, TARGETS = release_attack.DEFAULT, release_attack.PRIORS, release_attack.TARGETS


@cache
def tables():
    return release_attack.Tables.of(DEFAULT)


@cache
def opinions():
    return [release_attack.opinions_by_dose(tables(), seed) for seed in range(2)]


@pytest.mark.minutes
def test_the_attacker_knows_how_the_noise_is_drawn():
    """What he works out are the probabilities of the draw, and what is drawn is of that kind."""
    prepared = Procedure(target="response").prepare(patients())
    assert (prepared.vote.blocks, prepared.vote.epsilon) == (BLOCKS, EPSILON)
    assert prepared.vote.probability == pytest.approx(1)
    grid = noise_grid(2.0, 200)
    assert prepared.sigma == prepared.vote.sigma
    assert prepared.sigma in grid
    for found in opinions():
        theirs = release_attack.chances(found[:3], grid)
        ours = [noise_vote.chances(row, grid, EPSILON) for row in found[:3]]
        np.testing.assert_allclose(theirs, ours)


@pytest.mark.slow
@pytest.mark.parametrize(("eta", "prior"), list(product(TARGETS, PRIORS)))
def test_the_folder_leaves_nine_tenths_of_the_interval_in_every_draw(eta, prior):
    """Also where what the table needs lies right beside a point of the grid."""
    sigmas = release_attack.draws(tables(), opinions(), eta)
    found = release_attack.ratios(tables(), sigmas, PRIORS[prior], 25)
    assert found["ratio"] >= 0.9
    assert found["promised interval kept"] == 25


def test_the_numbers_alone_do_tell_something():
    """Of an interval that is as wide as before anything was known, nine tenths mean nothing."""
    prior = PRIORS["all alike"]
    means = np.array([release_attack.numbers(table) for table in tables().others])
    true, rng, widths = release_attack.numbers(tables().true), np.random.default_rng(0), []
    sigma = next(release_attack.least_of_grid(tables(), 7.0))[0]
    for _ in range(50):
        seen = true + sigma * rng.standard_normal(len(true))
        apart = np.sum((means - seen) ** 2, axis=1)
        low, high = release_attack.interval(prior * np.exp((apart.min() - apart) / sigma**2 / 2))
        widths.append(high - low)
    before = np.diff(release_attack.interval(prior))[0]
    assert np.median(widths) < 0.5 * before


@pytest.mark.minutes
def test_declared_figures_leave_the_whole_interval():
    domain = ["age=0:120", "dose=0:150"]
    public = release_attack.Tables.of(replace(DEFAULT, sigma=0.3, target_eta=2.0, domain=domain))
    for prior in PRIORS.values():
        sigmas = release_attack.held(0.3, np.ones(151))
        assert release_attack.ratios(public, sigmas, prior, 25)["ratio"] == 1


@pytest.mark.slow
def test_a_noise_that_follows_the_dose_is_listed_as_disclosed():
    """Which is what is left where there are too few records for a vote."""
    procedure = Procedure(target="response", target_eta=7.0)
    drawn = procedure.prepare(patients())
    least = replace(drawn, vote=None, sigma=0.05, figures=drawn.figures | {"σ": drawn.least})
    found = find_disclosures(procedure, patients(), least)
    assert 0 in {d.row for d in found if "σ" in d.figures}
    assert not any("σ" in d.figures for d in find_disclosures(procedure, patients(), drawn))
    sigmas = release_attack.least_of_grid(tables(), 7.0)
    told = release_attack.ratios(tables(), sigmas, PRIORS["all alike"], 100)
    assert told["median ratio"] < 0.9


def test_the_interval_that_is_promised_survives_whatever_the_figures_are():
    """For any belief, and figures whose probability varies by a factor of exp(ε) at most."""
    rng = np.random.default_rng(0)
    places = np.arange(2000)

    def ends(weights, tail):
        total = np.cumsum(weights) / weights.sum()
        return np.searchsorted(total, tail), np.searchsorted(total, 1 - tail)

    for _ in range(300):
        epsilon = rng.uniform(0, 3)
        before = rng.gamma(rng.uniform(0.01, 2), size=2000)
        a, b = np.sort(rng.integers(0, 2000, 2))
        band = (places >= a) & (places < b)
        told = np.exp(epsilon * (band if rng.random() < 0.5 else rng.random(2000)))
        low, high = ends(before * told, 0.025)
        least, most = ends(before, (1 - interval_kept(epsilon)) / 2)
        assert low <= least
        assert high >= most
    # And no more could be promised: the worst figures leave exactly that.
    even = np.ones(10**6)
    epsilon = 0.4
    edge = (1 - interval_kept(epsilon)) / 2
    told = np.where(np.linspace(0, 1, 10**6) < edge, 1.0, np.exp(epsilon))
    assert ends(even * told, 0.025)[0] == pytest.approx(edge * 10**6, rel=1e-3)


def test_of_a_normal_belief_nine_tenths_are_left():
    """All that leaves by default has ε = 0.45 at most, from 200 records with few columns on."""
    left = ndtri(0.5 + interval_kept(0.45) / 2) / ndtri(0.975)
    assert 0.9 <= left < 0.91
    # Of any belief with a logarithm that is concave, log(1 − kept)/log(0.05).
    assert np.log(1 - interval_kept(0.45)) / np.log(0.05) == pytest.approx(0.855, abs=0.001)


def test_the_kept_simulation_has_no_draw_below():
    kept = json.loads(release_attack.KEPT.read_text("utf-8"))
    worst = kept["worst"]
    assert worst["default"]["draws"] == 200 * len(TARGETS) * len(PRIORS)
    assert worst["default"]["below 0.9"] == 0
    assert worst["default"]["promised interval kept"] == worst["default"]["draws"]
    assert worst["declared"]["least ratio"] == 1


@pytest.mark.parametrize(("partitions", "times"), sampled([(4, 40), (20, 200)], 0, [(4, 40)]))
def test_no_draw_of_thousands_is_below(partitions, times):
    worst = release_attack.summary(release_attack.every_way(partitions, times))
    assert worst["default"]["least ratio"] >= 0.9
    assert worst["default"]["promised interval kept"] == worst["default"]["draws"]
