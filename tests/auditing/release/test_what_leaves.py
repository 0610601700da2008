"""What leaves is counted: nothing but the noisy numbers moves with a record, and they are held."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from release_cases import demo, find_disclosures, patients

import seepage as sp
from sampled import sampled
from seepage.auditing.intake.table import TableInMemory, plan_columns
from seepage.auditing.release.noise_vote import block_opinions, chances, scores, vote_on_noise
from seepage.auditing.release.procedure import Procedure
from seepage.auditing.release.rare_names import settle_rare_names

PAGE = Path(__file__).parents[3] / "docs" / "sharp-edges.md"
EXTREMES = (-1e9, -1e3, 0.0, 98.5, 1e3, 1e9)


def test_the_chances_are_those_of_points_taken_in_random_order_until_one_is_accepted():
    rng = np.random.default_rng(0)
    grid, opinions = np.array([1.0, 2.0, 5.0, 10.0]), rng.uniform(0.5, 8, 20)
    score = scores(opinions, grid)
    accepted = np.exp(0.3 * (score - score.max()))
    found = np.zeros(4)
    for order in permutations(range(4)):
        left = 1.0  # nobody before was accepted
        for k in order:
            found[k] += left * accepted[k] / 24
            left *= 1 - accepted[k]
    np.testing.assert_allclose(chances(opinions, grid, 0.6), found)
    assert np.sum(found) == pytest.approx(1)


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


@pytest.mark.parametrize("which", sampled(["demo", "patients"], ["patients"], []))
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
        assert procedure.rerun(nudged, prepared)[0] == prepared.figures
        assert changed(prepared, from_scratch(procedure, nudged)) == set()


@pytest.mark.parametrize("which", sampled(["demo", "patients"], 0, ["patients"]))
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
        without = from_scratch(procedure, raw.take(np.delete(every, row)))
        assert listed.get((row, "left out"), set()) == changed(prepared, without)
    for row in most[:8]:
        for change, end in (("least", np.min), ("most", np.max)):
            other = raw
            for name in raw.column_names:
                if name != target:
                    values = np.array(raw.column(name))
                    other = moved(other, row, name, end(values) - values[row])
            told = listed.get((row, f"with its numbers at their {change}"), set())
            assert told == changed(prepared, from_scratch(procedure, other))
    if which == "patients":
        # Two hundred is a point of the grid of counts: anyone's absence would show.
        assert all("number of records" in listed[row, "left out"] for row in most)


def from_scratch(procedure, raw):
    """Run the procedure again; so large a σ need not be drawn."""
    return replace(procedure, sigma=1e9).prepare(raw)


def changed(prepared, other):
    """Return the figures that would be others; a drawn σ only where it would not be enough."""
    names = {name for name, value in other.figures.items() if value != prepared.figures[name]}
    return names - {"σ"} | ({"σ"} if np.max(other.eta) > prepared.sigma else set())


def test_no_value_however_extreme_moves_the_scaling():
    """A standard deviation would follow it: the dose's from 6 to 70 million."""
    figures = [from_scratch(Procedure(target="response"), patients(v)).figures for v in EXTREMES]
    assert all(found == figures[0] for found in figures[1:])
    # Nor does a label move the unit of the target.
    raw = [moved(patients(), 0, "response", v) for v in EXTREMES]
    units = [
        from_scratch(Procedure(target="response"), t).figures["unit of the target"] for t in raw
    ]
    assert set(units) == {2.0}


def test_a_column_of_mostly_one_value_is_scaled_by_its_deviation():
    values = np.where(np.arange(200) < 5, 3.0, 0.0)
    raw = patients().append_column("rare", pa.array(values))
    found = from_scratch(Procedure(target="response", quantity=["rare"]), raw).figures
    assert found["scaling or levels of 'rare'"].unit == 0.5  # deviation 0.47


@pytest.mark.minutes
def test_declared_figures_disclose_nothing():
    raw = patients().slice(0, 190)
    domain = ["age=0:120", "dose=0:150", "response=-5:10"]
    procedure = Procedure(target="response", sigma=2.0, domain=domain)
    assert find_disclosures(procedure, raw, procedure.prepare(raw)) == ()


def test_whole_numbers_are_replaced_within_their_domain(monkeypatch):
    most = "seepage.auditing.release.disclosure.most_exposed"
    monkeypatch.setattr(most, lambda eta: np.argsort(-eta)[:2])
    count = np.arange(40) % 10
    raw = pa.table({"count": count, "y": count / 2 + np.sin(np.arange(40))})
    domain = ["count=-0.6:9.6", "y=-10:20"]
    procedure = Procedure(target="y", sigma=5.0, target_eta=100.0, domain=domain)
    assert find_disclosures(procedure, raw, procedure.prepare(raw)) == ()


def test_no_noise_is_drawn_if_none_of_the_grid_is_enough():
    trained, block = Procedure(target="response").fit(patients()), np.arange(200) % 10
    assert vote_on_noise(trained, np.ones(200), np.array([1.0, 2.0]), block, 10, 1.0, 3.0) is None
    vote = vote_on_noise(trained, np.ones(200), np.array([1.0, 2.0, 5.0]), block, 10, 1.0, 3.0)
    assert vote.sigma == 5.0


def test_rare_values_are_merged_where_there_is_a_level_for_them_and_dropped_elsewhere():
    age = np.sin(np.arange(60.0))
    job = ["baker"] * 40 + ["smith"] * 17 + ["judge"] * 3
    raw = pa.table({"age": age, "vip": (np.arange(60) < 2).astype(int), "job": job, "y": age**2})
    plan = plan_columns(TableInMemory(raw), "y")
    settled, drop, told = settle_rare_names(raw, plan, 10, "merge")
    assert drop == ("vip",)
    assert told == (
        "1 column was dropped, because some values are shared by fewer than 10 records: 'vip'.",
        "Values shared by fewer than 10 records were merged into '(other)': 'job'.",
    )
    # The smiths join the three judges, who are too few by themselves.
    assert settled.column("job").to_pylist() == ["baker"] * 40 + ["(other)"] * 20
    alone = raw.drop_columns("job")
    alone_plan = plan_columns(TableInMemory(alone), "y")
    assert settle_rare_names(alone, alone_plan, 10, "merge")[2] == told[:1]
    few, _, _ = settle_rare_names(raw, plan, 41, "merge")  # nobody has so many: all join
    assert set(few.column("job").to_pylist()) == {"(other)"}


@pytest.mark.minutes
def test_that_a_declared_noise_is_enough_is_itself_listed():
    """What the domain's ends would need is more than was declared."""
    raw = patients().slice(0, 190)
    procedure = Procedure(target="response", sigma=0.16)
    found = find_disclosures(procedure, raw, procedure.prepare(raw))
    assert {d.figures for d in found} == {("whether anything can be released",)}


@pytest.mark.slow
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
        ratio = np.divide(*(chances(opinions, grid, 1.0) for opinions in (ours, theirs)))
        assert np.max(np.abs(np.log(ratio))) <= 1
    # Whatever the opinions are.
    for _ in range(200):
        ours = rng.lognormal(0, 2, 20)
        theirs = np.where(np.arange(20) == 3, rng.lognormal(0, 4), ours)
        assert np.max(np.abs(scores(ours, grid) - scores(theirs, grid))) <= 1
        ratio = np.divide(*(chances(opinions, grid, 1.0) for opinions in (ours, theirs)))
        assert np.max(np.abs(np.log(ratio))) <= 1
    middle = grid[np.argmax(scores(np.full(20, 0.7), grid))]
    assert middle == grid[grid >= 0.7][0]


def logistic_leakage(X, y, rows, w):
    """Return the leakage of records with their labels at σ = 1, and the fitted numbers."""
    n, d = X.shape
    D, penalty = np.column_stack([X, np.ones(n)]), np.diag([0.01 * n] * d + [0.0])
    for _ in range(20):
        p = 1 / (1 + np.exp(-D @ w))
        H = (D * (p * (1 - p))[:, None]).T @ D + penalty
        w = w - np.linalg.solve(H, D.T @ (p - y) + penalty @ w)
    found = []
    for i in rows:
        moves = p[i] * (1 - p[i]) * np.outer(D[i], w[:-1])
        moves[:-1] += (p[i] - y[i]) * np.eye(d)
        found.append(np.linalg.norm(np.linalg.solve(H, np.column_stack([moves, -D[i]])), 2))
    return np.array(found), w


@pytest.mark.slow
def test_what_the_spread_of_exactly_calibrated_noise_would_tell():
    """Of d numbers with noise σ(D), 2d (∂ log σ)²: as the page on sharp edges says it."""
    raw = demo()
    X = np.column_stack([raw.column(name) for name in raw.column_names[:-1]])
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    y = np.array(raw.column("diagnosis")) == "malignant"
    eta, w = logistic_leakage(X, y.astype(float), range(len(X)), np.zeros(31))
    model = sp.glm.LogisticRegression(l2=0.01, fit_intercept=True).fit(X, y)
    most = sp.leakage(model, X, y, noise=sp.Gaussian(1.0)).records(label=True).top(1)
    row = int(most.labels()[0])
    assert row == np.argmax(eta)
    assert eta[row] == pytest.approx(most[0])
    slopes = []
    for j in range(31):
        logs = []
        for step in (1e-4, -1e-4):
            other, label = X.copy(), y.astype(float)
            if j < 30:
                other[row, j] += step
            else:
                label[row] += step
            logs.append(np.log(logistic_leakage(other, label, [row], w)[0][0]))
        slopes.append((logs[0] - logs[1]) / 2e-4)
    told = np.sqrt(2 * 31) * np.linalg.norm(slopes)
    page = " ".join(PAGE.read_text("utf-8").split())
    assert f"leak η = {told:.2f} about that record" in page
