"""The first screen: its numbers are those of refits by hand, and nothing on it flatters."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from factory import make_audit, make_hostile
from scipy.stats import norm
from screens import L2, SIGMA, audited, encoded, report
from sklearn.linear_model import LogisticRegression

from seepage.auditing.findings import Gate, Remedy, RemedyKind, UsefulnessFinding
from seepage.auditing.report.audit_report import AuditReport, tell_briefly
from seepage.auditing.report.first_screen import show_audit
from seepage.auditing.report.verdict import judge
from seepage.auditing.report.words import count_recognised, percent

pytestmark = pytest.mark.usefixtures("blank_figures")


def fitted(X, y):
    """Return the model without noise; the penalty counts as for all 70 records."""
    model = LogisticRegression(C=1 / (70 * L2), tol=1e-12, max_iter=10_000).fit(X, y)
    return model, np.append(model.coef_, model.intercept_)


@pytest.fixture(scope="module")
def refits():
    """Return how far leaving each out moves the model, how far its other label does, and p.

    The last is the probability of its label that a model of all others predicts.
    """
    X, y = np.asarray(encoded().source.X), (np.asarray(encoded().source.y) == "yes").astype(int)
    here = fitted(X, y)[1]
    without, other, believed = [], [], []
    for k in range(len(y)):
        model, there = fitted(np.delete(X, k, 0), np.delete(y, k))
        without.append(np.linalg.norm(there - here))
        believed.append(model.predict_proba(X[k : k + 1])[0, 1])
        flipped = np.where(np.arange(len(y)) == k, 1 - y, y)
        other.append(np.linalg.norm(fitted(X, flipped)[1] - here))
    return np.array(without), np.array(other), np.array(believed), float(np.mean(y))


def bayes(mu, p):
    """Return how often the best of two guesses is right, by integrating the two densities."""
    x = np.linspace(-12, mu + 12, 4001)
    most = np.maximum(p * norm.pdf(x), (1 - p) * norm.pdf(x, mu))
    return float(np.sum((most[1:] + most[:-1]) * np.diff(x)) / 2)


def test_every_stop_has_the_numbers_of_refits_by_hand(refits):
    without, other, believed, share = refits
    curve = audited().risks.curve
    assert len(curve.sigma) >= 15
    for k, sigma in enumerate(curve.sigma):
        right = norm.cdf(without / sigma / 2)
        assert curve.membership[k] == pytest.approx(right.max(), rel=1e-6)
        assert curve.median[k] == pytest.approx(np.median(right), rel=1e-6)
        gains = []
        for p in (believed, np.full(70, share)):
            baseline = np.maximum(p, 1 - p)
            told = np.array([bayes(mu, q) for mu, q in zip(other / sigma, p, strict=True)])
            worst = int(np.argmax(told - baseline))
            gains.append((told[worst] - baseline[worst], told[worst]))
        assert curve.right[k] - curve.baseline[k] == pytest.approx(max(gains)[0], abs=2e-5)
        assert curve.right[k] == pytest.approx(max(gains)[1], abs=2e-5)


def test_bars_count_people_as_refits_do(refits):
    right = norm.cdf(refits[0] / SIGMA / 2)
    bars = show_audit(audited()).histogram.bars
    edges = np.linspace(0.5, 1, 21)
    assert [bar.count for bar in bars] == np.histogram(right, edges)[0].tolist()
    over = int(np.sum(right > 0.75))
    assert sum(bar.count for bar in bars if bar.over) == over > 0
    assert count_recognised(audited(), 0.75) == over
    assert judge(audited()).headline.startswith(f"{over} of 70 records can be recognised")
    screen = show_audit(audited())
    for stop, sigma in zip(screen.stops, audited().curve.sigma, strict=True):
        seen = np.histogram(norm.cdf(refits[0] / sigma / 2), edges)[0]
        assert stop.counts == tuple(seen.tolist())
        assert np.sum(stop.groups, axis=0).tolist() == seen.tolist()
    # Of the two towns each has its own.
    (name,) = (key for key in audited().members if key[1] == "north")
    north = norm.cdf(refits[0][audited().members[name]] / SIGMA / 2)
    own = screen.stops[screen.own].groups[list(audited().members).index(name)]
    assert own == tuple(np.histogram(north, edges)[0].tolist())


def test_a_limit_of_the_callers_is_the_edge_of_a_bar():
    gate = Gate("--max-membership", 0.62, 0.9, False)
    histogram = show_audit(replace(audited(), gates=(gate,))).histogram
    assert histogram.bars[histogram.line].ends.startswith("62 to ")
    assert histogram.line_words == "limit 62 %"
    over = sum(bar.count for bar in histogram.bars if bar.over)
    assert over == count_recognised(audited(), 0.62)
    every = show_audit(replace(audited(), gates=(replace(gate, limit=1.0),))).histogram
    assert every.line is None
    assert not any(bar.over for bar in every.bars)


def test_who_is_disclosed_is_certain_with_any_noise():
    row = int(audited().records.row[40])
    risks = replace(audited().risks, disclosed=(row,))
    screen = show_audit(replace(audited(), risks=risks))
    plain = show_audit(audited())
    for stop, before in zip(screen.stops, plain.stops, strict=True):
        assert stop.cards[0].value == "100 %"
        assert sum(stop.counts) == 70
        assert stop.counts[-1] >= max(1, before.counts[-1])
    assert screen.stops[-1].counts[-1] == 1
    assert all(line.protection[0] != "✓ yes" for line in screen.remedies.lines)


def test_remedies_come_by_their_error_and_useless_ones_after_a_constant():
    constant = audited().curve.trivial_error
    useful = {
        place: UsefulnessFinding(0.0, low, high, 5)
        for place, low, high in (("better", 0.1, 0.2), ("same", -0.1, 0.1), ("worse", -0.2, -0.1))
    }
    made = [
        Remedy(kind=RemedyKind.WEIGHTS, sigma=0.3, eta=0.9, error=constant * 0.8),
        Remedy(kind=RemedyKind.NOISE, sigma=9.0, eta=0.1, error=constant * 2),
        Remedy(kind=RemedyKind.PENALTY, sigma=0.2, l2=1.0, eta=0.9, error=constant / 2),
        # An error below a constant's by chance does not make it useful.
        Remedy(kind=RemedyKind.COMBINATION, sigma=0.2, l2=3.0, eta=0.9, error=constant / 3),
        Remedy(kind=RemedyKind.SHAPE, reason="slow"),
    ]
    words = ["better", "worse", "better", "same", None]
    made = tuple(
        replace(
            remedy,
            reaches_target=remedy.eta is not None,
            constant=constant,
            usefulness=useful.get(word),
        )
        for remedy, word in zip(made, words, strict=True)
    )
    remedies = show_audit(replace(audited(), remedies=made)).remedies
    names = [line.name.split(" (")[0] for line in remedies.lines]
    assert names == [
        "as it is",
        "more regularisation",
        "reweighting",
        "constant prediction",
        "regularisation and noise",
        "more noise",
    ]
    assert [line.compared for line in remedies.lines[1:]] == [
        "better",
        "better",
        "",
        "not told apart",
        "worse",
    ]
    # Only η is known of the first two: that is not called within the limits.
    assert [line.protection[0] for line in remedies.lines[:3]] == [
        "✕ no",
        "not measured",
        "not measured",
    ]
    assert remedies.note == "1 more remedy did not help or was not tried."


def test_terminal_page_and_slider_say_the_same_of_more_noise(capsys):
    """The terminal had a closed form for every prior, three times the slider's points."""
    remedy = next(r for r in audited().remedies if r.kind == RemedyKind.NOISE)
    (place,) = np.flatnonzero(audited().curve.sigma == remedy.sigma)
    curve = audited().risks.curve
    gain = f"{100 * (curve.right[place] - curve.baseline[place]):.3g} pts"
    screen = show_audit(audited())
    (line,) = (line for line in screen.remedies.lines if line.name.startswith("more noise"))
    assert line.protection[1:] == (percent(curve.membership[place]), gain)
    stop = screen.stops[place]
    assert (stop.cards[0].value, stop.cards[2].value) == (line.protection[1], line.error)
    tell_briefly(AuditReport(audited()), None)
    (printed,) = (
        text for text in capsys.readouterr().out.splitlines() if text.startswith("noise σ")
    )
    assert re.split(r"  +", printed)[2:5] == [*line.protection[1:], line.error]


def test_an_outsiders_number_never_stands_alone():
    card = show_audit(report("outsider").audit).cards[0]
    (line,) = (text for text in card.beside if "outsider" in text)
    assert "(estimate)" in line
    assert "informed attacker: 100 %" in line


def test_what_is_not_known_is_said_and_nothing_is_drawn_of_it():
    unknown = show_audit(make_audit(risks=None))
    assert unknown.open[0] == "membership and guesses"
    assert unknown.histogram is None
    assert (unknown.stops, unknown.figure) == ((), "leakage")
    assert [card.name for card in unknown.cards] == [
        "“age” estimated to within",
        "Error rate, new records",
    ]
    beyond = show_audit(make_audit(sigma=1e9))
    assert "usefulness" in beyond.open
    forest = report("forest").page(())
    assert "Not measured: stronger attacks." in forest
    assert 'type="range"' not in forest
    assert 'type="range"' in report("table").page(())


def test_a_number_that_is_estimated_closely_is_not_green():
    age = make_audit().attributes[0]
    for ratio, tone in ((0.49, "bad"), (0.51, "good")):
        told = replace(age, smallest_error=ratio * age.spread)
        audit = make_audit(attributes=(told,), risks=replace(make_audit().risks, guesses=()))
        (card,) = (card for card in show_audit(audit).cards if "age" in card.name)
        assert card.tone == tone
        assert (judge(audit).tone == "good") == (tone == "good")


@pytest.mark.parametrize("text", ["<b>x</b>", "</script><img src=x onerror=1>", "a" * 500])
def test_names_stay_text(text):
    audit = make_hostile(text, rows=20)
    groups = {(text, text): np.arange(20)}
    mu = np.linspace(0.1, 3, 20)
    audit = replace(audit, records=audit.records.with_membership(mu, None), members=groups)
    page = AuditReport(audit).page(())
    screen = page.split('id="first"')[1].split("<nav")[0]
    assert "<img" not in page
    assert "<b>" not in screen
    assert len(screen) < 30_000
