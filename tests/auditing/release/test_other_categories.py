"""ε and δ of a replaced category: stated in the ledger, counted in guesses, held by the attack."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from seepage.auditing.release.attack import attack_release, listing_of
from seepage.auditing.release.disclosure import NeighbouringTables
from seepage.auditing.release.noise_vote import Seats
from seepage.auditing.release.procedure import Procedure
from seepage.auditing.report.audit_report import AuditReport
from seepage.cli import app

CHANGE = "with another category"
DOMAIN = ["age=0:120", "dose=0:150"]
PROCEDURE = Procedure(target="response", domain=DOMAIN)


def wards(count=230, moved=()):
    """Return patients whose response is larger by 5 in one ward; some are moved to the other."""
    rng = np.random.default_rng(0)
    age, dose = rng.normal(60, 12, count), rng.normal(30, 6, count)
    response = 0.04 * dose + 0.01 * age + rng.normal(0, 0.5, count)
    dose[0], response[0] = 60.0, 1.0
    east = (np.arange(count) > 0) & (np.arange(count) <= 60)
    response[east] += 5.0
    east[list(moved)] = ~east[list(moved)]
    ward = np.where(east, "east", "west")
    return pa.table({"age": age, "dose": dose, "ward": ward, "response": response})


def ruled_out(raw, other, seed):
    """Return how often the σ of a table is below what another one needs, over all of its draws."""
    ours, theirs = (PROCEDURE.prepare(t, Seats.of(t, None, seed)) for t in (raw, other))
    vote = ours.vote
    enough = np.where(vote.grid >= np.max(ours.needed), vote.chance, 0.0)
    return float(enough[vote.grid < np.max(theirs.needed)].sum() / enough.sum())


@pytest.fixture
def few_changed(monkeypatch):
    """Change the three most exposed records only."""
    monkeypatch.setattr("seepage.auditing.neighbours.CHECKED", 3)


@pytest.mark.usefixtures("few_changed")
def test_the_ledger_and_the_limits_count_a_ward_that_needs_more_noise(tmp_path, monkeypatch):
    """In the other ward the patient with the large dose would need a larger σ."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SEEPAGE_LEDGER", raising=False)
    monkeypatch.setattr(AuditReport, "write", lambda report, out, keep=(): Path(out))
    raw = wards()
    pq.write_table(raw, "p.parquet")
    options = ["p.parquet", "--target=response", *(f"--domain={ends}" for ends in DOMAIN)]
    rest = ["--max-membership=1", "--json"]
    strict = ["--max-guess-tpr=0.9", "--max-guess-gain=0.2"]
    told = CliRunner().invoke(app, ["release", *options, *rest, *strict])
    assert told.exit_code == 1, told.output
    rate, gain = (
        next(g for g in json.loads(told.stdout)["gates"] if g["name"] == f"--max-guess-{name}")
        for name in ("tpr", "gain")
    )
    assert (gain["where"], gain["passed"], rate["passed"]) == ("ward", False, False)
    assert "--domain" not in rate["text"]
    open_limits = ["--max-guess-tpr=1", "--max-guess-gain=1"]
    told = CliRunner().invoke(app, ["release", *options, *rest, *open_limits])
    assert told.exit_code == 0, told.output
    (entry,) = json.loads(Path("seepage-ledger.json").read_text("utf-8"))["releases"]
    delta = ruled_out(raw, wards(moved=[0]), int(entry["seats"], 16))
    assert delta > 0.5
    assert entry["replaced"][CHANGE]["delta"] >= delta - 1e-9
    # Guesses over several releases count it: as δ, or as certain where this σ rules the ward out.
    guesses = entry["guesses"]
    assert guesses["distance"]["ward"] is None or guesses["delta"] >= delta - 1e-9
    # Nobody's presence is revealed by it.
    risks = json.loads(told.stdout)["risks"]
    assert risks["delta"] < 0.1
    assert risks["membership"] < 0.75


@pytest.mark.minutes
@pytest.mark.usefixtures("few_changed")
def test_an_entry_without_the_delta_of_another_category_is_caught():
    raw = wards()
    listed = listing_of(PROCEDURE, raw)
    (entry,) = listed.entries
    kinder = {**entry.about["replaced"], CHANGE: {"epsilon": 0.4, "delta": 0.0}}
    forged = replace(entry, about={**entry.about, "replaced": kinder})
    for entries, beaten in ((listed, False), (replace(listed, entries=(forged,)), True)):
        found = attack_release(PROCEDURE, raw, releases=200, row=0, listed=entries)
        (other,) = [a for a in found if a.change == CHANGE]
        assert not other.disclosed
        assert (other.seen_at_least(1 - 1e-4) > other.stated) == beaten
        assert other.exceeds(1 - 1e-4) == beaten


def jobs(count=160):
    """Return people with two categories, one of several levels and one of two."""
    rng = np.random.default_rng(5)
    age = rng.normal(50, 12, count)
    job, member = rng.integers(0, 5, count), rng.random(count) < 0.3
    pay = 0.1 * age + np.array([0.0, 2.0, -3.0, 5.0, 1.0])[job] + member + rng.normal(0, 1, count)
    job = np.array(["baker", "nurse", "smith", "judge", "clerk"])[job]
    return pa.table({"age": age, "job": job, "member": member, "pay": pay})


@pytest.mark.parametrize("stored", ["text", "dictionary", "numbers"])
def test_the_levels_that_need_the_most_and_the_least_noise_are_tried(stored):
    """By refits of every level; the ranking before them only chooses."""
    raw, categorical = jobs(), []
    if stored != "text":
        column = raw.column("job").combine_chunks().dictionary_encode()
        column = column if stored == "dictionary" else column.indices
        raw = raw.set_column(1, "job", column)
        categorical = ["job"] if stored == "numbers" else []
    procedure = Procedure(target="pay", sigma=1e3, target_eta=1e3, categorical=categorical)
    prepared = procedure.prepare(raw)
    tables = NeighbouringTables(procedure, raw, prepared)
    for row in np.argsort(-prepared.eta)[:5].tolist():
        chosen = tables.other_levels(np.array([row]))
        assert len(chosen) == 3
        cells = {name: raw.column(name)[row].as_py() for name in ("job", "member")}
        needed = {}
        for name, own in cells.items():
            for value in set(raw.column(name).to_pylist()) - {own}:
                cell = raw.column(name).to_pylist()
                cell[row] = value
                place = raw.column_names.index(name)
                other = raw.set_column(place, name, pa.array(cell, raw.column(name).type))
                eta = procedure.prepare(other).eta
                needed[name, value] = eta[row]
        assert len(needed) == 5
        ranked = sorted(needed, key=lambda key: -needed[key])
        assert {ranked[0], ranked[-1]} <= set(chosen)
        changed = [t for t in tables.of(np.array([row])) if t.change == CHANGE]
        assert [t.column for t in changed] == [name for name, _ in chosen]
        for table, (name, value) in zip(changed, chosen, strict=True):
            assert table.table.column(name)[row].as_py() == value
            same = [n for n in raw.column_names if n != name]
            assert table.table.select(same).equals(raw.select(same))


def test_a_level_that_hardly_enough_have_is_left_and_a_person_changes_in_all_rows():
    rng = np.random.default_rng(2)
    who, dose = np.repeat(np.arange(60), 2), rng.normal(30, 6, 120)
    ward = np.where(np.arange(60) < 10, "east", np.where(np.arange(60) < 40, "west", "south"))
    raw = pa.table({"who": who, "dose": dose, "ward": ward[who], "y": dose + rng.normal(size=120)})
    procedure = Procedure(target="y", sigma=1e3, target_eta=1e3, person="who")
    prepared = procedure.prepare(raw)
    tables = NeighbouringTables(procedure, raw, prepared)
    rows = np.array([0, 1])
    assert {name for name, _ in tables.other_levels(rows)} == {"ward"}
    moved = [t.table.column("ward").to_pylist() for t in tables.of(rows) if t.change == CHANGE]
    assert {tuple(cells[:2]) for cells in moved} == {("west", "west"), ("south", "south")}
    assert all(cells[2:] == ward[who][2:].tolist() for cells in moved)
