"""The audit of a folder of Parquet, read in chunks, beside that of the same table in memory."""

from __future__ import annotations

import io
import json
import resource
import signal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from people import TARGETS, encoded_people, people
from typer.testing import CliRunner

import seepage.auditing.findings as findings
import seepage.auditing.trained_model as trained_model
import seepage.streams.disk.source as reading
import seepage.support.room as room
from coarse import point_above
from sampled import sampled
from seepage.auditing.audit import EVERYTHING, ONLY_NOISE, QUICK
from seepage.auditing.command import answer
from seepage.auditing.findings import NUMBERS, SHARES
from seepage.auditing.questions import Question
from seepage.auditing.report.audit_report import AuditReport, record_table
from seepage.auditing.tradeoff import held_out_rows, losses, noisy_margins
from seepage.auditing.trained_model import FitSettings
from seepage.cli import app
from seepage.errors import InputError

ROWS = 240


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(reading, "_CHUNK", 600)
    monkeypatch.setattr(reading, "_WIDE", 1)
    # Numbers of every record lie on disk and are written some at a time, as of large tables.
    monkeypatch.setattr(room, "IN_MEMORY", 0)
    monkeypatch.setattr(room, "_AT_ONCE", 50)
    monkeypatch.setattr(findings, "WRITTEN", 50)
    # Nor is the table taken into memory, unless a test says so.
    monkeypatch.setattr(trained_model, "MOST_TAKEN", 0)


def written(table, tmp_path):
    """Write a table as one file and as a folder of three."""
    pq.write_table(table, tmp_path / "people.parquet")
    folder = tmp_path / "people"
    folder.mkdir()
    for k, (start, stop) in enumerate([(0, 37), (37, 38), (38, ROWS)]):
        pq.write_table(table.slice(start, stop - start), folder / f"{k}.parquet", row_group_size=50)
    return tmp_path / "people.parquet", folder


def both(table, tmp_path, target, effort=ONLY_NOISE, **options):
    """Audit the folder, and the file in memory."""
    paths = reversed(written(table, tmp_path))
    return [answer(Question(table=path, target=target, **options), effort=effort) for path in paths]


def alike(ours, theirs):
    """Compare all findings but what needs refits."""
    same_records(ours.records, theirs.records)
    assert ours.sigma == pytest.approx(theirs.sigma, rel=1e-9)
    assert ours.dataset_eta == pytest.approx(theirs.dataset_eta, rel=1e-8)
    assert (ours.released, ours.classes, ours.model, ours.l2) == (
        theirs.released,
        theirs.classes,
        theirs.model,
        theirs.l2,
    )
    for a, b in zip(ours.attributes, theirs.attributes, strict=True):
        assert (a.name, a.kind, a.easiest_row, a.sensitive) == (
            b.name,
            b.kind,
            b.easiest_row,
            b.sensitive,
        )
        for field in ("eta", "smallest_error", "median_error", "spread"):
            assert getattr(a, field) == pytest.approx(getattr(b, field), rel=1e-7), (a.name, field)
    for a, b in zip(ours.groupings, theirs.groupings, strict=True):
        assert (a.column, a.most_protected, a.least_protected) == (
            b.column,
            b.most_protected,
            b.least_protected,
        )
        for x, y in zip(a.groups, b.groups, strict=True):
            assert (x.label, x.count) == (y.label, y.count)
            numbers = [(g.mean_eta, g.worst_eta, g.eta_together) for g in (x, y)]
            np.testing.assert_allclose(*numbers, rtol=1e-8)


def same_records(ours, theirs):
    """Compare all that a report asks about single records, and the table of all of them."""
    assert (ours.count, ours.sensitive) == (theirs.count, theirs.sensitive)
    medians = (records.quantile("eta", 0.5) for records in (ours, theirs))
    assert next(medians) == pytest.approx(next(medians), rel=1e-9)
    assert ours.worst() == (theirs.worst()[0], pytest.approx(theirs.worst()[1], rel=1e-9))
    assert ours.span() == pytest.approx(theirs.span(), rel=1e-8)
    for name in NUMBERS:
        loose = 1e-5 if name == "exact_error" else 1e-8
        found = [[r.quantile(name, share) for share in SHARES] for r in (ours, theirs)]
        np.testing.assert_allclose(*found, rtol=loose)
    for least in (False, True):
        a, b = (records.most(8, least) for records in (ours, theirs))
        np.testing.assert_allclose(a.numbers["eta"], b.numbers["eta"], rtol=1e-8)
    eta = theirs.every.numbers["eta"]
    for limit in (0.0, eta.max(), *(np.sort(eta)[1:] + np.sort(eta)[:-1])[::50] / 2):
        assert ours.over(limit * (1 + 1e-6)) == theirs.over(limit * (1 + 1e-6))
    edges = np.geomspace(np.median(eta) / 3, eta.max() * 0.9, 7)
    assert ours.histogram(edges).tolist() == theirs.histogram(edges).tolist()
    a, b = (written_table(records).to_pydict() for records in (ours, theirs))
    # Membership of a table in chunks is an upper limit, or is not known.
    assert [name for name in b if name != "mu"] == [name for name in a if name != "mu"]
    if "mu" in a:
        assert np.all(np.asarray(a.pop("mu")) >= np.asarray(b["mu"]) * (1 - 1e-7))
    for name in a:
        np.testing.assert_allclose(a[name], b[name], rtol=1e-5 if name == "exact_error" else 1e-7)


def written_table(records):
    file = io.BytesIO()
    records.writer(record_table)(file)
    return pq.read_table(io.BytesIO(file.getvalue()))


@pytest.mark.slow
@pytest.mark.parametrize("model", list(TARGETS))
def test_the_findings_are_those_in_memory(model, tmp_path):
    target = TARGETS[model]
    others = [t for t in TARGETS.values() if t != target]
    ours, theirs = both(
        people(ROWS),
        tmp_path,
        target,
        effort=EVERYTHING,
        drop=others,
        sensitive=("age", "town"),
        group=("town", "smoker"),
    )
    alike(ours, theirs)
    assert "The data (240 records) were read in chunks." in ours.steps
    told = [step for step in ours.steps if "read in chunks" not in step]
    assert told == list(theirs.steps)
    # What takes refits is done in memory only: whether σ would be another without a record.
    assert ours.disclosures is None
    assert theirs.disclosures is not None
    # Which comes first depends on whether so much noise leaves the model useless.
    assert {remedy.name for remedy in ours.remedies} == {"more noise", "refitting"}
    assert point_above(ours.curve.worst_eta[0] * ours.curve.sigma[0]) == ours.sigma


@pytest.mark.parametrize("model", sampled(list(TARGETS), ["poisson", "softmax"]))
def test_the_error_is_that_of_a_model_without_the_held_out_records(model, tmp_path):
    target = TARGETS[model]
    _, folder = written(people(ROWS), tmp_path)
    others = [t for t in TARGETS.values() if t != target]
    found = answer(Question(table=folder, target=target, drop=others), effort=ONLY_NOISE)
    encoded = encoded_people(model, n=ROWS)
    out = held_out_rows(ROWS, 0)
    assert len(np.unique(out)) == ROWS / 5
    kept = np.setdiff1d(np.arange(ROWS), out)
    settings = FitSettings(model, found.l2)
    fitted = settings.estimator().fit(encoded.source.X[kept], encoded.source.y[kept])
    predicted = fitted.predict(encoded.source.X[out])
    if model == "poisson":
        predicted = np.minimum(predicted, encoded.source.y.max())
    truth = encoded.source.y[out]
    wrong = predicted != truth if model in ("logistic", "softmax") else (predicted - truth) ** 2
    error = np.mean(wrong) if model in ("logistic", "softmax") else np.sqrt(np.mean(wrong))
    assert found.curve.noiseless_error == pytest.approx(error, rel=1e-9)
    # With noise: the sums over the chunks beside all held-out records in one array.
    margins, shifts = noisy_margins(fitted, settings, encoded.source.X[out], 0)
    ceiling = 0.0
    if settings.classifies:
        truth = np.searchsorted(fitted.classes_, truth)
    else:
        ceiling = float(encoded.source.y.max())
    expected = []
    for sigma in found.curve.sigma:
        noisy = [losses(settings, margins + sigma * shift, truth, ceiling) for shift in shifts]
        expected.append(np.mean(noisy) if settings.classifies else np.sqrt(np.mean(noisy)))
    np.testing.assert_allclose(found.curve.error, expected, rtol=1e-7)
    if settings.classifies:
        most = np.bincount(np.searchsorted(fitted.classes_, encoded.source.y[kept])).argmax()
        trivial = np.mean(truth != most)
    else:
        trivial = np.sqrt(np.mean((truth - encoded.source.y[kept].mean()) ** 2))
    assert found.curve.trivial_error == pytest.approx(trivial, rel=1e-9)


@pytest.mark.slow
def test_gaps_are_dropped_and_rows_keep_their_numbers(tmp_path):
    table = people(ROWS)
    age = table.column("age").to_pylist()
    age[5], age[60] = None, float("nan")
    ill = table.column("ill").to_pylist()
    ill[7], ill[39] = " yes ", "?"
    table = table.set_column(0, "age", pa.array(age))
    table = table.set_column(table.column_names.index("ill"), "ill", pa.array(ill))
    ours, theirs = both(table, tmp_path, "ill", drop=("dose", "visits", "stage"), missing="drop")
    alike(ours, theirs)
    rows = written_table(ours.records)["row"].to_pylist()
    assert 5 not in rows
    assert 61 in rows
    assert [s for s in ours.steps if "because of a missing" in s] == [
        s for s in theirs.steps if "because of a missing" in s
    ]


def test_gaps_in_categories_are_filled_and_those_in_numbers_refused(tmp_path):
    table = people(ROWS)
    town = table.column("town").to_pylist()
    town[3] = None
    smoker = table.column("smoker").to_pylist()
    smoker[4] = None
    table = table.set_column(2, "town", pa.array(town)).set_column(1, "smoker", pa.array(smoker))
    options = {"drop": ("ill", "visits", "stage"), "missing": "impute"}
    ours, theirs = both(table, tmp_path, "dose", **options)
    alike(ours, theirs)
    age = table.column("age").to_pylist()
    age[0] = None
    pq.write_table(table.set_column(0, "age", pa.array(age)), tmp_path / "people" / "9.parquet")
    with pytest.raises(InputError, match="'age' cannot be imputed while the data are read"):
        answer(Question(table=tmp_path / "people", target="dose", **options))


@pytest.mark.slow
def test_identifiers_constants_and_codes(tmp_path):
    rng = np.random.default_rng(0)
    table = people(ROWS)
    table = table.append_column("id", pa.array(rng.permutation(ROWS) + 5))
    almost = rng.permutation(ROWS)
    almost[almost == 17] = 18  # counts up as an identifier does, but for one value
    table = table.append_column("almost", pa.array(almost))
    table = table.append_column("one", pa.array(["same"] * ROWS))
    table = table.append_column("code", pa.array(rng.integers(0, 4, ROWS)))
    ours, theirs = both(
        table, tmp_path, "stage", drop=("dose", "visits", "ill"), categorical=("code",)
    )
    alike(ours, theirs)
    assert [s for s in ours.steps if "'id'" in s] == [s for s in theirs.steps if "'id'" in s] != []
    assert "almost" in [a.name for a in ours.attributes]


@pytest.mark.slow
def test_numbers_that_are_classes_and_text_among_numbers(tmp_path):
    table = people(ROWS).select(["age", "weight"])
    half = np.array([0.5, 1.0, 2.5])[np.arange(ROWS) % 3]
    almost = [f"{k}.5" for k in range(ROWS)]
    almost[100], almost[230] = "unknown", "none"
    table = table.append_column("half", pa.array(half)).append_column("almost", pa.array(almost))
    ours, theirs = both(table, tmp_path, "half", drop=("almost",), categorical=("half",))
    alike(ours, theirs)
    assert ours.classes == ("0.5", "1", "2.5")
    for path in (tmp_path / "people", tmp_path / "people.parquet"):
        with pytest.raises(InputError, match="'almost' contains numbers and also text"):
            answer(Question(table=path, target="age"))
        with pytest.raises(InputError, match=r"first in row 100\)"):
            answer(Question(table=path, target="age"))


@pytest.mark.slow
def test_a_flag_as_the_target_and_unscaled(tmp_path):
    table = people(ROWS).select(["age", "weight", "smoker", "town"])
    alike(*both(table, tmp_path, "smoker", scale=False, sigma=0.1))


def test_a_model_from_a_file(tmp_path):
    table = people(ROWS).select(["age", "weight", "dose"])
    X = np.stack([table.column(n).to_numpy() for n in ("age", "weight")], axis=1)
    from seepage.glm import LinearRegression

    model = LinearRegression(l2=0.01, fit_intercept=True).fit(X, table.column("dose").to_numpy())
    path = tmp_path / "model.json"
    path.write_text(
        json.dumps(
            {
                "family": "linear",
                "coefficients": model.coef_.tolist(),
                "intercept": float(model.intercept_),
                "l2": 0.01,
            }
        )
    )
    ours, theirs = both(table, tmp_path, "dose", model_file=path)
    alike(ours, theirs)


def test_large_files_are_read_in_chunks_too(tmp_path, monkeypatch):
    file, _ = written(people(ROWS), tmp_path)
    monkeypatch.setattr("seepage.auditing.command.MOST_TAKEN", 1)
    found = answer(Question(table=file, target="ill", drop=("dose", "visits", "stage")))
    assert any("read in chunks" in step for step in found.steps)
    assert AuditReport(found).summary()["records"]["count"] == ROWS


@pytest.mark.slow
def test_the_command_writes_the_report(tmp_path):
    _, folder = written(people(ROWS), tmp_path)
    out = tmp_path / "report"
    options = ["--target", "ill", "--drop", "dose", "--drop", "visits", "--drop", "stage"]
    result = CliRunner().invoke(app, ["audit", str(folder), *options, "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert pq.read_table(out / "leakage.parquet").num_rows == ROWS
    assert "read in chunks" in (out / "report.html").read_text()
    noise = CliRunner().invoke(app, ["calibrate", str(folder), *options])
    assert noise.exit_code == 0, noise.output
    refused = CliRunner().invoke(app, ["audit", str(folder), *options, "--show-values"])
    assert refused.exit_code == 2
    assert "--show-values needs all records in memory" in refused.output


def test_a_full_disk_leaves_no_part_of_a_report(tmp_path):
    _, folder = written(people(ROWS), tmp_path)
    found = answer(
        Question(table=folder, target="ill", drop=("dose", "visits", "stage")), effort=ONLY_NOISE
    )
    kept = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    # Enough for the records, and not for the page that follows.
    resource.setrlimit(resource.RLIMIT_FSIZE, (25_000, kept[1]))
    try:
        with pytest.raises(InputError, match="cannot be written to 'report': File too large; no f"):
            AuditReport(found).write(tmp_path / "report")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, kept)
        signal.signal(signal.SIGXFSZ, ignored)
    assert not (tmp_path / "report").exists()


def test_no_rows_are_refused(tmp_path):
    folder = tmp_path / "people"
    folder.mkdir()
    pq.write_table(people(ROWS).slice(0, 0), folder / "a.parquet")
    with pytest.raises(InputError, match="The Parquet data have no rows"):
        answer(Question(table=folder, target="ill"))


def test_text_with_too_many_values_is_refused(tmp_path):
    folder = tmp_path / "people"
    folder.mkdir()
    names = pa.array([f"person {k}" for k in range(1200)])
    rng = np.random.default_rng(0)
    table = pa.table({"x": rng.normal(size=1200), "name": names, "y": rng.normal(size=1200)})
    pq.write_table(table, folder / "a.parquet")
    with pytest.raises(InputError, match="'name' has more than 1,000 different values"):
        answer(Question(table=folder, target="y"))
    with pytest.raises(InputError, match=r"'name' has more than 1,000 different .* 1,000 groups"):
        answer(Question(table=folder, target="y", drop=("name",), group=("name",)))


@pytest.mark.parametrize("model", TARGETS)
def test_membership_and_guesses_are_those_of_the_table_in_memory(model, tmp_path):
    drop = [name for name in TARGETS.values() if name != TARGETS[model]]
    options = {"effort": QUICK, "sigma": 0.3, "drop": drop}
    chunked, whole = (
        found.risks for found in both(people(ROWS), tmp_path, TARGETS[model], **options)
    )
    if model == "softmax":  # so few records have no bound without refits
        assert chunked is None
        return
    assert chunked.looked_at == whole.looked_at == ROWS
    # Without refits only the upper end of an interval is known; least squares has a closed form.
    off = 1e-7 if model == "linear" else 0.03
    assert chunked.membership >= whole.membership * (1 - 1e-9)
    assert chunked.membership == pytest.approx(whole.membership, abs=off)
    assert chunked.median == pytest.approx(whole.median, abs=off)
    known = {(g.name, g.prior): g for g in whole.guesses}
    assert chunked.guesses
    for guess in chunked.guesses:
        same = known[guess.name, guess.prior]
        assert guess.right >= same.right - 1e-9 or guess.row != same.row
        assert guess.gain >= same.gain - 1e-3
