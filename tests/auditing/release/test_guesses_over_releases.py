"""Limits on guesses hold over all releases of a ledger, not for each of them alone."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy.stats import norm
from typer.testing import CliRunner

import seepage as sp
from seepage.auditing.release.ledger import GuessLoss, ReleaseLedger
from seepage.auditing.report.audit_report import AuditReport
from seepage.cli import app

ROWS, SIGMA = 130, 0.35
OPTIONS = [
    "--target=ill",
    "--domain=age=0:100",
    "--target-eta=1000",
    "--max-membership=1",
    "--json",
]


def table():
    rng = np.random.default_rng(5)
    age = rng.uniform(20, 80, ROWS)
    ill = rng.random(ROWS) < 1 / (1 + np.exp(-(age - 50) / 8))
    return age, ill


@pytest.fixture
def release(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SEEPAGE_LEDGER", raising=False)
    monkeypatch.setattr(AuditReport, "write", lambda report, out, keep=(): Path(out))
    monkeypatch.setattr("seepage.auditing.release.making.try_neighbours", lambda *given: ())
    age, ill = table()
    pq.write_table(pa.table({"age": age, "ill": np.where(ill, "yes", "no")}), "t.parquet")

    def run(*more: str):
        found = CliRunner().invoke(app, ["release", "t.parquet", *OPTIONS, *more])
        assert found.exit_code in (0, 1), found.output
        return json.loads(found.stdout)

    return run


def fitted(age, ill, l2):
    """Return the minimiser of the mean logistic loss with ``l2 ‖w‖²/2``, scaled by the domain."""
    X = np.column_stack([(age - 50) / 25, np.ones(len(age))])
    w = np.zeros(2)
    for _ in range(40):
        p = 1 / (1 + np.exp(-X @ w))
        H = (X * (p * (1 - p))[:, None]).T @ X / len(X) + np.diag([l2, 0.0])
        w = w - np.linalg.solve(H, X.T @ (p - ill) / len(X) + np.array([l2, 0.0]) * w)
    return w


def largest_distance(l2):
    """Return how far another label of anybody moves the model, by refits of all of them."""
    age, ill = table()
    own, moves = fitted(age, ill.astype(float), l2), []
    for i in range(ROWS):
        other = ill.astype(float)
        other[i] = 1 - other[i]
        moves.append(np.linalg.norm(fitted(age, other, l2) - own))
    return max(moves)


def test_two_releases_within_a_limit_are_over_it_together(release):
    mu = largest_distance(0.01) / SIGMA
    limit = 1.2 * (norm.cdf(mu / 2) - 0.5)
    limits = [f"--max-guess-gain={limit}", "--max-guess-tpr=0.2"]
    first = release(f"--sigma={SIGMA}", "--l2=0.01", *limits)
    assert first["released"], first["gates"]
    assert first["ledger"]["gain"] is None  # nobody was released before
    (entry,) = ReleaseLedger.read(Path("seepage-ledger.json")).entries
    kept = entry.about["guesses"]["distance"]
    assert kept["ill"] == pytest.approx(mu, rel=0.02)
    assert kept["ill"] >= mu * (1 - 1e-9)
    assert kept["age"] is None  # a number is not guessed
    second = release(f"--sigma={SIGMA}", "--l2=0.01", *limits)
    ledger = second["ledger"]
    both = math.sqrt(2) * mu
    assert ledger["gain"] == pytest.approx(norm.cdf(both / 2) - 0.5, rel=0.02)
    assert ledger["tpr"] == pytest.approx(norm.cdf(norm.ppf(0.01) + both), rel=0.05)
    gates = {gate["name"]: gate for gate in second["gates"]}
    gain, tpr = (gates[f"--max-guess-{what}"] for what in ("gain", "tpr"))
    assert (gain["measured"], tpr["measured"]) == (ledger["gain"], ledger["tpr"])
    assert (gain["passed"], tpr["passed"]) == (False, True)
    assert not second["released"]
    for gate in (gain, tpr):
        assert "Over all releases in the ledger, including this one, a" in gate["text"]
    # With more noise there is room for both.
    third = release("--sigma=2", "--l2=0.01", *limits)
    assert third["released"], third["gates"]


@pytest.mark.parametrize(
    ("numbers", "gain"),
    [
        ({"epsilon": 0.1}, None),  # ε of leaving out counts twice for another value
        ({"epsilon": 0.1, "delta": 0.01}, None),
        ({"mu": 0.1}, 0.5),  # a distance of leaving out says nothing of another value
        ({"mu": np.inf, "epsilon": np.inf}, 0.5),
        ({"eta": 0.2}, None),
    ],
)
def test_what_else_was_recorded_counts(release, numbers, gain):
    age, ill = table()
    people = {"age": age, "ill": np.where(ill, "yes", "no")}
    sp.LedgerFile().record(people, "training run", **numbers)
    told = release("--sigma=2", "--max-guess-gain=1", "--max-guess-tpr=1")
    (_, entry) = ReleaseLedger.read(Path("seepage-ledger.json")).entries
    mu = entry.about["guesses"]["distance"]["ill"]
    if gain is None:
        epsilon, delta = 2 * numbers.get("epsilon", 0.0), numbers.get("delta", 0.0)
        q = math.exp(epsilon) / (1 + math.exp(epsilon))
        delta *= 1 + math.exp(numbers.get("epsilon", 0.0))
        shift = math.log(q / (1 - q)) / mu
        right = q * norm.cdf(mu / 2 + shift) + (1 - q) * norm.cdf(mu / 2 - shift)
        gain = delta + (1 - delta) * right - 0.5
    assert told["ledger"]["gain"] == pytest.approx(gain)


def test_a_column_that_had_no_part_tells_nothing():
    loss = GuessLoss({"ill": 0.3, "job": math.inf}, 0.4, 0.01)
    kept = json.loads(json.dumps(loss.as_json(), allow_nan=False))
    assert kept["distance"] == {"ill": 0.3, "job": None}

    class Entry:
        about = {"guesses": kept}  # noqa: RUF012

    assert GuessLoss.of(Entry, "ill") == GuessLoss({"ill": 0.3}, 0.4, 0.01)
    assert GuessLoss.of(Entry, "job").distance == {"job": math.inf}
    assert GuessLoss.of(Entry, "cost").distance == {"cost": 0.0}
