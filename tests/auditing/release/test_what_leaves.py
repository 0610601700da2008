"""What leaves is counted: nothing but the noisy numbers moves with a record, and they are held."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from release_cases import demo, patients

from seepage.auditing.release.disclosure import find_disclosures
from seepage.auditing.release.procedure import Procedure


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


@pytest.mark.parametrize("which", ["demo", "patients"])
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


def test_what_would_change_is_listed_as_disclosed():
    raw, procedure = patients(), Procedure(target="response")
    prepared = procedure.prepare(raw)
    listed = {(d.row, d.change): d.figures for d in find_disclosures(procedure, raw, prepared, 10)}
    for row in np.argsort(-prepared.eta)[:10].tolist():
        without = procedure.prepare(raw.take([k for k in range(200) if k != row])).figures
        changed = {name for name in without if without[name] != prepared.figures[name]}
        assert set(listed.get((row, "left out"), ())) == changed
    # Two hundred is a point of the grid of counts: anyone's absence would show.
    assert "number of records" in listed[0, "left out"]


def test_declared_figures_disclose_nothing():
    raw = patients().slice(0, 190)
    domain = {"age": (0.0, 120.0), "dose": (0.0, 150.0), "response": (-5.0, 10.0)}
    procedure = Procedure(target="response", sigma=0.1, domain=domain)
    assert find_disclosures(procedure, raw, procedure.prepare(raw)) == ()


DOSES = np.linspace(0, 150, 151)


@pytest.fixture(scope="module")
def tried():
    """Return what would have been released for every dose, as an attacker can work out."""
    ways = {
        "rounded": Procedure(target="response", target_eta=20.0),
        "near a point": Procedure(target="response", target_eta=5.0),
        "declared": Procedure(
            target="response", sigma=0.3, domain={"age": (0.0, 120.0), "dose": (0.0, 150.0)}
        ),
    }
    return {
        name: (procedure.prepare(patients()), [procedure.prepare(patients(v)) for v in DOSES])
        for name, procedure in ways.items()
    }


def interval(weights):
    """Return the width of the central 95 % credible interval of the dose."""
    total = np.cumsum(weights / weights.sum())
    return np.interp(0.975, total, DOSES) - np.interp(0.025, total, DOSES)


@pytest.mark.parametrize("way", ["rounded", "declared"])
def test_the_folder_tells_no_more_of_an_extreme_dose_than_the_noisy_numbers(tried, way):
    ratios, widths = intervals(*tried[way])
    assert np.median(ratios) >= 0.9
    assert np.median(widths) < 140  # the prior's is 142.5: the numbers alone do tell something


def test_where_the_folder_tells_more_it_is_listed_as_disclosed(tried):
    """A rounded σ near a point of the grid narrows the interval; who makes the release is told."""
    ratios, _ = intervals(*tried["near a point"])
    assert np.median(ratios) < 0.9
    procedure = Procedure(target="response", target_eta=5.0)
    found = find_disclosures(procedure, patients(), tried["near a point"][0], 1)
    assert {d.row for d in found if "σ" in d.figures} == {0}


def intervals(true, others):
    """Return the widths of the interval from the folder over those from the numbers, and these.

    The attacker knows all else, and takes any dose from 0 to 150 to be equally likely. He works out
    what would have been published for each: the figures must be those he sees. The share of wrong
    predictions has its own noise, and counts with its likelihood.
    """
    scaling = [name for name in true.figures if name.startswith("scaling")]
    # From the numbers alone: their mean for every dose, with the scaling taken as known.
    alike = np.array([all(q.figures[n] == true.figures[n] for n in scaling) for q in others])
    agree = np.array([q.figures == true.figures for q in others])
    means = np.array([numbers(q.trained) for q in others])
    rng, ratios, widths = np.random.default_rng(0), [], []
    for _ in range(50):
        seen = numbers(true.trained) + true.sigma * rng.standard_normal(means.shape[1])
        loglik = -np.sum((means - seen) ** 2, axis=1) / (2 * true.sigma**2)
        alone = np.where(alike, np.exp(loglik - loglik[alike].max()), 0)
        share = wrong_shares(true, seen)
        told = share[np.argmin(np.abs(DOSES - 98.5))] + 0.02 * rng.standard_normal()
        folder = np.where(agree, alone * np.exp(-((share - told) ** 2) / (2 * 0.02**2)), 0)
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
