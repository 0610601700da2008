"""The verdict on an audit, which compares its numbers with the limits, in plain words.

The verdict consists of a headline, answers to frequent questions, and a few sentences that need no
prior knowledge. This module selects the sentences; the templates contain their wording.
"""

from __future__ import annotations

from collections.abc import Iterator

from seepage.auditing.decision.presets import PRESETS
from seepage.auditing.findings import (
    LEFT_OUT,
    NOT_MEASURED,
    ONE_PERSON,
    AttributeFinding,
    Audit,
    DisclosureCheck,
    LedgerFinding,
    Remedy,
    RemedyKind,
)
from seepage.auditing.questions import MAX_GUESS_GAIN, MAX_GUESS_TPR, MAX_MEMBERSHIP
from seepage.auditing.report.rendering import tell
from seepage.auditing.report.words import (
    MANY,
    ONE,
    Answer,
    Verdict,
    capital,
    compared,
    count_over,
    count_recognised,
    error_at,
    find_limit,
    limit_on,
    most_exposed,
    number,
    number_of,
    percent,
    protection,
    short,
    spread_kept_of,
    usefulness,
    whom,
)
from seepage.core.result import SAME
from seepage.tables.names import listed


def judge(audit: Audit) -> Verdict:
    """Return the verdict on an audit."""
    over, limit = count_over(audit), find_limit(audit)
    failed = [gate for gate in audit.gates if not gate.passed]
    useful, word = usefulness(audit, audit.sigma), compared(audit, audit.sigma)
    # Less than a quarter of its advantage over a constant prediction is hardly useful.
    useless = useful is not None and useful < 0.25
    if failed:
        tone, label = "bad", "Over the limit"
        which = f"{len(failed)} of the {len(audit.gates)} limits you set"
        which = "the limit you set" if len(audit.gates) == 1 else which
        headline = f"Do not release: {which} {'is' if len(failed) == 1 else 'are'} exceeded."
    elif _leaks_more(audit):
        tone, label = "caution", "Above " + limit.words
        total = audit.records.count
        who = f"{over:,} of {number_of(total, audit.unit)}"
        if over == total > 1:
            who = f"All {number_of(total, audit.unit)}"
        headline = f"{who} {'leaks' if over == 1 else 'leak'} more than {limit.words} allows."
    elif audit.risks is None:
        tone, label = "caution", "Membership not measured"
        who = "person" if audit.unit == ONE_PERSON else "row"
        headline = (
            f"No {ONE[audit.unit]} leaks more than {limit.words} allows, but the membership risk "
            f"was not measured for any {who}."
        )
    else:
        within = "target" if audit.noise.how == "target" else "default limits"
        tone, label = "good", f"Within the {'limits' if audit.gates else within}"
        headline = _tell_within(audit)
    exposed = _stands_out(audit)
    if exposed and tone == "good":
        tone, label, headline = "caution", "Over the default limit", f"{exposed}."
    if audit.published_as_it_is and not failed:
        headline = tell("as_it_is", audit, tone == "good")
        tone, label = "caution", f"{label} with noise" if tone == "good" else label
    worse, private = warn_of_constant(audit), tone == "good"
    if worse and private:
        tone, label = "caution", f"{label}, but {_COMPARED[word]}"
        headline = f"{headline} {worse}"
    elif word == NOT_MEASURED and private:
        tone, label = "caution", f"{label}, but usefulness not measured"
    elif useless and private:
        tone, label = "caution", "Private, but of little use"
        headline = headline[:-1] + ", but with this noise, the model is of little use."
    return Verdict(
        tone,
        label,
        headline,
        tuple(filter(None, _explain(audit))),
        tuple(Answer(question, text) for question, text in _answers(audit) if text),
        tuple((gate, tell("gate", audit, gate)) for gate in audit.gates),
        tuple((remedy.name, tell("remedy", audit, remedy)) for remedy in audit.remedies),
    )


# A model that is not better than a constant prediction, in a label
_COMPARED = {"not told apart": "no better than a constant", "worse": "worse than a constant"}


def meets_limits(audit: Audit) -> bool:
    """Return whether a release is within the caller's limits and the default limits."""
    if _leaks_more(audit) or _stands_out(audit):
        return False
    return all(gate.passed for gate in audit.gates)


def _leaks_more(audit: Audit) -> bool:
    """Return whether a record exceeds the limit on η, if the caller set one or no risk is known."""
    named = any(gate.name == "--max-eta" for gate in audit.gates)
    return (audit.risks is None or named or audit.noise.has_target) and count_over(audit) > 0


def _tell_within(audit: Audit) -> str:
    """Return the largest risks of a release that is within the limits, in a sentence."""
    risks = audit.risks
    assert risks is not None  # noqa: S101 - the caller has looked
    membership = limit_on(audit, "--max-membership", MAX_MEMBERSHIP)
    gain, most = limit_on(audit, "--max-guess-gain", MAX_GUESS_GAIN), risks.worst_guess
    guessed = ""
    if most is not None:
        guessed = f"; guesses gain {100 * most.gain:.3g} points at most (limit {100 * gain:g})"
    numbers = [a for a in most_exposed(audit.attributes) if spread_kept_of(a) is not None]
    if most is None and numbers:
        guessed = f"; {_narrowed(numbers[0])}"
    return (
        f"No {ONE[audit.unit]} is recognised more than {percent(risks.recognised)} of the time "
        f"(limit {percent(membership)}){guessed}."
    )


def _narrowed(column: AttributeFinding) -> str:
    """Return how precisely a number is estimated, with and without the release, as a clause."""
    kept = spread_kept_of(column) or 0.0
    return (
        f"“{short(column.name)}” is estimated to within ±{number(kept * column.spread)} at best, "
        f"±{number(column.spread)} without the release"
    )


def _stands_out(audit: Audit) -> str:
    """Return a sentence about the risks that exceed the caller's limits or the default limits."""
    risks = audit.risks
    if risks is None:
        return ""
    membership = limit_on(audit, "--max-membership", MAX_MEMBERSHIP)
    gain, most = limit_on(audit, "--max-guess-gain", MAX_GUESS_GAIN), risks.worst_guess
    least = gain * (1 + SAME)
    if over := count_recognised(audit, membership):
        total = audit.records.examined or audit.records.count
        who = f"{over:,} of {number_of(total, audit.unit)}"
        if total < audit.records.count:
            who = f"At least {over:,} of {number_of(audit.records.count, audit.unit)}"
        who = f"{who} can be recognised as members"
        if over == 1 and total == audit.records.count:
            who = f"{capital(whom(audit, risks.recognised_row))} can be recognised as a member"
        guessed = ""
        if most is not None and most.gain > least:
            guessed = f"; guesses gain {100 * most.gain:.3g} points"
        return (
            f"{who}, up to {percent(risks.recognised)} of the time "
            f"(limit {percent(membership)}, chance 50 %){guessed}"
        )
    if most is not None and most.gain > least:
        return (
            f"“{short(most.name)}” of {whom(audit, most.row, most.unit)} is guessed right "
            f"{percent(most.right)} of the time, {percent(most.baseline)} without the release "
            f"(limit on the gain: {100 * gain:g} percentage points)"
        )
    rate, told = limit_on(audit, "--max-guess-tpr", MAX_GUESS_TPR), risks.told_best
    if told is not None and told.tpr is not None and told.tpr > rate * (1 + SAME):
        return (
            f"“{short(told.name)}” of {whom(audit, told.tpr_row or 0, told.unit)} can be "
            f"recognised: true positive rate {percent(told.tpr)} at a 1 % false positive rate "
            f"(limit {percent(rate)})"
        )
    # What is not a category is not guessed: a number that is estimated closely counts as well.
    numbers = (a for a in most_exposed(audit.attributes) if a.kind == "numeric")
    weak = next((a for a in numbers if protection(a) == "weak"), None)
    if weak is not None and count_over(audit):
        return f"{_narrowed(weak)} ({whom(audit, weak.easiest_row)})"
    return ""


def _answers(audit: Audit) -> Iterator[tuple[str, str]]:
    """Yield the answers to a privacy officer's questions."""
    people = audit.unit == ONE_PERSON
    yield f"Is any {'person' if people else 'row'} at risk?", tell("membership", audit)
    yield "And for an attacker who knows fewer records?", tell("outsider", audit)
    yield "Who is most at risk?" if people else "Which row is most at risk?", tell("who", audit)
    guesses = () if audit.risks is None else audit.risks.guesses
    by_prior = {(g.name, g.prior): g for g in guesses}
    sensitive = {a.name for a in audit.attributes if a.sensitive}
    others = [g for g in guesses if g.name != audit.target]
    others = [g for g in others if g.name in sensitive] or others
    own = (by_prior.get((audit.target, prior)) for prior in ("model", "frequencies"))
    text = tell("guesses", audit, *own, others)
    numbers = tuple(a for a in audit.attributes if a.kind == "numeric")
    numbers = tuple(a for a in numbers if a.sensitive) or numbers
    if numbers and (not text or numbers[0].sensitive):
        text = f"{text} {tell('closest', audit, most_exposed(numbers)[0])}".strip()
    yield "How often would an attacker be right, with and without this release?", text
    yield "What would help?", _tell_fixes(audit)
    error = error_at(audit, audit.sigma)
    if error is not None:
        changed = [r for r in audit.remedies if name_change(audit, r) and r.error is not None]
        yield "What does protection cost?", tell("costs", audit, error, changed)


def _explain(audit: Audit) -> Iterator[str]:
    """Yield the reasons for the verdict, as leakage η and least errors."""
    yield tell("limit", audit)
    yield tell("worst_record", audit)
    yield tell("label", audit)
    sensitive = tuple(a for a in audit.attributes if a.sensitive)
    among = "the columns marked as sensitive" if sensitive else "all columns"
    for attribute in most_exposed(sensitive or audit.attributes)[:1]:
        yield tell("attribute", audit, attribute, among)
    error = error_at(audit, audit.sigma)
    if error is not None:
        yield tell("usefulness", audit, error)
    if audit.usefulness is not None:
        yield tell("advantage", audit)


def _tell_fixes(audit: Audit) -> str:
    named = [(name_change(audit, remedy), remedy.no_better) for remedy in audit.remedies]
    changes = [change for change, useless in named if change and not useless]
    useless = " or ".join(change for change, useless in named if change and useless)
    exposed = _stands_out(audit)
    if not (exposed or count_over(audit)):
        if audit.published_as_it_is:
            return (
                f"Noise: with σ = {audit.sigma:.3g} the release stays within "
                f"{find_limit(audit).words}."
            )
        text = f"Nothing needs to be changed to stay within {find_limit(audit).words}"
        if changes:
            text += (
                f". {'This change' if len(changes) == 1 else 'Each of these changes'} would also "
                "stay within it: "
            )
            text += ", or ".join(changes)
        return f"{text}."
    if not changes and not useless:
        if count_over(audit):
            return ""
        who = "person" if audit.unit == ONE_PERSON else "row"
        return (
            f"More noise protects the most exposed {who}; with --max-membership or "
            "--max-guess-tpr, the audit states how much."
        )
    aim = "the target" if audit.noise.has_target else "the default limit, η = 1"
    aim = f"every {ONE[audit.unit]} within {aim}{' and the limits on risks' if exposed else ''}"
    if not changes:
        return (
            f"None of the remedies tried is useful. {capital(useless)} would bring {aim}, but the "
            "model would be no better than a constant prediction."
        )
    listed = changes[0] if len(changes) == 1 else f"{', '.join(changes[:-1])}, or {changes[-1]}"
    ending = "it brings" if len(changes) == 1 else "each of these brings"
    text = f"{capital(listed)}: {ending} {aim}."
    if useless:
        text += (
            f" {capital(useless)} would do the same, but the model would be no better than a "
            "constant prediction."
        )
    return text


def name_change(audit: Audit, remedy: Remedy) -> str:
    """Return a remedy in a few words; empty if it does not help or is not needed."""
    if remedy.reason is not None or not remedy.reaches_target or remedy.sigma is None:
        return ""
    noise = f"σ = {remedy.sigma:.3g}"
    if remedy.kind == RemedyKind.WEIGHTS:
        return f"reweighting that evens out the leakage (with {noise})"
    taken = {RemedyKind.NOISE: f"{noise} instead of {audit.sigma:.3g}"}
    if remedy.l2 is not None:
        penalty = f"λ = {remedy.l2:.3g} instead of {audit.l2:.3g}"
        taken |= {RemedyKind.PENALTY: penalty, RemedyKind.COMBINATION: f"{penalty}, with {noise}"}
    if remedy.kind not in taken or not (count_over(audit) or _stands_out(audit)):
        return ""
    return f"{remedy.name} ({taken[remedy.kind]})"


def warn_of_constant(audit: Audit) -> str:
    """Return a sentence if the noisy model is no better than a constant prediction."""
    found = audit.usefulness
    if found is None or found.compared == "better":
        return ""
    return tell("constant", audit, error_at(audit, audit.sigma), found)


def tell_steps(audit: Audit) -> tuple[str, ...]:
    """Return sentences about the processing of the data, the ledger and disclosed figures."""
    sentences, curve = list(audit.steps), audit.curve
    if audit.preset is not None:
        sentences.append(
            f"Limits you did not set come from the preset {audit.preset} (recipients: "
            f"{PRESETS[audit.preset].audience}). Its values are seepage's recommendations, not law."
        )
    if audit.codes:
        sentences.append(tell("codes", audit))
    if not curve.held_out:
        sentences.append(
            "No model could be fitted without the held-out records, so the tested model was fitted "
            "on them too."
        )
    elif curve.l2 is not None and curve.l2 != audit.l2:
        sentences.append(
            f"The privacy–utility curve was computed with λ = {curve.l2:g}, because the "
            "training rows of a split do not determine a model without a penalty."
        )
    if audit.risks_reason:
        sentences.append(tell("not_measured", audit))
    if audit.ledger is not None:
        sentences.extend(tell_ledger(audit.ledger))
    if audit.disclosures is not None:
        sentences.extend(tell_disclosures(audit.disclosures))
    return tuple(sentences)


def tell_ledger(ledger: LedgerFinding) -> list[str]:
    """Return sentences about the ledger's entries for the records, with warnings for the owner."""
    sentences = list(ledger.doubts)
    if ledger.known:
        sentences.append(
            f"{number_of(ledger.known, ledger.unit)} {'was' if ledger.known == 1 else 'were'} in "
            "earlier releases recorded in the ledger. Over all releases, including this one, the η "
            f"of {'this' if ledger.known == 1 else 'each'} {ONE[ledger.unit]} is at most "
            f"{ledger.eta:.4g}."
        )
        sentences.append(tell("promise", ledger))
    return sentences


def tell_disclosures(check: DisclosureCheck) -> list[str]:
    """Return the result of the check of the most exposed records, and what to do."""
    if check.everything and not check.found:
        return [
            f"Leaving out or replacing one of the most exposed {MANY[check.unit]} changed no "
            "published figure in any of the cases tried."
        ]
    if check.everything:
        figures = {figure for found in check.found for figure in found.figures}
        who = "the person of row" if check.unit == ONE_PERSON else "row"
        single = (
            f"Figures that disclose {who} {found.row} ({found.change}): {listed(found.figures)}."
            for found in check.found[:20]  # the most exposed come first
        )
        return [tell("disclosed", figures, check.rows(), check.unit), *single]
    changed: dict[str, set[int]] = {}
    for found in check.found:
        if "σ" in found.figures:
            kind = LEFT_OUT if found.change == LEFT_OUT else "given other values from the table"
            changed.setdefault(kind, set()).add(found.row)
    # A record may be the only one of its class, which the release names.
    rows = check.rows("classes")
    unit = check.unit
    sentences = [tell("other_noise", check.checked, changed, unit)] if changed else []
    return [*sentences, tell("alone", rows, unit)] if rows else sentences
