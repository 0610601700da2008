"""The ledger knows a person by value, whatever the file, and says so where it knows nobody."""

from __future__ import annotations

import datetime as dt
import hashlib
import hmac
import json
import shutil
from decimal import Decimal
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import seepage as sp
from seepage.auditing.release.ledger import ReleaseLedger
from seepage.auditing.release.procedure import Procedure
from seepage.cli import app
from seepage.errors import InputError

ROWS = 100
ONE_MORE = "45.5,215.5,70.5,0.5,20.5"  # the decimals make every column of a CSV file floats


def patients(rows: int = ROWS, seed: int = 0) -> pa.Table:
    """Return patients whose numbers are all whole, as a CSV file has them."""
    rng = np.random.default_rng(seed)
    age, dose = rng.integers(20, 90, rows), 10 * rng.integers(10, 60, rows)
    weight, sex = rng.integers(45, 120, rows), rng.integers(0, 2, rows)
    response = np.rint(0.04 * dose + 0.3 * age + 2 * sex + rng.normal(0, 5, rows)).astype(int)
    return pa.table({"age": age, "dose": dose, "weight": weight, "sex": sex, "response": response})


def fractions() -> pa.Table:
    """Return the same patients with numbers of many digits."""
    table = patients()
    rng = np.random.default_rng(5)
    for j, name in enumerate(["age", "dose", "weight"]):
        values = table[name].to_numpy() * (1 + 0.01 * rng.random(ROWS))
        table = table.set_column(j, name, pa.array(values))
    return table


def release(folder: Path, table: pa.Table | str, *options: str):
    """Release a table from a file by the command line, with the noise declared."""
    if isinstance(table, str):
        file = folder / "table.csv"
        file.write_text(table)
    else:
        file = folder / "table.parquet"
        pq.write_table(table, file)
    where = [f"--{name}={folder / name}" for name in ("out", "report", "ledger")]
    # A hundred rows are at the edge of the grid: without one the published number would be another,
    # and so would the scaling of columns with other numbers.
    allowed = ("--max-membership", "1", "--max-guess-tpr", "1")
    given = ["release", str(file), "--target", "response", "--sigma", "1.2", *where, *allowed]
    return CliRunner().invoke(app, [*given, *options])


@pytest.fixture
def run(tmp_path):
    return partial(release, tmp_path)


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    """A folder with the ledger of one release of the patients with fractions."""
    folder = tmp_path_factory.mktemp("once")
    assert release(folder, fractions()).exit_code == 0
    return folder


def csv_of(table: pa.Table) -> str:
    sink = pa.BufferOutputStream()
    pa_csv.write_csv(table, sink)
    return sink.getvalue().to_pybytes().decode()


def recognised(folder: Path, table: pa.Table, **options) -> int:
    """Return how many records of a table the ledger knows."""
    ledger = ReleaseLedger.read(folder / "ledger")
    procedure = Procedure(target="response", target_eta=1e6, sigma=100.0, ledger=ledger, **options)
    return int(np.sum(procedure.prepare(table).spent > 0))


def test_one_more_row_with_decimals_does_not_make_a_hundred_people_strangers(run, tmp_path):
    first = csv_of(patients())
    longer = f"{first}{ONE_MORE}\n"
    assert run(first).exit_code == 0
    alone = max(
        json.loads((tmp_path / "report" / "summary.json").read_text())["records"]["eta"].values()
    )
    assert 0.8 < alone < 1  # nearly all of η = 1 is spent
    again = run(first)
    assert again.exit_code == 2
    told = "some record would leak more than the target of η = 1 over this and all earlier releases"
    assert told in again.stderr
    # 45 has become 45.0; accepted as at first, both together would tell √2 times as much.
    more = run(longer)
    assert more.exit_code == 2, more.output
    assert "some record would leak more than the target of η = 1" in more.stderr
    table = pa_csv.read_csv(tmp_path / "table.csv")
    assert table.schema.field("age").type == pa.float64()
    assert recognised(tmp_path, table) == ROWS
    # With noise enough for what is left, both releases together keep the promise.
    enough = run(longer, "--sigma", "10")
    assert enough.exit_code == 0, enough.output
    assert f"{ROWS} records were in earlier releases recorded in the ledger" in enough.stdout
    told = json.loads((tmp_path / "ledger").read_text())["releases"]
    both = [np.array(release["eta"][:ROWS]) for release in told]
    together = float(np.max(np.sqrt(sum(eta**2 for eta in both))))
    assert alone < together <= 1
    assert f"the η of each record is at most {together:.4g}" in enough.stdout


def single(table: pa.Table) -> pa.Table:
    return table.cast(pa.schema([(name, pa.float32()) for name in table.column_names]))


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda t: t, id="the same"),
        pytest.param(single, id="single precision"),
        pytest.param(lambda t: t.select(t.column_names[::-1]), id="columns reordered"),
        pytest.param(lambda t: t.append_column("clinic", [["A", "B"] * 50]), id="one column more"),
        pytest.param(lambda t: t.drop_columns(["age"]), id="one column fewer"),
        pytest.param(lambda t: t.select(["dose", "response"]), id="three columns fewer"),
        pytest.param(
            lambda t: t.drop_columns(["age", "sex"]).append_column("clinic", [["A", "B"] * 50]),
            id="some fewer, one more",
        ),
        pytest.param(lambda t: t.take(list(range(ROWS))[::-1]), id="rows reordered"),
        pytest.param(
            lambda t: t.set_column(0, "age", t["age"].cast(pa.string())),
            id="numbers as text",
        ),
    ],
)
def test_everybody_is_recognised_by_value(once, change):
    table = change(fractions())
    text = [n for n in table.column_names if pa.types.is_string(table.schema.field(n).type)]
    assert recognised(once, table, drop=text) == ROWS


def test_a_column_in_common_that_tells_nobody_apart_spends_nobodys_budget(run):
    assert run(patients()).exit_code == 0
    height = np.random.default_rng(9).normal(170, 9, ROWS)
    other = pa.table({"sex": patients()["sex"], "height": height, "score": height + height[::-1]})
    doubtful = run(other, "--target", "score", "--sigma", "9")
    assert doubtful.exit_code == 0, doubtful.output
    assert "warning: 1 earlier release shares only 'sex' with this table" in doubtful.stderr
    assert "counts as new" in doubtful.stderr
    assert "--person" in doubtful.stderr
    assert "in earlier releases recorded in the ledger" not in doubtful.stdout


def test_a_table_in_which_nobody_is_recognised_is_warned_of_first(run, tmp_path):
    assert run(fractions()).exit_code == 0
    # Somebody rounded the columns: by value, nobody is who they were.
    rounded = pa.table(
        {
            name: np.round(fractions()[name].to_numpy() * 0.999, 1)
            for name in fractions().column_names
        }
    )
    result = run(rounded)
    assert result.exit_code == 0, result.output
    assert result.stderr.startswith(
        "warning: None of these 100 records is recognised among the 100 records of earlier "
        "releases in the ledger, although the columns are the same. Therefore their privacy "
        "budget counts as unspent."
    )
    assert "--person" in result.stderr
    steps = json.loads((tmp_path / "report" / "summary.json").read_text())["steps"]
    assert any("None of these 100 records is recognised" in step for step in steps)
    from seepage.auditing.release.ledger import UnrecognisedRecordsWarning

    ledger = ReleaseLedger.read(tmp_path / "ledger")
    strangers = Procedure(target="response", sigma=100.0, target_eta=1e6, ledger=ledger)
    with pytest.warns(UnrecognisedRecordsWarning, match="None of these 100 records is recognised"):
        strangers.prepare(patients(seed=3))
    foreign = patients().rename_columns(["a", "b", "c", "d", "e"])
    with pytest.warns(UnrecognisedRecordsWarning, match="no column in common"):
        Procedure(target="e", sigma=100.0, ledger=ledger).prepare(foreign)
    # One who is known is enough to say that values are compared rightly.
    mixed = pa.concat_tables([patients(seed=3).cast(fractions().schema), fractions().slice(0, 1)])
    assert recognised(tmp_path, mixed) == 1


def test_the_column_that_identifies_people_holds_by_value_too(run, tmp_path):
    numbers = 123_456_000 + np.arange(ROWS)  # single precision would have 8 of them in one
    first = fractions().append_column("number", pa.array(numbers))
    assert run(first, "--identity", "number").exit_code == 0
    older = patients(seed=4)  # everything else has changed
    for kind in (pa.float64(), pa.string(), pa.int32()):
        table = older.append_column("number", pa.array(numbers).cast(kind))
        assert recognised(tmp_path, table, person="number") == ROWS
    half = older.append_column("number", pa.array(np.where(np.arange(ROWS) < 50, numbers, 7)))
    assert recognised(tmp_path, half, person="number") == 50
    # The release of then names the column, so it decides although this one does not name it.
    kept = older.append_column("number", pa.array(numbers))
    assert recognised(tmp_path, kept, drop=["number"]) == ROWS
    strangers = older.append_column("number", pa.array(numbers + 3))
    assert recognised(tmp_path, strangers, person="number") == ROWS - 3
    # Without that column everybody is known by the others.
    assert recognised(tmp_path, fractions()) == ROWS
    with pytest.raises(InputError, match="no column 'id' to identify people"):
        recognised(tmp_path, older, person="id")


def test_values_are_one_value_however_they_are_written():
    from seepage.auditing.release.recognition import canonical

    same = [
        (45, 45.0, np.float32(45), np.int8(45), "45", " 45.0", "4.5e1", Decimal("45.00")),
        (0.1, np.float32(0.1), float(np.float32(0.1)), "0.1", Decimal("0.1")),
        (0, -0.0, False, "false", "0"),
        (True, 1, "TRUE"),
        (None, float("nan"), "", "NA"),
        (
            dt.date(2020, 3, 1),
            dt.datetime(2020, 3, 1),
            "2020-03-01",
            "2020-03-01 00:00:00",
            dt.datetime(2020, 3, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=1))),
        ),
        ("caf\u00e9", " cafe\u0301 "),
        (123456789, "123456789", 123456789.0),
        (10**400, str(10**400)),
        ("2020-13-45",),
    ]
    forms = [{canonical(value) for value in values} for values in same]
    assert [len(form) for form in forms] == [1] * len(same)
    assert len(set.union(*forms)) == len(same)
    # Single precision holds one of eight neighbours there; it is compared as it holds them.
    near, exact = canonical(123456789)
    assert canonical(np.float32(123456789))[0] == near == canonical(123456790)[0]
    assert canonical(123456790)[1] != exact


def as_earlier_version(table: pa.Table, eta: float) -> dict:
    """Return a ledger as the first format has it."""
    key = bytes(range(32))
    names = sorted(table.column_names)
    rows = zip(*(table[name].to_pylist() for name in names), strict=True)
    digests = [hmac.new(key, repr(row).encode(), hashlib.sha256).hexdigest()[:32] for row in rows]
    release = {"when": "2025-01-01", "target": "response", "eta": dict.fromkeys(digests, eta)}
    return {"format": "seepage-ledger/1", "key": key.hex(), "releases": [release]}


def test_a_ledger_of_an_earlier_version_is_read_and_its_doubts_are_told(run, tmp_path):
    path = tmp_path / "ledger"
    path.write_text(json.dumps(as_earlier_version(patients(), 0.9)))
    ledger = ReleaseLedger.read(path)
    np.testing.assert_allclose(ledger.recognise(patients()).spent, 0.81)
    assert ledger.recognise(patients()).doubts == ()
    doubtful = ledger.recognise(single(patients()))
    assert not doubtful.known.any()
    (doubt,) = doubtful.doubts
    assert "100 of these 100 records are not in those releases" in doubt
    # It is carried on with: the old release stays in the file beside the new one.
    result = run(patients(), "--sigma", "20")
    assert result.exit_code == 1  # what it told about classes and categories, nobody knows
    assert "OVER --max-guess-gain: Over all releases in the ledger" in result.stdout
    result = run(patients(), "--sigma", "20", "--max-guess-gain", "1")
    assert result.exit_code == 0, result.output
    told = json.loads(path.read_text())
    assert told["format"] == "seepage-ledger/3"
    assert set(told["releases"][0]["eta"].values()) == {0.9}
    assert len(told["releases"][1]["eta"]) == ROWS
    spent = ReleaseLedger.read(path).recognise(patients()).spent
    np.testing.assert_allclose(spent, 0.81 + np.square(told["releases"][1]["eta"]))


@pytest.mark.parametrize(
    "damage",
    [
        lambda release: release | {"eta": release["eta"][1:]},
        lambda release: release | {"eta": [-1.0, *release["eta"][1:]]},
        lambda release: release | {"columns": {}},
        lambda release: release | {"columns": release["columns"] | {"age": "?"}},
        lambda release: release | {"identity": "id"},
        lambda release: release | {"guesses": {"distance": {"sex": -1}, "epsilon": 0, "delta": 0}},
        lambda release: release | {"guesses": {"distance": {"sex": 1}, "epsilon": 0, "delta": 2}},
        lambda release: release | {"guesses": ["sex"]},
        lambda release: release | {"mu": [0.1]},
        lambda release: release | {"epsilon": -0.1},
        lambda release: release | {"epsilon": "much"},
        lambda release: release | {"delta": 1.5},
        lambda release: release | {"state": "lost"},
        lambda release: release | {"state": "prepared", "folder": {"path": "out"}},
        lambda release: release | {"state": "prepared", "folder": None},
        lambda release: {name: release[name] for name in release if name != "columns"},
    ],
)
def test_a_damaged_ledger_is_refused(once, tmp_path, damage):
    path = Path(shutil.copy(once / "ledger", tmp_path))
    told = json.loads(path.read_text())
    path.write_text(json.dumps(told | {"releases": [damage(told["releases"][0])]}))
    with pytest.raises(InputError, match="is not a ledger of releases, or is damaged"):
        ReleaseLedger.read(path)


def test_the_ledger_holds_no_value_of_the_table(run, tmp_path):
    table = patients().append_column("town", [["Casterbridge", "Melchester"] * 50])
    assert run(table, "--sigma", "2").exit_code == 0  # enough for the other town too
    told = json.loads((tmp_path / "ledger").read_text())
    assert "Casterbridge" not in json.dumps(told)
    (release,) = told["releases"]
    assert set(release["columns"]) == set(table.column_names)
    # The same value has another digest in another column, and under another key.
    halves = pa.table({"a": [1, 2], "b": [1, 2]})
    one, other = (ReleaseLedger().recognise(halves).people.columns for _ in range(2))
    assert len({*one["a"], *one["b"], *other["a"], *other["b"]}) == 8


@pytest.mark.parametrize("file", ["model.safetensors", "release.json", "model-card.md"])
def test_every_file_of_a_release_stands_in_its_manifest(once, tmp_path, file):
    folder = shutil.copytree(once / "out", tmp_path / "out")
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["files"][file]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    if file == "release.json":  # nothing would have been compared with a checksum
        (folder / file).write_text((folder / file).read_text().replace('"age"', '"Age"'))
    with pytest.raises(InputError, match=f"'out' does not list '{file}'"):
        sp.load_release(folder)
    if file == "model-card.md":
        (folder / file).unlink()
        with pytest.raises(InputError, match=r"does not list 'model-card\.md'"):
            sp.load_release(folder)


def test_a_file_that_is_in_no_manifest_is_named(once, tmp_path):
    folder = shutil.copytree(once / "out", tmp_path / "out")
    (folder / "readme.txt").write_text("mine")
    with pytest.raises(InputError, match=r"'readme\.txt' in 'out' is not in the mani"):
        sp.load_release(folder)
    (folder / "readme.txt").unlink()
    (folder / "model-card.md").unlink()
    with pytest.raises(InputError, match=r"'model-card\.md' in 'out' is missing"):
        sp.load_release(folder)


@pytest.mark.parametrize("share", [0.9, 1.2])  # all of the budget is spent, or too much of it
def test_a_refusal_by_the_ledger_is_an_object_with_the_fields_of_others(run, tmp_path, share):
    assert run(patients(), "--sigma=0.9", "--target-eta=9").exit_code == 0
    records = json.loads((tmp_path / "report" / "summary.json").read_text())["records"]
    refused = run(patients(), "--max-membership=0.5001", "--target-eta=50", "--json")
    assert refused.exit_code == 1
    target = share * records["eta"]["1"]
    spent = run(patients(), "--sigma=0.9", f"--target-eta={target}", "--json")
    assert spent.exit_code == 2
    found, other = json.loads(spent.stdout), json.loads(refused.stdout)
    assert found.keys() == other.keys()
    assert found["model"].keys() == other["model"].keys()
    assert (found["released"], found["passed"], found["folders"]) == (False, False, {})
    assert found["verdict"].keys() == other["verdict"].keys()
    assert found["verdict"]["headline"] in " ".join(spent.stderr.split())
    assert "earlier releases" in found["verdict"]["headline"]
    assert (found["sigma"], found["target_eta"]) == (0.9, target)
