"""What is said of a category holds for every record, however rare its value, and in chunks too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy.special import ndtr, ndtri, softmax

import seepage.auditing.command as command
from seepage.auditing.audit import RISKS, audit_table
from seepage.auditing.findings import Audit, GuessFinding
from seepage.auditing.gates import held_to
from seepage.auditing.intake.table import TableInMemory, encode, plan_columns
from seepage.auditing.questions import Limits, Question
from seepage.auditing.report.rendering import tell
from seepage.auditing.report.verdict import judge

N, SIGMA, L2 = 150, 0.3, 1e-3
WARDS, SITES = "abcd", ["main", *sorted(f"s{k}" for k in range(12))]
TRIED = 20  # the most exposed records, of whom alone the largest rate was known before


def wards() -> pa.Table:
    """Costs of 150 stays; four on ward d, where the first is told best.

    The sites of two patients each are more exposed, so it is not among the 20 most exposed.
    """
    rng = np.random.default_rng(3)
    ward = np.array(list("abc") * 48 + ["a", "b"] + ["d"] * 4)
    site = np.array([f"s{k // 2}" for k in range(24)] + ["main"] * 126)
    noise = rng.normal(0, 0.3, N)
    noise[146:] = [1.5, -0.5, -0.5, -0.5]
    noise[60] = 2.0
    age = rng.normal(50, 10, N)
    return pa.table({"age": age, "site": site, "ward": ward, "cost": noise + 0.3 * age})


def refitted() -> np.ndarray:
    """Return the releases with every ward for every stay, over σ, by least squares, (n, 4, d)."""
    table = wards().to_pandas()
    age = table["age"].to_numpy()
    features = [(age - age.mean()) / age.std()]
    features += [(table["site"] == s).to_numpy(float) for s in SITES[1:]]
    at = len(features)
    features += [(table["ward"] == w).to_numpy(float) for w in WARDS[1:]]
    X = np.stack([*features, np.ones(N)], axis=1)
    d, y = X.shape[1], table["cost"].to_numpy()
    penalty = np.sqrt(N * L2) * np.eye(d)[:-1]
    found = np.empty((N, len(WARDS), d))
    for row in range(N):
        for k in range(len(WARDS)):
            other = X.copy()
            other[row, at : at + 3] = np.eye(4)[k, 1:]
            stacked = np.vstack([other, penalty]), np.r_[y, np.zeros(d - 1)]
            found[row, k] = np.linalg.lstsq(*stacked, rcond=None)[0] / SIGMA
    return found


@pytest.fixture(scope="module")
def places() -> np.ndarray:
    return refitted()


@pytest.fixture(scope="module")
def audit() -> Audit:
    table = TableInMemory(wards())
    plan = plan_columns(table, "cost", sensitive=["ward"])
    return audit_table(encode(table, plan), name="wards", l2=L2, sigma=SIGMA, effort=RISKS)


def guess_of(audit: Audit, name: str) -> GuessFinding:
    assert audit.risks is not None
    (guess,) = (g for g in audit.risks.guesses if g.name == name)
    return guess


def widest(places: np.ndarray) -> np.ndarray:
    return np.linalg.norm(places[:, :, None] - places[:, None], axis=3).max(axis=(1, 2))


def gains(places: np.ndarray, prior: np.ndarray) -> Iterator[float]:
    """Yield what the release adds to the best guess for each record, by drawing releases."""
    rng = np.random.default_rng(0)
    for some in places:
        truth = rng.choice(len(prior), 20_000, p=prior)
        seen = some[truth] + rng.standard_normal((20_000, some.shape[1]))
        # ‖seen − place‖² up to what all places share
        scores = seen @ some.T - np.sum(some**2, axis=1) / 2
        right = softmax(np.log(prior) + scores, axis=1).max(axis=1).mean()
        yield float(right - prior.max())


def test_the_rates_of_a_rare_value_are_the_largest_of_all_records(
    audit: Audit, places: np.ndarray
) -> None:
    mu, guess = widest(places), guess_of(audit, "ward")
    best = int(mu.argmax())
    assert best == 146
    assert best not in audit.records.most(TRIED).place
    assert (guess.tpr_row, guess.looked_at) == (best, N)
    assert guess.mu == pytest.approx(mu[best], rel=1e-6)
    assert guess.tpr == pytest.approx(ndtr(ndtri(0.01) + mu[best]), rel=1e-5)
    assert guess.tpr_strict == pytest.approx(ndtr(ndtri(0.001) + mu[best]), rel=1e-5)
    assert guess.even == pytest.approx(ndtr(mu[best] / 2), rel=1e-6)
    told = tell("guesses", audit, None, None, [guess])
    assert f"(row {best}, the largest for any record)" in told


def test_no_record_gains_more_than_is_stated(audit: Audit, places: np.ndarray) -> None:
    guess, prior = guess_of(audit, "ward"), np.array([49, 49, 48, 4]) / N
    gained = np.array(list(gains(places, prior)))
    assert guess.gain >= gained.max() - 0.005  # draws
    assert guess.gain == pytest.approx(gained.max(), abs=0.01)
    assert guess.row == gained.argmax()
    assert guess.median_right >= np.median(gained) + prior.max() - 0.005


def test_categories_of_many_levels_have_a_limit(audit: Audit) -> None:
    guess = guess_of(audit, "site")
    assert (guess.levels, guess.looked_at) == (13, N)
    assert guess.baseline <= guess.right <= 1


def test_the_same_in_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, places: np.ndarray
) -> None:
    folder = tmp_path / "wards"
    folder.mkdir()
    for part, start in enumerate(range(0, N, 50)):
        pq.write_table(wards().slice(start, 50), folder / f"{part}.parquet")
    monkeypatch.setattr("seepage.auditing.trained_model.MOST_TAKEN", 0)
    question = Question(table=folder, target="cost", l2=L2, sigma=SIGMA)
    guess = guess_of(command.answer(question, effort=RISKS), "ward")
    assert guess.looked_at == N
    assert guess.tpr_row == 146
    assert guess.mu == pytest.approx(widest(places).max(), rel=1e-6)


def test_a_gate_on_the_rate_names_the_noise_that_is_enough(audit: Audit) -> None:
    guess = guess_of(audit, "ward")
    (gate,) = held_to(Limits(max_guess_tpr=0.1), audit).gates
    assert (gate.passed, gate.where, gate.rows) == (False, "site", (gate.rows[0],))
    assert gate.measured is not None
    assert gate.enough is not None
    assert gate.measured >= (guess.tpr or 0)
    assert f"σ = {gate.enough:g} would be enough" in tell("gate", audit, gate)
    table = TableInMemory(wards())
    encoded = encode(table, plan_columns(table, "cost"))
    calm = audit_table(encoded, name="wards", l2=L2, sigma=gate.enough, effort=RISKS)
    (now,) = held_to(Limits(max_guess_tpr=0.1), calm).gates
    assert now.passed
    assert judge(audit).tone != "good"
