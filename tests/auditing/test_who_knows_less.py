"""The outsider beside an audit: its numbers from matrices by hand, and what is said about them."""

import json
import re
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pytest
from people import encode, encoded_people, people, plan_columns
from scipy import stats
from typer.testing import CliRunner

import seepage as sp
from seepage.auditing.audit import QUICK, audit_table
from seepage.auditing.findings import UsefulnessFinding
from seepage.auditing.intake import table as intake
from seepage.auditing.outsider import attacker_of
from seepage.auditing.report.audit_report import AuditReport
from seepage.cli import app
from seepage.errors import InputError
from seepage.glm.outsider import membership as views

OUTSIDER = sp.Attacker(knows=0.0)


def by_hand(X, y, l2, *, owner=None, unknown=1.0, own=False):
    """Return how often she is right about each person of a least-squares fit, and μ.

    Of one covariance; with ``own`` she sees the prediction for the record alone, and of two.
    """
    n, d = X.shape
    x = np.hstack([X, np.ones((n, 1))])
    H = x.T @ x + n * l2 * np.diag([*np.ones(d), 0.0])
    inverse = np.linalg.inv(H)
    r = x @ inverse @ x.T @ y - y
    owner = np.arange(n) if owner is None else owner
    g = np.zeros((owner.max() + 1, d + 1))
    for k in range(len(g)):  # the gradient at the minimiser without the person
        rows = x[owner == k]
        left = np.linalg.solve(H - rows.T @ rows, rows.T @ r[owner == k])
        g[k] = H @ left
    c, m = g - g.mean(axis=0), len(g)
    total = np.zeros(m)
    for k in range(m):
        others = unknown * (c.T @ c - m / (m - 1) * np.outer(c[k], c[k]))
        if own:  # two normal distributions on a line, of different spread
            (row,) = x[owner == k]
            a, a_out = inverse @ row, np.linalg.solve(H - np.outer(row, row), row)
            grid = np.linspace(-20, 20, 20_001) * np.sqrt(a_out @ others @ a_out)
            inside = stats.norm.pdf(grid, -a @ c[k], np.sqrt(a @ others @ a))
            outside = stats.norm.pdf(grid, 0.0, np.sqrt(a_out @ others @ a_out))
            right = np.trapezoid(np.maximum(inside, outside), grid) / 2
            total[k] = 2 * stats.norm.ppf(right)
        else:
            total[k] = np.sqrt(c[k] @ np.linalg.solve(others, c[k]))
    return stats.norm.cdf(total / 2), total


@pytest.mark.parametrize("unknown", [1.0, 0.25])
def test_the_median_and_the_others_she_must_know_are_those_by_hand(unknown):
    encoded = encoded_people("linear", n=240)
    attacker = sp.Attacker(knows=1 - unknown)
    audit = audit_table(encoded, name="t", l2=0.01, attacker=attacker, effort=QUICK)
    found, source = audit.outsider, encoded.source
    right, mu = by_hand(source.X, source.y, 0.01, unknown=unknown)
    assert found.median == pytest.approx(np.median(right), abs=2e-4)
    assert found.membership == pytest.approx(right.max(), abs=0.02)  # two covariances
    assert found.row == np.argmax(right)
    must = 239 - np.floor(239 * np.minimum(unknown * mu**2 / 2.5631**2, 1))
    must[239 - must < 30] = 239
    assert found.must_know == np.median(must)
    assert (found.informed, found.informed_median) == (1.0, 1.0)
    assert (found.seen, found.sigma, found.others, found.checked) == ("parameters", None, 239, 0)


def test_too_few_people_leave_predictions_alone():
    encoded = encoded_people("linear", n=45)
    audit = audit_table(encoded, name="t", l2=0.01, attacker=OUTSIDER, effort=QUICK)
    found = audit.outsider
    right, _ = by_hand(encoded.source.X, encoded.source.y, 0.01, own=True)
    assert found.seen == "predictions"
    # One covariance below a leverage of 0.1 is that far from two.
    assert found.median == pytest.approx(np.median(right), abs=2e-3)
    said = AuditReport(audit).summary()["verdict"]["headline"]
    assert "Without noise, an attacker who knows all other records is certain of" in said
    (told,) = (a.text for a in AuditReport(audit).verdict.answers if "fewer records" in a.question)
    assert "too few records" in told
    assert "up to 100 %" in told


def test_predictions_of_a_noisy_model_tell_no_more_than_who_knows_all_learns():
    encoded = encoded_people("linear", n=45)
    for sigma in (0.05, 2.0):
        audit = audit_table(encoded, name="t", l2=0.01, sigma=sigma, attacker=OUTSIDER)
        found, risks = audit.outsider, audit.risks
        assert (found.seen, found.sigma, found.must_know) == ("predictions", sigma, None)
        assert (found.informed, found.informed_median) == (risks.membership, risks.median)
        assert found.membership <= found.informed
        assert found.median <= found.informed_median
        (told,) = (
            a.text for a in AuditReport(audit).verdict.answers if "fewer records" in a.question
        )
        assert "without the noise, which lowers the rate" in told


def test_people_with_several_rows_are_the_unit():
    table = people(300)
    table = table.append_column("id", pa.array(np.arange(300) // 2))
    others = ["ill", "visits", "stage"]
    plan = plan_columns(table, "dose", drop=others, person="id")
    encoded = intake.encode(intake.TableInMemory(table), plan, scale=True)
    audit = audit_table(encoded, name="t", l2=0.01, attacker=OUTSIDER, effort=QUICK)
    read = encode(table, plan)
    right, _ = by_hand(read.X, read.y, 0.01, owner=np.arange(300) // 2)
    assert audit.outsider.others == 149
    assert audit.outsider.median == pytest.approx(np.median(right), abs=5e-4)
    assert audit.outsider.row == 2 * np.argmax(right)
    (told,) = (a.text for a in AuditReport(audit).verdict.answers if "fewer records" in a.question)
    assert "median person" in told
    assert "the person of row" in told


def test_with_noise_the_attacker_who_knows_all_stands_beside_her():
    encoded = encoded_people("logistic", n=160)
    audit = audit_table(encoded, name="t", sigma=0.3, attacker=OUTSIDER)
    found, risks = audit.outsider, audit.risks
    assert found.sigma == 0.3
    assert found.must_know is None
    assert found.informed == pytest.approx(risks.membership)
    assert found.membership < found.informed
    assert found.median <= found.informed_median < 1
    assert found.checked >= 1
    verdict = AuditReport(audit).verdict
    assert "published as it is" not in verdict.headline
    # The noise hides: without it she is right more often.
    bare = audit_table(encoded, name="t", attacker=OUTSIDER, effort=QUICK)
    assert bare.outsider.membership > found.membership


def test_refits_that_are_right_more_often_count(monkeypatch):
    def surer(worlds, people, predicted):
        return views.Resampled(people, np.full(len(people), 0.97), predicted * 0, predicted)

    monkeypatch.setattr(views, "resampled", surer)
    audit = audit_table(encoded_people("linear", n=160), name="t", attacker=OUTSIDER)
    assert audit.outsider.membership == 0.97
    assert audit.outsider.apart > 0


def test_a_model_without_noise_is_never_called_good():
    encoded = encoded_people("linear", n=160)

    def useful(audit):
        """Whatever the few held-out records say of it."""
        better = (UsefulnessFinding(0.2, 0.1, 0.3, 5),) * len(audit.curve.sigma)
        return replace(audit, curve=replace(audit.curve, usefulness=better))

    plain = AuditReport(useful(audit_table(encoded, name="t", effort=QUICK))).verdict
    asked = useful(audit_table(encoded, name="t", attacker=OUTSIDER, effort=QUICK))
    assert plain.tone == "good"
    assert AuditReport(asked).verdict.tone == "caution"
    assert AuditReport(asked).verdict.label == plain.label + " with noise"
    # Nor where she could not be estimated
    few = sp.Attacker(knows=0.999)
    unknown = audit_table(encoded, name="t", attacker=few, effort=QUICK)
    assert unknown.outsider is None
    assert "practically everybody" in unknown.outsider_reason
    report = AuditReport(unknown)
    assert report.verdict.tone == "caution"
    assert any("was not estimated" in answer.text for answer in report.verdict.answers)
    assert AuditReport(replace(asked, outsider=None, outsider_reason="")).verdict.tone == "good"


def test_the_python_call_says_the_same():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((150, 3))
    y = X @ [1.0, -1.0, 0.5] + rng.standard_normal(150)
    model = sp.glm.LinearRegression(l2=0.01, fit_intercept=True).fit(X, y)
    audit = sp.audit(model, X, y, attacker=OUTSIDER, refit="model")
    right, _ = by_hand(X, y, 0.01)
    assert audit.outsider.median == pytest.approx(np.median(right), abs=5e-4)
    assert "the attacker would have to know" in re.sub(r"\s+", " ", repr(audit))
    for wrong, said in ((0.5, "sp.Attacker"), (sp.Attacker(), "knows fewer")):
        with pytest.raises(InputError, match=said):
            sp.audit(model, X, y, attacker=wrong)


@pytest.mark.parametrize("text", ["0.9", "knows=2", "knows=", "insider", "knows=1", "knows=.."])
def test_other_words_are_refused(text):
    with pytest.raises(InputError, match="outsider"):
        attacker_of(text)


@pytest.mark.parametrize(
    ("text", "knows"), [("outsider", 0.0), (" Outsider", 0.0), ("knows = 0.9", 0.9)]
)
def test_who_the_attacker_is(text, knows):
    assert attacker_of(text).knows == knows


def test_the_command_prints_writes_and_refuses(tmp_path):
    table, out = tmp_path / "t.csv", tmp_path / "out"
    pa_csv.write_csv(people(160).drop_columns(["ill", "visits", "stage"]), table)
    call = ["audit", str(table), "--target", "dose", "--quick", "--attacker", "knows=0.5"]
    run = CliRunner().invoke(app, [*call, "--out", str(out), "--verbose"])
    assert run.exit_code == 0, run.output
    assert "an attacker who knows 50 % of the other records succeeds in" in run.output
    page = (out / "report.html").read_text("utf-8")
    assert "Attacker who knows fewer records" in page
    assert "not a guarantee" in page
    summary = json.loads((out / "summary.json").read_text("utf-8"))
    found = summary["outsider"]
    assert found["attacker"] == "an attacker who knows 50 % of the other records"
    assert 0.5 < found["median"] < found["membership"] <= found["informed"] == 1
    assert summary["outsider_reason"] is None
    over = CliRunner().invoke(app, [*call, "--out", str(out), "--max-outsider", "0.51"])
    assert over.exit_code == 1
    gate = json.loads((out / "summary.json").read_text("utf-8"))["gates"][0]
    assert (gate["name"], gate["passed"]) == ("--max-outsider", False)
    assert gate["measured"] == found["membership"]
    alone = CliRunner().invoke(app, [*call[:-2], "--max-outsider", "0.6"])
    assert alone.exit_code == 2
    assert "--max-outsider cannot be checked" in alone.output
    bad = CliRunner().invoke(app, [*call[:-1], "everything"])
    assert bad.exit_code == 2
    forest = CliRunner().invoke(app, [*call, "--model-kind", "forest"])
    assert forest.exit_code == 2
    assert "--attacker applies only to linear models" in forest.output
