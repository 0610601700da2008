"""A release of people with several rows: what changes when all rows of one person leave."""

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from panel_refits import panel, rows_of
from release_cases import find_disclosures
from typer.testing import CliRunner

from seepage.auditing.findings import LEFT_OUT
from seepage.auditing.release import error_rates, noise_vote
from seepage.auditing.release.ledger import PastRelease, ReleaseLedger
from seepage.auditing.release.procedure import Procedure
from seepage.cli import app
from seepage.errors import InputError
from seepage.risks.privacy_loss import PrivacyLoss


def prepared(table, **options):
    return Procedure(target="y", person="pid", rare="drop", **options).prepare(table)


def test_the_declared_noise_is_held_to_the_person():
    table = panel(people=120)
    found = prepared(table, sigma=50.0)
    assert len(found.eta) == 120
    assert found.figures["number of people"] == 100
    assert "number of records" not in found.figures
    needed = found.eta.max()
    by_row = Procedure(target="y", drop=("pid",), sigma=50.0).prepare(table).eta
    assert by_row.max() < needed
    with pytest.raises(InputError, match="some person would leak more than the target"):
        prepared(table, sigma=0.99 * float(needed))
    assert prepared(table, sigma=1.01 * float(needed)).sigma == 1.01 * float(needed)


def test_rows_of_a_person_vote_in_one_block():
    """All rows of a person changed move one opinion; without people they would move several."""
    table = panel(people=120)
    procedure = Procedure(target="y", person="pid", rare="drop", sigma=50.0)
    found = procedure.prepare(table)
    blocks = np.random.default_rng(0).integers(0, 12, 120)
    allowed = np.ones(120)
    before = noise_vote.block_opinions(found.trained, allowed, blocks, 12)
    for rows in (rows_of(table)[3], rows_of(table)[10]):  # one has twenty rows
        records = found.trained.records
        X, y = records.X.copy(), records.y.copy()
        X[rows], y[rows] = 3.0, 9.0
        changed = type(records)(X, records.names, y, None, records.beside)
        other = replace(found.trained, table=replace(found.trained.table, source=changed))
        after = noise_vote.block_opinions(other, allowed, blocks, 12)
        assert np.sum(before != after) == 1


def test_the_vote_draws_a_block_for_every_person(monkeypatch):
    table = panel(people=300)
    drawn = []

    def watched(trained, allowed, block, blocks):
        drawn.append((len(allowed), len(block)))
        return np.full(blocks, 0.01)

    monkeypatch.setattr(noise_vote, "block_opinions", watched)
    prepared(table)
    assert drawn == [(300, 300)]


def test_shares_of_wrong_predictions_move_by_one_person():
    rng = np.random.default_rng(5)
    owner = np.repeat(np.arange(30), rng.integers(1, 30, 30))
    truth = np.round(rng.normal(size=len(owner)) * 3) / 2

    def share(keep, unit):
        weight = 1 / np.bincount(owner[keep])[owner[keep]]
        return error_rates.wrong_constant(truth[keep], unit, weight / weight.sum())

    for unit in (None, 0.5, 2.0):
        everybody = share(np.ones(len(owner), dtype=bool), unit)
        moves = [abs(share(owner != p, unit) - everybody) for p in range(30)]
        assert max(moves) <= 1 / 29 + 1e-12


def test_a_value_of_one_person_has_one_holder():
    table = panel(people=60)
    jobs = np.where(table["pid"].to_numpy() == 1021, "astronaut", "clerk")
    assert np.sum(jobs == "astronaut") == 20  # rows, of a single person
    table = table.append_column("job", pa.array(jobs))
    by_row = Procedure(target="y", drop=("pid",), sigma=50.0)
    assert "job" in [part.name for part in by_row.fit(table).table.coding.parts]
    by_person = Procedure(target="y", person="pid", sigma=50.0)
    with pytest.raises(InputError, match=r"1 value of 'job' .* 1 of a single person"):
        by_person.fit(table)
    merged = Procedure(target="y", person="pid", sigma=50.0, rare="merge", least_holders=5)
    three = np.where(jobs == "clerk", np.where(table["dose"].to_numpy() > 0, "a", "b"), jobs)
    table = table.set_column(5, "job", pa.array(three))
    (job,) = (p for p in merged.fit(table).table.coding.parts if p.name == "job")
    assert len(job.levels) == 2  # the astronaut is merged with all who are "a" or "b"


def test_figures_that_follow_a_person_are_found_by_leaving_out_all_their_rows():
    """A number of people at the edge of its grid changes when one of them leaves."""
    table = panel(people=100)
    procedure = Procedure(target="y", person="pid", rare="drop", sigma=50.0)
    found = procedure.prepare(table)
    assert found.figures["number of people"] == 100
    disclosed = find_disclosures(procedure, table, found)
    absent = {d.row: d.figures for d in disclosed if d.change == LEFT_OUT}
    firsts = {int(rows[0]) for rows in rows_of(table)}
    assert absent
    assert set(absent) <= firsts
    assert all("number of people" in figures for figures in absent.values())


@pytest.fixture
def release(tmp_path):
    def run(table, *options):
        pq.write_table(table, tmp_path / "panel.parquet")
        limits = ("--max-membership", "1", "--max-guess-gain", "1", "--max-guess-tpr", "1")
        places = ("--out", "out", "--report", "report", "--ledger", "ledger")
        file = str(tmp_path / "panel.parquet")
        arguments = ["release", file, "--target", "y", *limits, *options]
        for name, folder in zip(places[::2], places[1::2], strict=True):
            arguments += [name, str(tmp_path / folder)]
        return CliRunner().invoke(app, arguments)

    run.folder = tmp_path
    return run


@pytest.mark.parametrize("option", ["--person", "--identity"])
def test_the_ledger_keeps_what_was_told_about_a_person(release, option):
    table = panel(people=60)
    result = release(table, option, "pid", "--sigma", "50", "--rare", "drop", "--json")
    assert result.exit_code == 0, result.output
    summary = json.loads(result.stdout)
    assert summary["unit"] == "person"
    assert {item["name"] for item in summary["items"]} >= {"number of people"}
    ledger = ReleaseLedger.read(release.folder / "ledger")
    (past,) = ledger.releases
    assert past.of_people
    found = prepared(table, sigma=50.0)
    told = np.zeros(table.num_rows)
    for rows, eta in zip(rows_of(table), found.eta, strict=True):
        told[rows] = eta / 50
    np.testing.assert_allclose(past.loss.eta, told, rtol=1e-9)
    # The next release, of half of everybody's rows with other values, knows them all.
    half = np.sort(np.concatenate([rows[: max(1, len(rows) // 2)] for rows in rows_of(table)]))
    other = table.take(pa.array(half))
    other = other.set_column(2, "dose", pa.array(np.random.default_rng(1).normal(size=len(half))))
    spent = ledger.recognise(other, "pid").spent
    np.testing.assert_allclose(spent, told[half] ** 2, rtol=1e-9)
    card = (release.folder / "out" / "model-card.md").read_text("utf-8")
    assert "fitted to 50 people or more" in card
    assert "of all their records together" in card


def test_releases_of_single_rows_count_at_least_as_much_for_their_person():
    """What a release by row told about a person is bounded by the sum over their rows."""
    table = panel(people=60)
    trained = Procedure(target="y", drop=("pid",), sigma=50.0).prepare(table)
    ledger = ReleaseLedger()
    people = ledger.digests.people(table)
    past = PastRelease({}, PrivacyLoss.of(len(people), eta=trained.eta / 50), people)
    known = ReleaseLedger(ledger.key, (past,)).recognise(table, "pid")
    truth = prepared(table, sigma=50.0).eta / 50
    for rows, eta in zip(rows_of(table), truth, strict=True):
        assert np.ptp(known.spent[rows]) == 0
        assert known.spent[rows[0]] == pytest.approx(np.sum((trained.eta[rows] / 50) ** 2))
        assert known.spent[rows[0]] >= eta**2 * (1 - 1e-9)
    # By identity, rows that are no longer in the table count too.
    named = PastRelease({}, past.loss, ledger.digests.people(table, "pid"))
    first = table.take(pa.array([rows[0] for rows in rows_of(table)]))
    known = ReleaseLedger(ledger.key, (named,)).recognise(first, "pid")
    sums = [np.sum((trained.eta[rows] / 50) ** 2) for rows in rows_of(table)]
    np.testing.assert_allclose(known.spent, sums)


def test_the_audit_of_a_release_is_by_person(release):
    table = panel(people=60)
    result = release(table, "--person", "pid", "--sigma", "50", "--rare", "drop")
    assert result.exit_code == 0, result.output
    summary = json.loads((release.folder / "report" / "summary.json").read_text())
    assert summary["unit"] == "person"
    assert summary["records"]["people"] == 60
    assert summary["disclosures"]["unit"] == "person"
    assert summary["ledger"]["unit"] == "person"


def test_missing_identities_are_refused(release):
    table = panel(people=60)
    who = table["pid"].to_pylist()
    who[4] = who[9] = None
    gappy = table.set_column(4, "pid", pa.array(who))
    result = release(gappy, "--person", "pid", "--sigma", "50")
    assert result.exit_code == 2
    assert "2 rows have no value in 'pid'" in result.stderr
    assert "first in row 4" in result.stderr
