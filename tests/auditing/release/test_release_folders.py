"""The folder to share holds the model, its list and its card, and can be loaded with one call."""

from __future__ import annotations

import json
import re
import stat

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
from people import encoded_people
from release_cases import patients, people
from sklearn.linear_model import Ridge
from typer.testing import CliRunner

import seepage as sp
from seepage.auditing.questions import Limits
from seepage.auditing.release import error_rates
from seepage.auditing.release.ledger import ReleaseLedger
from seepage.auditing.release.making import make_release
from seepage.auditing.release.procedure import Procedure
from seepage.auditing.release.released_model import OTHER, ColumnCoding, ReleasedModel
from seepage.auditing.report.audit_report import AuditReport
from seepage.auditing.report.rendering import tell
from seepage.cli import app
from seepage.core.noise import Laplace
from seepage.errors import InputError

FILES = {"manifest.json", "model-card.md", "model.safetensors", "release.json"}


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pq.write_table(people(), tmp_path / "people.parquet")
    pq.write_table(patients(), tmp_path / "patients.parquet")
    # Risks are held to their limits in tests of their own: these tables are small.
    allowed = ("--max-membership", "1", "--max-guess-gain", "1", "--max-guess-tpr", "1")
    return lambda *arguments: CliRunner().invoke(app, ["release", *arguments, *allowed])


PEOPLE = ("people.parquet", "--target", "ill", "--drop", "number")


def test_a_release_is_a_folder_of_its_own(run, tmp_path):
    result = run(*PEOPLE, "--rare", "merge")
    assert result.exit_code == 0, result.output
    folder = tmp_path / "seepage-release"
    assert {p.name for p in folder.iterdir()} == FILES
    assert all(stat.S_IMODE(p.stat().st_mode) == 0o600 for p in folder.iterdir())
    assert (tmp_path / "seepage-audit" / "report.html").is_file()
    told = json.loads((folder / "release.json").read_text())
    protections = {item["name"]: item["protection"] for item in told["leaves"]}
    assert protections["coefficients"] == protections["intercept"] == "noised"
    assert protections["noise σ"] == "drawn"
    assert protections["scaling"] == "coarse"
    assert protections["penalty λ"] == "declared"
    assert protections["all other figures"] == "withheld"
    card = (folder / "model-card.md").read_text()
    for name in protections:
        assert f"| {name} |" in card
    # Nothing exact: neither how many people there are, nor a rare name, nor a number of the report.
    everything = "".join(p.read_text("utf-8", "replace") for p in folder.iterdir())
    assert "judge" not in everything
    summary = json.loads((tmp_path / "seepage-audit" / "summary.json").read_text())
    assert summary["records"]["count"] == 120
    assert "120" not in card
    assert f"{summary['records']['eta']['1']:.3g}" not in card


def test_a_release_is_loaded_with_one_call(run, tmp_path):
    options = ("--rare", "merge", "--sigma", "0.001", "--target-eta", "1000")
    assert run(*PEOPLE, *options).exit_code == 0
    model = sp.load_release(tmp_path / "seepage-release")
    frame = people().to_pandas()
    assert model.predict(frame).tolist() == model.predict(people()).tolist()
    assert model.classes_.tolist() == ["no", "yes"]
    # With so little noise it is the model of scikit-learn, on features made by hand.
    from sklearn.linear_model import LogisticRegression

    # Two judges are too few, and so the smallest of the other jobs joins them.
    smallest = frame["job"][frame["job"] != "judge"].value_counts().index[-1]
    job = frame["job"].where(~frame["job"].isin(["judge", smallest]), OTHER)
    assert [c.levels for c in model.columns if c.name == "job"] == [tuple(sorted(set(job)))]
    coding = {c.name: c for c in model.columns}
    X = np.column_stack(
        [(frame["age"] - coding["age"].centre) / coding["age"].unit]
        + [job == level for level in coding["job"].levels[1:]]
    ).astype(float)
    np.testing.assert_allclose(model.transform(frame), X)
    twin = LogisticRegression(C=1 / (0.01 * 120), tol=1e-10, max_iter=1000).fit(X, frame["ill"])
    np.testing.assert_allclose(model.coef_, twin.coef_, atol=0.01)
    np.testing.assert_allclose(model.predict_proba(frame), twin.predict_proba(X), atol=0.01)
    unknown = pd.DataFrame({"age": [50.0], "job": ["astronaut"]})
    assert model.predict(unknown).shape == (1,)  # one of the others
    with pytest.raises(InputError, match="no column 'job'"):
        model.predict(pd.DataFrame({"age": [50.0]}))


def test_a_changed_release_is_not_loaded(run, tmp_path):
    assert run("patients.parquet", "--target", "response").exit_code == 0
    folder = tmp_path / "seepage-release"
    assert sp.load_release(folder).predict(patients()).shape == (200,)
    (folder / "release.json").write_text("{}")
    with pytest.raises(InputError, match="has changed since it was written"):
        sp.load_release(folder)
    with pytest.raises(InputError, match="is not a release written by seepage"):
        sp.load_release(tmp_path)


def test_nothing_private_goes_where_the_release_goes(run):
    for options in (("--report", "seepage-release/report"), ("--out", "seepage-audit/x")):
        result = run("patients.parquet", "--target", "response", *options)
        assert result.exit_code == 2
        assert "--report and --out must be different folders" in result.stderr
    result = run("patients.parquet", "--target", "response", "--ledger", "seepage-release/l.json")
    assert result.exit_code == 2
    assert "outside" in result.stderr


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("people.parquet", "--target", "ill"), "half as many different values as the table has"),
        (("people.parquet",), "Name the column with --target"),
        (PEOPLE, "1 value of 'job' (of 4; 0 of a single record)"),
        ((*PEOPLE, "--least-holders", "0"), "least-holders"),
        ((*PEOPLE, "--rare", "perhaps"), "refuse, drop or merge"),
        ((*PEOPLE, "--rare", "merge", "--missing", "impute"), "values would also be published"),
        ((*PEOPLE, "--rare", "merge", "--domain", "age=5:1"), "low below high"),
        ((*PEOPLE, "--rare", "merge", "--domain", "aeg=1:5"), "no column 'aeg'"),
        ((*PEOPLE, "--rare", "merge", "--domain", "age=0:30"), "outside its declared domain"),
        ((*PEOPLE, "--rare", "drop", "--least-holders", "80"), "A class of the target"),
        ((*PEOPLE, "--rare", "merge", "--sigma", "0.001"), "some record would leak more than"),
        ((*PEOPLE, "--rare", "merge", "--sigma", "1", "--sigma-epsilon", "1"), "and --sigma-eps"),
        ((*PEOPLE, "--rare", "merge", "--sigma-epsilon", "-1"), "sigma_epsilon must be"),
    ],
)
def test_what_would_give_people_away_is_named_before_fitting(run, tmp_path, options, complaint):
    result = run(*options)
    assert result.exit_code == 2, result.output
    assert complaint in result.stderr
    assert not (tmp_path / "seepage-release").exists()
    assert not (tmp_path / "seepage-ledger.json").exists()


@pytest.mark.minutes
def test_rare_columns_are_dropped_when_asked(run, tmp_path):
    assert run("people.parquet", "--target", "ill", "--rare", "drop").exit_code == 0
    assert [c.name for c in sp.load_release(tmp_path / "seepage-release").columns] == ["age"]


@pytest.mark.minutes
def test_a_second_release_is_judged_with_the_first(run, tmp_path):
    assert run("patients.parquet", "--target", "response", "--sigma", "0.15").exit_code == 0
    # By itself the grid would have more.
    ledger = ReleaseLedger.read(tmp_path / "seepage-ledger.json")
    assert stat.S_IMODE((tmp_path / "seepage-ledger.json").stat().st_mode) == 0o600
    alone = Procedure(target="response").prepare(patients())
    assert alone.sigma >= alone.least == 0.2
    assert np.max(alone.eta) <= 0.15
    second = Procedure(target="response", ledger=ledger).prepare(patients())
    spent = alone.eta / 0.15
    np.testing.assert_allclose(second.spent, spent**2)
    together = np.sqrt(spent**2 + (second.eta / second.sigma) ** 2)
    assert np.max(together) <= 1
    assert second.sigma >= second.least > alone.least
    assert run("patients.parquet", "--target", "response").exit_code == 0
    report = json.loads((tmp_path / "seepage-audit" / "summary.json").read_text())
    ledger = report["ledger"]
    assert (ledger["releases"], ledger["known"], ledger["doubts"]) == (1, 200, [])
    assert ledger["spent"] == pytest.approx(np.max(spent))
    drawn = report["release"]["sigma"]
    together = np.sqrt(spent**2 + (second.eta / drawn) ** 2)
    assert ledger["eta"] == pytest.approx(np.max(together))
    told = f"including this one, the η of each record is at most {ledger['eta']:.4g}."
    known = "200 records were in earlier releases recorded in the ledger. Over all releases,"
    assert f"{known} {told}" in report["steps"]
    # What is used up is used up.
    result = run("patients.parquet", "--target", "response", "--target-eta", "0.5")
    assert result.exit_code == 2
    assert "has been spent by earlier releases; leave out" in result.stderr


def test_a_file_of_another_format_is_no_ledger(tmp_path):
    for told in ('{"format": "seepage-ledger/1"}', '{"format": "seepage-ledger/9"}'):
        (tmp_path / "ledger.json").write_text(told)
        with pytest.raises(InputError, match="is not a ledger"):
            ReleaseLedger.read(tmp_path / "ledger.json")


def test_the_column_that_tells_records_apart_is_no_feature():
    fitted = Procedure(target="ill", person="number", rare="merge").fit(people())
    assert [part.name for part in fitted.table.coding.parts] == ["age", "job"]
    with pytest.raises(InputError, match="least-holders must be at least 1, not 0"):
        Procedure(target="ill", least_holders=0).fit(people())
    with pytest.raises(InputError, match="10 usable rows, but the table has 4"):
        Procedure(target="response", least_holders=1).fit(patients().slice(0, 4))


def test_what_sp_release_returns_becomes_a_release(tmp_path):
    X = np.random.default_rng(0).normal(size=(60, 3))
    model = sp.glm.LogisticRegression(l2=0.1).fit(X, X[:, 0] > 0)
    with pytest.raises(InputError, match="without noise"):
        sp.Release.of(model)
    with pytest.warns(UserWarning, match="seed"):
        seeded = sp.release(model, sp.Gaussian(0.1), seed=0)
    with pytest.raises(InputError, match="fixed seed"):
        sp.Release.of(seeded)
    released = sp.release(model, sp.Gaussian(0.1))
    folder = sp.Release.of(released).write(tmp_path / "out")
    again = sp.load_release(folder)
    np.testing.assert_array_equal(again.coef_, released.coef_)
    assert {p.name for p in folder.iterdir()} == FILES


def test_the_names_of_features_are_told_and_other_models_are_no_folder(tmp_path):
    frame = pd.DataFrame({"age": np.arange(60.0), "dose": np.arange(60.0) % 7})
    named = sp.glm.LinearRegression(l2=0.1).fit(frame, frame["age"] % 5)
    leaving = sp.Release.of(sp.release(named, sp.Gaussian(0.1)))
    (names,) = [item for item in leaving.items if item.name == "names of the features"]
    assert (names.protection, names.count) == ("declared", 2)
    assert leaving.model.feature_names_in_.tolist() == ["age", "dose"]
    X, y = frame.to_numpy(), frame["dose"]
    ridge = Ridge(2.0, fit_intercept=False).fit(X, y)
    other = sp.Release.of(sp.release(ridge, sp.Gaussian(0.1)))
    with pytest.raises(InputError, match="type Ridge cannot be written to a folder") as caught:
        other.write(tmp_path / "out")
    assert not (tmp_path / "out").exists()
    call = re.search(r"sp\.glm\..*fit\(X, y\)", str(caught.value))[0]
    same = eval(call, {"sp": sp, "X": X, "y": y})  # noqa: S307 - the call to paste
    np.testing.assert_allclose(same.coef_, ridge.coef_, rtol=1e-8)
    folder = sp.Release.of(sp.release(same, sp.Gaussian(0.1))).write(tmp_path / "out")
    assert repr(sp.load_release(folder)) == "<released LinearRegression of 2 features>"


class Sums:
    """A model that adds its features up."""

    def predict(self, X):
        return X.sum(axis=1)


def test_columns_become_features_by_their_levels_whatever_the_type_of_a_cell():
    columns = [
        ColumnCoding("age", "numeric", 50.0, 10.0),
        ColumnCoding("arm", "categorical", levels=("false", "true")),
        ColumnCoding("dose", "categorical", levels=("1", "2.5", "3")),
    ]
    model = ReleasedModel(Sums(), columns)
    table = {"age": [40, 60], "arm": [np.True_, False], "dose": [2.5, np.float64(3.0)]}
    np.testing.assert_array_equal(model.transform(table), [[-1, 1, 1, 0], [1, 0, 0, 1]])
    np.testing.assert_array_equal(model.predict(table), [1, 2])
    assert model.feature_names_in_.tolist() == ["age", "arm=true", "dose=2.5", "dose=3"]
    with pytest.raises(InputError, match="'dose' has the level '4', which is unknown to this"):
        model.predict(table | {"dose": [1, 4]})
    with pytest.raises(InputError, match="'age' must contain numbers"):
        model.predict(table | {"age": ["old", "young"]})
    bare = ReleasedModel(Sums())
    np.testing.assert_array_equal(bare.predict([[1, 2], [3, 4]]), [3, 7])


def test_columns_that_were_not_scaled_are_taken_as_they_are():
    encoded = encoded_people("linear", scale=False)
    model = ReleasedModel.of_table(Sums(), encoded.coding)
    np.testing.assert_allclose(model.transform(encoded.raw), encoded.source.X)
    assert {(c.centre, c.unit) for c in model.columns} == {(0.0, 1.0)}


@pytest.fixture
def made(monkeypatch):
    """Make a release of a target y; its neighbours are tried elsewhere."""
    monkeypatch.setattr("seepage.auditing.release.making.try_neighbours", lambda *given: ())
    return lambda raw, **options: make_release(
        Procedure(target="y", **options),
        raw,
        limits=Limits(),
        name="t",
        tell=lambda words: None,
    )


@pytest.mark.parametrize("numeric", [True, False])
def test_how_often_a_large_release_is_wrong_is_told_with_noise(numeric, made, monkeypatch):
    monkeypatch.setattr(Laplace, "draw", lambda self, *shape, **more: np.zeros(shape))
    rng = np.random.default_rng(0)
    x = rng.normal(size=1200)
    y = x + rng.normal(size=1200) + 0.5
    raw = pa.table({"x": x, "y": y if numeric else np.where(y > 0, "yes", "no")})
    domain = ["x=-8:8", "y=-8:8"] if numeric else []
    found = made(raw, domain=domain, sigma=1.0, target_eta=1000.0)
    model, card = found.release.model, found.release.card
    name = "share of predictions off by more than 4" if numeric else "error rate"
    items = {i.name: i for i in found.release.items}
    item, constant = items[name], items[f"{name}, for a constant prediction"]
    told = model.predict(raw)
    truth = raw.column("y").to_numpy()
    # A quarter of the domain is the error above which a number counts as wrong.
    wrong = np.abs(told - truth) > 4 if numeric else told != truth
    scale = 2 / (999 * 0.05)  # 1,000 records or more, ε = 0.05 for both
    assert item.value == pytest.approx(np.mean(wrong), abs=scale)
    grid = np.linspace(-8, 8, 3201)[:, None]
    tried = np.abs(truth - grid) > 4 if numeric else truth != np.array([["yes"], ["no"]])
    assert constant.value == pytest.approx(tried.mean(axis=1).min(), abs=scale)
    for one in (item, constant):
        assert "ε-differentially private with ε = 0.05" in one.how
        assert "scale 0.04" in one.how
    said = f"{item.value:.0%}, and that of the best constant prediction is {constant.value:.0%}."
    assert f"The model's {name} on its training records is {said}" in card
    worse = "the model is no better than a constant" in card
    assert worse == (item.value >= constant.value)
    assert ("scaling" in items) is not numeric


def test_a_count_is_not_called_a_wrong_prediction(made, monkeypatch):
    monkeypatch.setattr(Laplace, "draw", lambda self, *shape, **more: np.zeros(shape))
    rng = np.random.default_rng(0)
    x = rng.normal(size=1200)
    y = rng.poisson(np.exp(1 + 0.5 * x))
    found = made(pa.table({"x": x, "y": y}), target_eta=1000.0)
    assert found.prepared.trained.settings.model == "poisson"
    assert "wrong predictions" not in found.release.card
    unit = found.prepared.figures["unit of the target"]
    name = f"share of predictions off by more than {unit:g}"
    assert f"The model's {name} on its training records is " in found.release.card
    values = {item.name: item.value for item in found.release.items}
    far = np.mean(np.abs(np.exp(1 + 0.5 * x) - y) > unit)  # of the truth; the fit is close to it
    assert values[name] == pytest.approx(far, abs=0.03)
    best = min(np.mean(np.abs(c - y) > unit) for c in np.arange(0, 20, 0.5))
    assert values[f"{name}, for a constant prediction"] == pytest.approx(best, abs=0.03)
    assert not any("wrong" in item.name for item in found.release.items)
    card = AuditReport(found.audit).texts()["model-card.md"]
    assert "The model's root mean squared error (predictions capped at the largest" in card


@pytest.mark.parametrize("unit", [None, 0.5, 2.0, 100.0])
def test_the_constant_that_is_wrong_least_often_moves_by_one_record(unit):
    """The share of the best constant, by trying all, and how far any one record moves it."""
    rng = np.random.default_rng(2)
    truth = np.round(rng.normal(size=60) * 3) / 2

    def tried(y):
        far = np.inf if unit is None else unit
        ends = [y, y + far, y - far] if unit is not None else [y]
        wrong = [np.mean(y != c if unit is None else np.abs(y - c) > unit) for e in ends for c in e]
        return min(wrong)

    def share_of(y):
        return error_rates.wrong_constant(y, unit, np.full(len(y), 1 / len(y)))

    share = share_of(truth)
    assert share == pytest.approx(tried(truth), abs=1e-12)
    for k in range(60):
        fewer = share_of(np.delete(truth, k))
        assert abs(share - fewer) <= 1 / 59 + 1e-12
        other = truth.copy()
        other[k] = 50.0
        assert abs(share - share_of(other)) <= 1 / 60 + 1e-12


def test_noise_that_follows_the_most_exposed_record_says_so(made):
    rng = np.random.default_rng(1)
    x = rng.normal(size=40)
    found = made(pa.table({"x": x, "y": x + rng.normal(size=40)}))
    assert found.prepared.vote is None
    assert found.prepared.sigma == found.prepared.least
    assert found.audit.noise.how == "least"
    assert "there were too few records for a vote" in tell("noise", found.audit)
    assert not any("constant prediction" in i.name for i in found.release.items)


@pytest.mark.minutes
def test_the_noise_can_be_drawn_by_a_vote(run, tmp_path):
    # So large an ε finds the median block: an experiment, not a promise.
    result = run("patients.parquet", "--target", "response", "--sigma-epsilon", "100")
    assert result.exit_code == 0, result.output
    assert "noise σ: drawn by a private mechanism. Drawn by a vote of 50 blocks" in result.stdout
    assert "A vote depends little on any single" in result.stdout
    card = (tmp_path / "seepage-release" / "model-card.md").read_text()
    assert "ε-differentially private with ε = 100" in card
    assert "**Other figures.**" in card
    few = run("people.parquet", "--target", "ill", "--rare", "drop", "--sigma-epsilon", "1")
    assert few.exit_code == 0, few.output  # 120 records: ten blocks
    pq.write_table(people(90), tmp_path / "few.parquet")
    few = run("few.parquet", "--target", "ill", "--rare", "drop", "--sigma-epsilon", "1")
    assert few.exit_code == 2
    assert "needs at least 100 records" in few.stderr
    # Nobody asked for it: then σ follows the most exposed record, and that is said.
    few = run("few.parquet", "--target", "ill", "--rare", "drop", "--out", "few")
    assert few.exit_code == 0, few.output
    assert "noise σ: on a coarse public grid. The smallest σ that meets the target" in few.stdout
    assert "it depends on the most exposed record" in few.stdout
    assert "**Other figures.**" not in (tmp_path / "few" / "model-card.md").read_text()


@pytest.mark.slow
def test_a_csv_file_can_be_released(run, tmp_path):
    pa_csv.write_csv(patients(), tmp_path / "patients.csv")
    result = run("patients.csv", "--target", "response", "--sigma", "1", "--domain", "dose=0:150")
    assert result.exit_code == 0, result.output
    assert "scaling by domains (2): declared public" in result.stdout
    (tmp_path / "empty").mkdir()
    assert run("empty", "--target", "response").exit_code == 2


@pytest.mark.minutes
def test_a_folder_of_parquet_files_is_released_as_one_table(run, tmp_path):
    (tmp_path / "parts").mkdir()
    for k in range(4):
        pq.write_table(people().slice(30 * k, 30), tmp_path / "parts" / f"{k}.parquet")
    options = ("--target", "ill", "--drop", "number", "--rare", "merge", "--sigma", "5")
    assert run("parts", *options).exit_code == 0
    parts = (tmp_path / "seepage-release" / "release.json").read_text()
    assert run("people.parquet", *options, "--out", "whole", "--ledger", "other").exit_code == 0
    told, whole = (json.loads(t) for t in (parts, (tmp_path / "whole/release.json").read_text()))
    assert told["columns"] == whole["columns"]
    assert [i["name"] for i in told["leaves"]] == [i["name"] for i in whole["leaves"]]
    refused = run("parts", *options, "--out", "parts/release")
    assert refused.exit_code == 2
    assert "one contains the other" in refused.stderr
