"""Remedies: what each takes, brings and costs, by refits with scikit-learn and normal integrals."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cache

import numpy as np
import pyarrow as pa
import pytest
from scipy.stats import norm
from sklearn.linear_model import LogisticRegression
from statsmodels import datasets

from seepage.auditing.audit import Effort, audit_table, beside_figures
from seepage.auditing.findings import Audit, Remedy, RemedyKind
from seepage.auditing.intake.table import TableInMemory, encode, plan_columns
from seepage.auditing.questions import Limits
from seepage.auditing.remedies import KINDS, Protection, with_noise
from seepage.auditing.report.audit_report import AuditReport
from seepage.auditing.report.rendering import tell
from seepage.auditing.report.verdict import name_change

ROWS, RNG = 60, np.random.default_rng(3)
X = RNG.normal(size=(ROWS, 3))
X = (X - X.mean(axis=0)) / X.std(axis=0)
Y = (X[:, 0] + RNG.logistic(size=ROWS) > 0).astype(int)
GRID = sorted(float(f"{m}e{k}") for k in range(-6, 5) for m in (1, 1.5, 2, 3, 5, 7))
TRIED = Effort(refits=False, remedies=("noise", "penalty", "combination"))


@cache
def audited(sigma: float, limits: Limits | None = None) -> Audit:
    columns = {name: X[:, j] for j, name in enumerate("abc")} | {"ill": Y.astype(bool)}
    table = TableInMemory(pa.table(columns))
    encoded = encode(table, plan_columns(table, "ill"))
    return audit_table(encoded, name="t", l2=0.01, sigma=sigma, limits=limits, effort=TRIED)


def fitted(features: np.ndarray, labels: np.ndarray, total: float) -> np.ndarray:
    """The coefficients and the intercept for a penalty of ``total``/2 times their squares."""
    model = LogisticRegression(C=1 / total, tol=1e-12, max_iter=10_000).fit(features, labels)
    return np.r_[model.coef_[0], model.intercept_]


@cache
def truth(l2: float, sigma: float) -> tuple[float, float, float]:
    """Membership, the largest gain and true positive rate, from a refit for every record."""
    total, whole = ROWS * l2, fitted(X, Y, ROWS * l2)
    without = [fitted(np.delete(X, i, 0), np.delete(Y, i), total) for i in range(ROWS)]
    member = max(np.linalg.norm(theta - whole) for theta in without) / sigma
    gains, apart, share = [], [], Y.mean()
    for i in range(ROWS):
        other = Y.copy()
        other[i] = 1 - Y[i]
        mu = float(np.linalg.norm(fitted(X, other, total) - whole)) / sigma
        apart.append(mu)
        model = 1 / (1 + np.exp(-np.r_[X[i], 1] @ without[i]))
        for p in (share, model):
            shift = np.log(p / (1 - p)) / mu
            right = p * norm.cdf(mu / 2 + shift) + (1 - p) * norm.cdf(mu / 2 - shift)
            gains.append(right - max(p, 1 - p))
    return norm.cdf(member / 2), max(gains), norm.cdf(norm.ppf(0.01) + max(apart))


def of_kind(audit: Audit, kind: str) -> Remedy:
    return next(remedy for remedy in audit.remedies if remedy.kind == kind)


@pytest.mark.parametrize("kind", ["noise", "penalty", "combination"])
def test_the_protection_of_a_remedy_is_at_least_that_of_refits(kind: str) -> None:
    """Never less than the truth, and not far above it."""
    remedy = of_kind(audited(0.1), kind)
    l2 = 0.01 if remedy.l2 is None else remedy.l2
    membership, gain, tpr = truth(l2, remedy.sigma)
    assert remedy.reaches_target
    assert membership - 1e-6 <= remedy.membership <= membership + 0.01
    assert gain - 1e-6 <= remedy.gain <= 1.5 * gain
    assert tpr - 1e-6 <= remedy.tpr <= 1.1 * tpr


def test_more_noise_reaches_the_membership_that_was_asked_and_not_by_far() -> None:
    free, tight = (audited(0.1, Limits(max_membership=limit)) for limit in (None, 0.52))
    noise, calm = of_kind(free, "noise"), of_kind(tight, "noise")
    assert calm.sigma > noise.sigma
    assert truth(0.01, calm.sigma)[0] <= 0.52
    below = GRID[GRID.index(calm.sigma) - 1]
    assert truth(0.01, below)[0] > 0.52
    assert calm.reaches_target
    # The intercept is not penalised, so that no penalty is enough for this.
    penalty = of_kind(tight, "penalty")
    assert (penalty.reason, penalty.l2, penalty.reaches_target) == ("no penalty", 1000.0, False)
    assert 0.52 < truth(1000.0, 0.1)[0] <= penalty.membership
    assert "even with λ = 1000, membership inference succeeds up to" in tell(
        "remedy", tight, penalty
    )
    both = of_kind(tight, "combination")
    assert truth(both.l2, both.sigma)[0] <= 0.52


def test_a_met_leakage_with_a_recognised_row_still_asks_for_noise() -> None:
    """The leakage alone was met, and the remedy was noise for half of it."""
    audit = audited(1.0, Limits(max_membership=0.505))
    assert audit.meets_target
    noise = of_kind(audit, "noise")
    assert noise.membership <= 0.505 < audit.risks.membership
    assert noise.sigma > 2.0


@pytest.mark.parametrize("times", [0.5, 2.0, 10.0])
def test_risks_with_other_noise_are_upper_limits_of_those_measured_with_it(times: float) -> None:
    """By refits at the other noise; membership and the true positive rate are exact."""
    risks = audited(0.5).risks
    scaled = with_noise(replace(risks, curve=None), 0.5, 0.5 * times)
    membership, gain, tpr = truth(0.01, 0.5 * times)
    assert scaled.membership == pytest.approx(membership, abs=1e-5)
    assert scaled.told_best.tpr == pytest.approx(tpr, abs=1e-5)
    assert scaled.worst_guess.gain >= gain - 1e-6
    assert with_noise(risks, 0.5, 0.5) is risks


def test_a_remedy_by_noise_has_the_gain_of_the_slider_and_both_are_those_of_refits() -> None:
    """The closed form for every prior alone is up to three times as large."""
    audit = audited(0.1)
    noise = of_kind(audit, "noise")
    (place,) = np.flatnonzero(audit.risks.curve.sigma == noise.sigma)
    curve = audit.risks.curve
    assert noise.gain == pytest.approx(curve.right[place] - curve.baseline[place], rel=1e-12)
    assert noise.gain == pytest.approx(truth(0.01, noise.sigma)[1], abs=2e-5)
    assert noise.membership == pytest.approx(curve.membership[place], rel=1e-12)
    closed = with_noise(replace(audit.risks, curve=None), 0.1, noise.sigma).worst_guess.gain
    assert closed > 1.3 * noise.gain
    # Between two noises of the curve as with the smaller one, which gains more.
    between = with_noise(audit.risks, 0.1, 1.01 * noise.sigma).worst_guess.gain
    assert between <= noise.gain
    assert truth(0.01, 1.01 * noise.sigma)[1] - 1e-6 <= between


def test_figures_beside_the_release_count_with_other_noise_too() -> None:
    """They did not: a remedy looked better than what its release would have been."""
    risks = beside_figures(audited(0.5).risks, 0.3)
    scaled, bare = with_noise(risks, 0.5, 5.0), with_noise(audited(0.5).risks, 0.5, 5.0)
    # With so much noise little but the figures tells anything: odds of e^ε at even odds.
    alone = 1 / (1 + np.exp(-0.3))
    assert scaled.membership > alone > bare.membership
    assert scaled.told_best.tpr > bare.told_best.tpr
    assert scaled.worst_guess.gain > bare.worst_guess.gain


def test_remedies_are_in_the_order_of_their_error_and_useless_ones_last() -> None:
    audit = audited(0.001)
    useful = [
        (not r.reaches_target, r.error)
        for r in audit.remedies
        if r.error is not None and not r.no_better
    ]
    assert useful == sorted(useful)
    useless = [r.no_better for r in audit.remedies]
    assert useless == sorted(useless)


def test_every_kind_is_told_by_its_own_name_and_only_noise_as_more_noise() -> None:
    audit = audited(0.001)
    start = Remedy(
        kind=RemedyKind.NOISE, sigma=0.3, l2=0.1, rounds=3, public=40, eta=0.9, error=0.2,
        constant=0.4, membership=0.6, gain=0.1, reaches_target=True,
    )  # fmt: skip
    told = {}
    for kind in RemedyKind:
        remedy = replace(start, kind=kind)
        told[kind] = (tell("remedy", audit, remedy), name_change(audit, remedy))
        assert ("more noise" in told[kind][1]) == (kind == RemedyKind.NOISE)
        assert "Membership inference then succeeds up to 60 %" in told[kind][0]
    assert len({text for text, _ in told.values()}) == len(told)
    # A kind without a sentence of its own is told by its name.
    assert told[RemedyKind.REFITS][0].startswith("Refitting (with σ = 0.3)")
    assert set(KINDS) == set(RemedyKind) - {RemedyKind.REFITS}


def test_what_is_not_known_is_not_reached_by_its_absence_but_said() -> None:
    asked = Protection.asked(1.0, Limits(max_membership=0.6))
    assert (asked.membership, asked.gain) == (0.6, Protection(1.0).gain)
    unknown = Remedy(kind=RemedyKind.WEIGHTS, sigma=1.0, rounds=2, eta=0.9, error=0.1)
    assert asked.reached(unknown)
    # Where the risks of the release are known, what is not known of a remedy is not met.
    assert not asked.reached(unknown, audited(1.0).risks)
    known = replace(unknown, membership=0.55, gain=0.1, tpr=0.02)
    assert asked.reached(known, audited(1.0).risks)
    assert not asked.reached(replace(known, gain=None), audited(1.0).risks)
    assert not asked.reached(replace(unknown, eta=None))
    assert not asked.reached(replace(unknown, membership=0.61))
    assert not asked.reached(replace(unknown, gain=0.3))
    assert not asked.reached(replace(unknown, tpr=0.6))
    told = tell("remedy", audited(1.0), unknown)
    assert "Membership and attribute inference were not measured for this remedy." in told
    assert name_change(audited(1.0), unknown) == ""


def test_the_json_has_every_field_of_a_remedy() -> None:
    told = AuditReport(audited(0.1)).summary()["remedies"]
    assert {"compared", "name", "text", "change"} < set(told[0])
    assert {field.name for field in fields(Remedy)} < set(told[0])
    assert told[0]["kind"] in {"noise", "penalty", "combination"}


@pytest.mark.slow
def test_a_penalty_with_its_noise_beats_either_alone_on_the_table_of_affairs() -> None:
    """statsmodels' fair: noise, a penalty or weights alone cost more than the two together."""
    frame = datasets.fair.load_pandas().data
    frame["affair"] = frame.pop("affairs") > 0
    table = TableInMemory(pa.Table.from_pandas(frame, preserve_index=False))
    encoded = encode(table, plan_columns(table, "affair"))
    effort = Effort(refits=False, risks=False)
    audit = audit_table(encoded, name="fair", sigma=0.005, effort=effort)
    first = audit.remedies[0]
    assert first.kind == RemedyKind.COMBINATION
    assert first.reaches_target
    assert first.error < 0.278
    others = [remedy.error for remedy in audit.remedies[1:] if remedy.error is not None]
    assert first.error < min(others)
