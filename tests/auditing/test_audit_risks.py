"""The risks of an audit: probabilities as the views tell them, in sentences, badges and gates."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

import seepage as sp
from seepage.auditing.audit import QUICK, audit_table
from seepage.auditing.findings import AttributeFinding, Audit, Remedy, RemedyKind, UsefulnessFinding
from seepage.auditing.gates import check_limits, held_to
from seepage.auditing.intake.table import TableInMemory, encode, plan_columns
from seepage.auditing.questions import Limits
from seepage.auditing.report import to_json
from seepage.auditing.report.audit_report import AuditReport
from seepage.auditing.report.rendering import tell
from seepage.auditing.report.verdict import judge, tell_steps
from seepage.auditing.report.words import in_100, percent, protection
from seepage.auditing.tradeoff import split


def people_table() -> TableInMemory:
    rng = np.random.default_rng(0)
    age = rng.normal(50, 10, 120)
    smokes = rng.choice(["no", "yes"], 120)
    ill = age / 20 + (smokes == "yes") + rng.logistic(size=120) > 3
    return TableInMemory(
        pa.table({"age": age, "smokes": smokes, "ill": np.where(ill, "ill", "well")})
    )


@pytest.fixture(scope="module")
def audit() -> Audit:
    table = people_table()
    plan = plan_columns(table, "ill")
    return audit_table(encode(table, plan), name="people", l2=0.05, sigma=0.2)


@pytest.mark.slow
def test_they_are_what_the_views_tell(audit: Audit) -> None:
    risks = audit.risks
    assert risks is not None
    assert risks.exact
    assert risks.looked_at == 120
    assert 0.5 < risks.median <= risks.membership < 1
    names = {(g.name, g.prior) for g in risks.guesses}
    assert names == {("ill", "frequencies"), ("ill", "model"), ("smokes", "frequencies")}
    for guess in risks.guesses:
        assert guess.right >= guess.baseline
        assert guess.gain == pytest.approx(guess.right - guess.baseline)


def test_without_refits_the_most_exposed_record_is_known_to_half_a_point(
    audit: Audit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With no budget for refits intervals are said by their upper ends, or narrowed if wide."""
    monkeypatch.setattr("seepage.auditing.audit._EXACT_WORK", 0.0)
    table = people_table()
    encoded = encode(table, plan_columns(table, "ill"))
    found = audit_table(encoded, name="people", l2=0.05, sigma=0.2, effort=QUICK).risks
    assert found is not None
    assert audit.risks is not None
    assert not found.exact
    assert -1e-9 <= found.membership - audit.risks.membership <= 0.005
    for guess, truth in zip(found.guesses, audit.risks.guesses, strict=True):
        assert -1e-9 <= guess.right - truth.right <= 0.005


def test_five_questions_are_answered_first_in_times_in_100(audit: Audit) -> None:
    answers = {answer.question: answer.text for answer in judge(audit).answers}
    assert list(answers) == [
        "Is any row at risk?",
        "Which row is most at risk?",
        "How often would an attacker be right, with and without this release?",
        "What would help?",
        "What does protection cost?",
    ]
    risks = audit.risks
    assert risks is not None
    anyone, who, sure, _, cost = answers.values()
    assert f"up to {in_100(risks.membership)} % of the time (chance: 50 %)" in anyone
    assert f"row {risks.row}" in who.lower()
    for guess in risks.guesses:
        assert f"{in_100(guess.right)} %" in sure
        assert in_100(guess.baseline) in sure
    assert "from all other records" in sure
    assert "“smokes”" in sure
    assert f"{100 * audit.curve.noiseless_error:.1f} % without noise" in cost
    assert not any("η" in text for text in answers.values())
    assert "most common value" in sure


def test_what_would_fix_it_comes_with_its_price(audit: Audit) -> None:
    advice = Remedy(kind=RemedyKind.NOISE, sigma=2.0, error=0.325, reaches_target=True)
    weights = Remedy(kind=RemedyKind.WEIGHTS, sigma=3.0, rounds=5, reason="no gain")
    over = replace(audit, sigma=1.0, target_eta=1e-3, remedies=(advice, weights))
    answers = {answer.question: answer.text for answer in judge(over).answers}
    assert answers["What would help?"].startswith("More noise (σ = 2 instead of 1): it brings")
    assert "32.5 % with more noise" in answers["What does protection cost?"]
    assert "reweighting" not in answers["What does protection cost?"]


def test_badges_follow_the_gain_and_not_the_error_in_levels(audit: Audit) -> None:
    by_name = {a.name: a for a in audit.attributes}
    assert by_name["age"].gain is None
    column = by_name["smokes"]
    assert column.gain is not None
    level = AttributeFinding("c", "boolean", 1.0, 1.2, 0, 2.0, 0.5)
    assert protection(replace(level, gain=0.04)) == "strong"
    assert protection(replace(level, gain=0.15)) == "partial"
    assert protection(replace(level, gain=0.30)) == "weak"


def test_somebody_who_stands_out_is_in_the_headline(audit: Audit) -> None:
    risks = audit.risks
    assert risks is not None
    plain = _compared(replace(audit, target_eta=1e9), 0.1, 0.3)
    calm = replace(plain, risks=replace(risks, membership=0.6, guesses=()))
    assert judge(calm).tone == "good"
    seen = replace(plain, risks=replace(risks, membership=0.9, guesses=()))
    assert judge(seen).tone == "caution"
    assert judge(seen).label == "Over the default limit"
    assert "a member, up to 90 % of the time (limit 75 %, chance 50 %)" in judge(seen).headline
    allowed = replace(seen, gates=held_to(Limits(max_membership=0.95), seen).gates)
    assert judge(allowed).tone == "good"
    unknown = replace(plain, risks=None)
    assert (judge(unknown).tone, judge(unknown).label) == ("caution", "Membership not measured")


def test_gates_hold_the_probabilities_to_limits(audit: Audit) -> None:
    risks = audit.risks
    assert risks is not None
    worst = max(guess.gain for guess in risks.guesses)
    loose = held_to(Limits(max_membership=0.999, max_guess_gain=0.99), audit).gates
    assert [gate.passed for gate in loose] == [True, True]
    tight = held_to(Limits(max_membership=0.501, max_guess_gain=worst / 2), audit).gates
    assert [gate.passed for gate in tight] == [False, False]
    assert tight[0].measured == risks.membership
    assert f"σ = {tight[0].enough:g} would be enough" in tell("gate", audit, tight[0])
    assert tight[1].measured == pytest.approx(worst)
    numbers = replace(audit, risks=replace(risks, guesses=()))
    (gate,) = held_to(Limits(max_guess_gain=0.01), numbers).gates
    assert gate.passed
    assert gate.measured == 0.0
    assert tell("gate", numbers, gate) == "There is no class or category to guess."


def test_limits_that_mean_nothing_are_refused(audit: Audit) -> None:
    with pytest.raises(sp.InputError, match=r"above 0\.5 .chance"):
        check_limits(Limits(max_membership=0.3), False)
    with pytest.raises(sp.InputError, match="above 0 and up to 1"):
        check_limits(Limits(max_guess_gain=2.0), False)
    with pytest.raises(sp.InputError, match=r"cannot be checked\. Membership and attribute"):
        held_to(Limits(max_membership=0.9), replace(audit, risks=None))


def test_sentences_about_rows_speak_of_rows(audit: Audit) -> None:
    """A person may have several rows: no sentence of an audit says more than its unit allows."""
    verdict = judge(audit)
    told = " ".join([*verdict.sentences, *(f"{a.question} {a.text}" for a in verdict.answers)])
    assert "Membership inference by an attacker who knows all other records succeeds up to" in told
    seen = replace(audit, target_eta=1e9)
    texts = [
        told,
        judge(seen).label,
        judge(seen).headline,
        AuditReport(audit).texts()["model-card.md"],
        to_json(audit),
    ]
    texts += [*tell_steps(audit), AuditReport(audit).page(())]
    people = r"\b(persons?|somebody|someone|nobody|who was in|the people|similar people)\b"
    for text in texts:
        assert not re.search(people, text, re.I)


@pytest.mark.parametrize(
    ("probability", "words"),
    [
        (0.0, "0"),
        (0.0004, "nearly 0"),
        (0.4996, "nearly 50"),
        (0.5, "50"),
        (0.502, "50.2"),
        (0.69, "69"),
        (0.9997, "nearly 100"),
        (1.0, "100"),
    ],
)
def test_a_probability_is_never_rounded_to_certainty_or_a_coin(
    probability: float, words: str
) -> None:
    assert in_100(probability) == words
    assert percent(0.9995) == "nearly 100 %"


def test_a_model_that_cannot_be_told_from_a_constant_is_not_called_useful(audit: Audit) -> None:
    judged = audit.usefulness
    assert judged is not None
    assert judged.low < judged.advantage < judged.high
    risks = audit.risks
    assert risks is not None
    calm = replace(audit, target_eta=1e9, risks=replace(risks, membership=0.6, guesses=()))
    useless = _compared(calm, -0.02, 0.04)
    assert judge(useless).tone == "caution"
    assert "not significantly different from a constant prediction" in judge(useless).sentences[-1]
    assert judge(_compared(calm, 0.1, 0.3)).tone == "good"


def _compared(audit: Audit, low: float, high: float) -> Audit:
    """An audit of a useful model, and the interval of its difference to a constant prediction."""
    found = UsefulnessFinding((low + high) / 2, low, high, 5)
    every = (found,) * len(audit.curve.sigma)
    return replace(audit, curve=replace(audit.curve, trivial_error=0.9, usefulness=every))


def test_held_out_records_have_the_classes_in_proportion() -> None:
    y = np.repeat([0, 1, 2], 50)
    train, test = split(y, classes=True, seed=0)
    assert np.bincount(y[test]).tolist() == [10, 10, 10]
    assert sorted([*train, *test]) == list(range(150))


def test_without_an_intercept_differential_privacy_applies() -> None:
    table = people_table()
    encoded = encode(table, plan_columns(table, "ill"), drop_first=False)
    found = audit_table(encoded, name="people", l2=0.05, sigma=0.2, intercept=False)
    assert not found.intercept
    assert any("without an intercept" in step for step in found.steps)
    assert found.guarantees is not None
    assert all("intercept" not in (line.reason or "") for line in found.guarantees.rows)
    risks = found.risks
    assert risks is not None
    # What a record may move the release by, whoever it is: L/(nλ), here by its own norm.
    norms = np.linalg.norm(np.asarray(encoded.source.X), axis=1)
    assert risks.mu <= norms.max() / (120 * 0.05) / 0.2
