"""What leaves is counted: nothing but the noisy numbers moves with a record, and they are held."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pyarrow as pa
import pytest
from release_cases import demo, patients

from sampled import sampled
from seepage.auditing.release.disclosure import find_disclosures
from seepage.auditing.release.noise_vote import MARGIN, block_opinions, scores
from seepage.auditing.release.procedure import Procedure
from seepage.core.result import COARSER, round_up


@pytest.fixture(scope="module")
def few_neighbours():
    """All fifty neighbours of a release are tried here."""


def numbers(trained):
    return np.concatenate([np.ravel(trained.model.coef_), np.ravel(trained.model.intercept_)])


def moved(raw, row, name, by):
    values = np.array(raw.column(name).to_pylist(), dtype=float)
    values[row] += by
    return raw.set_column(raw.column_names.index(name), name, pa.array(values))


def leakage_by_differences(procedure, raw, row, sigma):
    """Return the root of the largest eigenvalue of one record's information, from refits alone."""
    units = {c.name: c.spread for c in procedure.fit(raw).table.coding.parts}
    columns = []
    for name, unit in units.items():
        h = 1e-4 * unit
        ahead, behind = (numbers(procedure.fit(moved(raw, row, name, s * h))) for s in (1, -1))
        columns.append((ahead - behind) / 2e-4)
    return np.linalg.norm(np.stack(columns, axis=1), 2) / sigma


@pytest.mark.parametrize("which", sampled(["demo", "patients"], ["patients"]))
def test_every_unrounded_number_is_within_the_target_by_finite_differences(which):
    raw, target = (demo(), "diagnosis") if which == "demo" else (patients(), "response")
    procedure = Procedure(target=target)
    prepared = procedure.prepare(raw)
    most = np.argsort(-prepared.eta)[:3]
    for row in most.tolist():
        found = leakage_by_differences(procedure, raw, row, prepared.sigma)
        assert found <= procedure.target_eta
        assert found <= prepared.eta[row] / prepared.sigma * (1 + 1e-4)
        # All columns moved a little at once: nothing that is published follows.
        nudged = raw
        for name, column in zip(raw.column_names, raw.schema.types, strict=True):
            if pa.types.is_floating(column):
                nudged = moved(nudged, row, name, 1e-6 * abs(raw.column(name)[row].as_py()))
        assert procedure.prepare(nudged).figures == prepared.figures


@pytest.mark.parametrize("which", sampled(["demo", "patients"], ["patients"]))
def test_what_would_change_for_the_50_most_exposed_is_listed_as_disclosed(which):
    """The list comes from quick refits; here the procedure is run again from scratch."""
    raw, target = (demo(), "diagnosis") if which == "demo" else (patients(), "response")
    procedure = Procedure(target=target)
    prepared = procedure.prepare(raw)
    listed = {(d.row, d.change): set(d.figures) for d in find_disclosures(procedure, raw, prepared)}
    most = np.argsort(-prepared.eta)[:50].tolist()
    assert {row for row, _ in listed} <= set(most)
    every = np.arange(raw.num_rows)
    for row in most if which == "patients" else most[:8]:
        without = procedure.prepare(raw.take(np.delete(every, row)))
        assert listed.get((row, "left out"), set()) == changed(prepared, without)
    for row in most[:8]:
        for change, end in (("least", np.min), ("most", np.max)):
            other = raw
            for name in raw.column_names:
                if name != target:
                    values = np.array(raw.column(name))
                    other = moved(other, row, name, end(values) - values[row])
            told = listed.get((row, f"with its numbers at their {change}"), set())
            assert told == changed(prepared, procedure.prepare(other))
    if which == "patients":
        # Two hundred is a point of the grid of counts: anyone's absence would show.
        assert all("number of records" in listed[row, "left out"] for row in most)


def changed(prepared, other):
    return {name for name, value in other.figures.items() if value != prepared.figures[name]}


def test_declared_figures_disclose_nothing():
    raw = patients().slice(0, 190)
    domain = {"age": (0.0, 120.0), "dose": (0.0, 150.0), "response": (-5.0, 10.0)}
    procedure = Procedure(target="response", sigma=2.0, domain=domain)
    assert find_disclosures(procedure, raw, procedure.prepare(raw)) == ()


def test_that_a_declared_noise_is_enough_is_itself_listed():
    """What the domain's ends would need is more than was declared."""
    raw = patients().slice(0, 190)
    procedure = Procedure(target="response", sigma=0.16)
    found = find_disclosures(procedure, raw, procedure.prepare(raw))
    assert {d.figures for d in found} == {("whether anything can be released",)}


def test_one_record_changes_the_opinion_of_one_block():
    """With that, and counts of opinions, the draw of σ is ε-differentially private."""
    procedure, rng = Procedure(target="response"), np.random.default_rng(0)
    block = rng.integers(0, 20, 200)
    ours = block_opinions(procedure.fit(patients()), np.ones(200), block, 20)
    assert np.isfinite(ours).sum() >= 18
    grid = np.geomspace(1e-3, 1e3, 19)
    for dose in (0.0, 30.0, 150.0):
        theirs = block_opinions(procedure.fit(patients(dose)), np.ones(200), block, 20)
        assert set(np.flatnonzero(theirs != ours)) <= {block[0]}
        chances = [np.exp(scores(opinions, grid) / 2) for opinions in (ours, theirs)]
        ratio = np.divide(*(c / c.sum() for c in chances))
        assert np.max(np.abs(np.log(ratio))) <= 1
    # Whatever the opinions are.
    for _ in range(200):
        ours = rng.lognormal(0, 2, 20)
        theirs = np.where(np.arange(20) == 3, rng.lognormal(0, 4), ours)
        assert np.max(np.abs(scores(ours, grid) - scores(theirs, grid))) <= 1
    middle = grid[np.argmax(scores(np.full(20, 0.7), grid))]
    assert middle == grid[grid >= 0.7][0]


DOSES = np.linspace(0, 150, 151)
WAYS = {
    "default": Procedure(target="response"),
    "near a point": Procedure(target="response", target_eta=7.0),
    "declared": Procedure(
        target="response",
        sigma=0.3,
        target_eta=2.0,
        domain={"age": (0.0, 120.0), "dose": (0.0, 150.0)},
    ),
}


@cache
def tried(way):
    """Return what is released, and would be for every dose, as an attacker can work out."""
    procedure = WAYS[way]
    return procedure.prepare(patients()), [procedure.prepare(patients(v)) for v in DOSES]


def interval(weights):
    """Return the width of the central 95 % credible interval of the dose."""
    total = np.cumsum(weights / weights.sum())
    return np.interp(0.975, total, DOSES) - np.interp(0.025, total, DOSES)


@pytest.mark.parametrize("way", sampled(list(WAYS), ["default"]))
def test_the_folder_tells_no_more_of_an_extreme_dose_than_the_noisy_numbers(way):
    """But where σ lies near a point of its grid, and that is listed as disclosed."""
    true, others = tried(way)
    agree = np.array([q.figures == true.figures for q in others], dtype=float)
    ratios, widths = intervals(true, others, agree)
    assert np.median(widths) < 140  # the prior's is 142.5: the numbers alone do tell something
    if way == "near a point":
        assert np.median(ratios) < 0.9
        found = find_disclosures(WAYS[way], patients(), true)
        assert 0 in {d.row for d in found if "σ" in d.figures}
    else:
        assert np.mean(ratios) >= 0.9
        assert np.median(ratios) >= 0.9


@pytest.mark.slow
@pytest.mark.parametrize("eta", [1.0, 7.0])
def test_a_drawn_noise_tells_next_to_nothing_of_an_extreme_dose(eta):
    """The attacker even knows who is in which block."""
    true, others = tried("default")
    block = np.random.default_rng(1).integers(0, 20, 200)
    grid = np.array([step * 10.0**k for k in range(-4, 1) for step in (1, 2, 5)])

    def chances(prepared):
        opinions = block_opinions(prepared.trained, np.full(200, eta), block, 20)
        chance = np.exp(scores(opinions, grid) / 2)
        return chance / chance.sum()

    most = np.argmax(chances(true))
    sigma = round_up(MARGIN * grid[most], COARSER)
    told = np.array([chances(q)[most] * (np.max(q.eta) <= sigma * eta) for q in others])
    ratios, _ = intervals(replace(true, sigma=sigma), others, told)
    assert np.min(ratios) >= 0.9


def intervals(true, others, told):
    """Return the widths of the interval from the folder over those from the numbers, and these.

    The attacker knows all else, and takes any dose from 0 to 150 to be equally likely. He works out
    what would have been published for each: ``told`` is how likely the figures he sees then are.
    The share of wrong predictions has its own noise, and counts with its likelihood.
    """
    means = np.array([numbers(q.trained) for q in others])
    rng, ratios, widths = np.random.default_rng(0), [], []
    for _ in range(200):
        seen = numbers(true.trained) + true.sigma * rng.standard_normal(means.shape[1])
        loglik = -np.sum((means - seen) ** 2, axis=1) / (2 * true.sigma**2)
        alone = np.exp(loglik - loglik.max())
        share = wrong_shares(true, seen)
        seen_share = share[np.argmin(np.abs(DOSES - 98.5))] + 0.02 * rng.standard_normal()
        folder = alone * told * np.exp(-((share - seen_share) ** 2) / (2 * 0.02**2))
        ratios.append(interval(folder) / interval(alone))
        widths.append(interval(alone))
    return ratios, widths


def wrong_shares(true, seen):
    """Return the share of responses missed by more than a unit, for every dose of the first."""
    parts = {c.name: (c.mean, c.spread) for c in true.trained.table.coding.parts}
    table = patients()
    y = np.array(table["response"])
    unit = next(u for u in (0.2, 0.5, 2.0, 5.0) if u >= np.std(y))
    shares = []
    for dose in DOSES:
        values = {"age": np.array(table["age"]), "dose": np.array(table["dose"])}
        values["dose"] = np.concatenate([[dose], values["dose"][1:]])
        X = np.stack([(values[n] - m) / s for n, (m, s) in parts.items()], axis=1)
        shares.append(np.mean(np.abs(X @ seen[:-1] + seen[-1] - y) > unit))
    return np.array(shares)
