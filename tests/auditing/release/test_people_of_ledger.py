"""Who is who in the ledger: by trying all pairs, and over ten releases of one table."""

from __future__ import annotations

import datetime as dt
import json
import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import seepage as sp
from seepage.auditing.release.ledger import PastRelease, ReleaseLedger
from seepage.auditing.report.audit_report import AuditReport
from seepage.cli import app
from seepage.errors import InputError
from seepage.risks.privacy_loss import PrivacyLoss


def panel(rng, rows: int, people: int) -> dict[str, list]:
    """Return rows with few values, so that many are equal, of people with two kinds of numbers."""
    who = rng.integers(0, people, rows)
    return {
        "id": who.tolist(),
        "other id": (who // 2 + 100 * rng.integers(0, 2, rows)).tolist(),
        "a": rng.integers(0, 3, rows).tolist(),
        "b": rng.integers(0, 2, rows).tolist(),
    }


def by_hand(earlier, eta, identity, of_people, later, person, names):
    """Return η² of every later row by trying all pairs.

    A row has the largest of the earlier ones that agree. A person has everybody who agrees with one
    of their rows, each once; by columns that identify nobody, each row is the most exposed of them.
    """
    shared = [n for n in names if n in earlier and n in later]
    deciding = [[n] for n in dict.fromkeys((identity, person)) if n in shared]
    count, past = len(later["a"]), range(len(eta))
    told = [0.0] * count

    def same(j, row, by):
        return all(earlier[n][j] == later[n][row] for n in by)

    for by in deciding or [shared]:
        for row in range(count):
            if person is None:
                found = [eta[j] ** 2 for j in past if same(j, row, by)]
                told[row] = max([told[row], *found])
                continue
            mine = [r for r in range(count) if later[person][r] == later[person][row]]
            units = {}
            for r in mine:
                agree = [j for j in past if same(j, r, by)]
                if not deciding and of_people and agree:
                    agree = [max(agree, key=lambda j: (eta[j], -j))]
                for j in agree:
                    units[earlier[identity][j] if of_people else j] = eta[j] ** 2
            told[row] = max(told[row], math.fsum(units.values()))
    return told


CASES = [
    (identity, of_people, person, dropped)
    for identity, of_people in ((None, False), ("id", False), ("id", True), ("other id", True))
    for person in (None, "id", "other id")
    for dropped in ((), ("id",), ("other id",), ("id", "other id"))
    if person not in dropped
]


@pytest.mark.parametrize(("identity", "of_people", "person", "dropped"), CASES)
def test_recognition_is_what_trying_all_pairs_gives(identity, of_people, person, dropped):
    for seed in range(3):
        rng = np.random.default_rng(seed)
        earlier, later = panel(rng, 14, 6), panel(rng, 12, 7)
        later = {name: values for name, values in later.items() if name not in dropped}
        eta = rng.uniform(0.1, 0.9, 14)
        if of_people:  # all rows of a person have one number
            eta = np.array([eta[earlier[identity].index(who)] for who in earlier[identity]])
        ledger = ReleaseLedger()
        people = ledger.digests.people(pa.table(earlier), identity)
        about = {"unit": "person" if of_people else "row"}
        past = PastRelease(about, PrivacyLoss.of(14, eta=eta), people)
        ledger = ReleaseLedger(ledger.key, (past,))
        found = ledger.recognise(pa.table(later), person)
        given = (earlier, eta.tolist(), identity, of_people, later, person)
        truth = np.array(by_hand(*given, ["id", "other id", "a", "b"]))
        match = past.people.earlier_loss(past.loss, found.people, of_people=of_people)
        if match is None:  # nobody can be told apart: then nobody is known
            assert found.spent.max() == 0
            continue
        sure = ~match.doubtful
        np.testing.assert_allclose(found.spent[sure], truth[sure], rtol=1e-12, atol=1e-15)
        assert not np.any(found.spent < truth - 1e-12)


def test_two_equal_rows_that_may_be_one_persons_count_together():
    """Deduplicated, a person has one row; the release of then was about two equal ones."""
    twice = pa.table({"name": ["Ada", "Ada", "Ben"], "age": [36, 36, 45]})
    ledger = ReleaseLedger()
    loss = PrivacyLoss.of(3, eta=[0.3, 0.4, 0.5], epsilon=0.2)
    past = PastRelease({}, loss, ledger.digests.people(twice))
    once = pa.table({"name": ["Ada", "Ben"], "age": [36, 45], "id": [1, 2]})
    found = ReleaseLedger(ledger.key, (past,)).recognise(once, "id").loss
    np.testing.assert_allclose(found.eta, [0.5, 0.5])
    np.testing.assert_allclose(found.epsilon, [0.4, 0.2])
    # Of rows, nobody knows which of the two it is: the more exposed.
    found = ReleaseLedger(ledger.key, (past,)).recognise(once).loss
    np.testing.assert_allclose(found.eta, [0.4, 0.5])


def test_all_but_one_column_is_enough_to_be_in_doubt():
    rng = np.random.default_rng(0)
    values = {"x": rng.normal(size=30), "y": rng.normal(size=30), "z": rng.normal(size=30)}
    names = [f"person {k}" for k in range(30)]
    gaps = [None if k == 4 else v for k, v in enumerate(values["z"].tolist())]
    ledger = ReleaseLedger()
    first = pa.table({**values, "z": gaps, "name": names})
    past = PastRelease(
        {}, PrivacyLoss.of(30, eta=np.linspace(0.1, 0.9, 30)), ledger.digests.people(first)
    )
    ledger = ReleaseLedger(ledger.key, (past,))
    corrected = {**values, "x": values["x"].copy()}
    corrected["x"][7] += 1  # a value was corrected, and the gap of another filled
    names[9] = "PERSON\u00a09"  # written otherwise
    names[20], corrected["y"][20] = "somebody else", 5.0  # two columns: another person
    found = ledger.recognise(pa.table({**corrected, "name": names}))
    assert np.flatnonzero(~found.known).tolist() == [20]
    np.testing.assert_allclose(np.delete(found.loss.eta, 20), np.delete(past.loss.eta, 20))
    (doubt,) = found.doubts
    assert doubt.startswith("2 of these 30 records agree with a record of an earlier release")
    # Where the rest tells nobody apart, that says nothing.
    few = pa.table({"sex": [0, 1] * 15, "ward": [0, 0, 1] * 10})
    past = PastRelease({}, PrivacyLoss.of(30, eta=0.5), ledger.digests.people(few))
    other = pa.table({"sex": [0, 1], "ward": [5, 6]})
    assert not ReleaseLedger(ledger.key, (past,)).recognise(other).known.any()


class Growing:
    """A table of a clinic that grows, and changes its columns and its files."""

    def __init__(self) -> None:
        self.rng, self.who = np.random.default_rng(1), []
        self.more(37)

    def more(self, count: int) -> None:
        for _ in range(count):
            age, dose = int(self.rng.integers(20, 90)), int(self.rng.integers(10, 600))
            day = dt.date(2020, 1, 1) + dt.timedelta(days=int(self.rng.integers(0, 900)))
            known = {"name": f"Zoë Núñez {len(self.who)}", "seen": day, "smokes": bool(age % 2)}
            response = int(0.04 * dose + 0.3 * age + self.rng.normal(0, 5))
            weight = round(float(self.rng.normal(75, 12)), 2)
            self.who.append({**known, "age": age, "dose": dose, "w": weight, "y": response})

    def table(self) -> pa.Table:
        return pa.Table.from_pylist(self.who)


def as_float32(table: pa.Table) -> pa.Table:
    fields = {"age": pa.float32(), "dose": pa.float32(), "w": pa.float32(), "y": pa.float32()}
    for name in set(fields) & set(table.column_names):
        place = table.column_names.index(name)
        table = table.set_column(place, name, table[name].cast(fields[name], safe=False))
    return table


def as_text(table: pa.Table) -> pa.Table:
    """Return the table with names in capitals, decomposed, and truth values as numbers."""
    import unicodedata

    names = [unicodedata.normalize("NFD", n.upper()) + " " for n in table["name"].to_pylist()]
    table = table.set_column(table.column_names.index("name"), "name", pa.array(names))
    truth = table["smokes"].cast(pa.int8())
    return table.set_column(table.column_names.index("smokes"), "smokes", truth)


@pytest.mark.minutes
def test_everybody_is_recognised_over_ten_releases_of_one_growing_table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(AuditReport, "write", lambda report, out, keep=(): Path(out))
    clinic, told, counts = Growing(), np.zeros(0), []

    def release(table: pa.Table, kind: str) -> np.ndarray:
        file = f"table.{kind}"
        (pa_csv.write_csv if kind == "csv" else pq.write_table)(table, file)
        allowed = ("--max-membership=1", "--max-guess-gain=1", "--max-guess-tpr=1")
        left_out = [f"--drop={n}" for n in ("name", "seen") if n in table.column_names]
        command = ["release", file, "--target=y", "--sigma=30", *allowed, *left_out, "--json"]
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 0, result.output
        assert result.stderr == "", result.stderr
        counts.append(json.loads(result.stdout)["ledger"]["known"])
        return np.array(json.loads(Path("seepage-ledger.json").read_text())["releases"][-1]["eta"])

    half = dict(clinic.who[0], age=45.5, dose=100.5, w=70.123, y=20.5, name="Half", smokes=True)
    changes = [
        (0, lambda t: t, "csv"),
        (3, lambda t: t, "csv"),
        (2, lambda t: t, "csv"),
        (1, as_float32, "parquet"),  # ints as floats, in single precision
        (4, lambda t: t.append_column("clinic", [(["north", "south"] * 50)[: len(t)]]), "csv"),
        (0, lambda t: t.select(t.column_names[::-1]), "csv"),
        (2, as_text, "csv"),
        (1, lambda t: t.drop_columns(["smokes"]), "parquet"),
        (3, lambda t: as_float32(t.drop_columns(["name"])), "parquet"),
        (0, lambda t: t.take(np.arange(len(t))[::-1]), "csv"),
    ]
    for number, (new, change, kind) in enumerate(changes):
        clinic.more(new)
        if number == 2:  # one row with decimals: from now on all numbers are written as floats
            clinic.who = [
                {k: float(v) if k in ("age", "dose", "y") else v for k, v in row.items()}
                for row in clinic.who
            ]
            clinic.who.append(half)
        table = change(clinic.table())
        eta = release(table, kind)
        assert counts[-1] == len(told), f"release {number + 1}"
        if number == 9:
            eta = eta[::-1]
        told = np.concatenate([told, np.zeros(len(eta) - len(told))]) + eta**2
    # Everybody has spent what their own rows were told, release by release.
    spent = sp.LedgerFile().spent(clinic.table()).eta
    np.testing.assert_allclose(spent, np.sqrt(told), rtol=1e-9)
    pq.write_table(clinic.table(), "now.parquet")
    shown = CliRunner().invoke(app, ["ledger", "show", "now.parquet", "--people", "who.parquet"])
    assert shown.exit_code == 0, shown.output
    rows = len(clinic.who)
    assert f"{rows} of the {rows} rows of now.parquet are in the ledger." in shown.stdout
    numbers = pq.read_table("who.parquet")
    np.testing.assert_allclose(numbers["eta_left"], np.sqrt(1 - told), rtol=1e-9)
    assert Path("who.parquet").stat().st_mode & 0o777 == 0o600


def test_another_one_is_not_recognised_by_chance():
    clinic = Growing()
    ledger = ReleaseLedger()
    past = PastRelease({}, PrivacyLoss.of(37, eta=0.5), ledger.digests.people(clinic.table()))
    clinic.who.clear()
    clinic.rng = np.random.default_rng(2)
    clinic.more(60)
    found = ReleaseLedger(ledger.key, (past,)).recognise(clinic.table().drop_columns(["name"]))
    assert not found.known.any()
    with pytest.raises(InputError, match=r"one per row \(37 in all"):
        PrivacyLoss.of(37, eta=[0.1] * 36)


@pytest.mark.parametrize("person", [None, "Name"])
def test_case_and_white_space_of_a_column_do_not_count(tmp_path, person):
    ledger = sp.LedgerFile(tmp_path / "ledger")
    first = {"name": ["Ada", "Ben", "Cy"], "Age": [36, 45, 52]}
    ledger.record(first, "answers", epsilon=0.5, person=person and "name")
    again = {"AGE ": [52, 36, 61], "Name": ["Cy", "Ada", "Eve"]}
    assert ledger.spent(again, person).epsilon.tolist() == [0.5, 0.5, 0.0]
    # Two columns are never taken for one: these are known by their names alone.
    both = {**again, "age": [1, 2, 3]}
    assert ledger.spent(both, person).epsilon.tolist() == [0.5, 0.5, 0.0]
