"""An audit in words: what its numbers mean against the limit that matters, for any reader.

Numbers and names are written short, plain, and harmless whatever the table holds; the verdict is a
headline and a few sentences that need no prior knowledge.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from seepage.auditing.findings import (
    LEFT_OUT,
    ROUNDING,
    WIDEST,
    Advice,
    AttributeFinding,
    Audit,
    DisclosureCheck,
    Gate,
    GuessFinding,
    LedgerFinding,
    RiskFinding,
    no_better,
)
from seepage.auditing.questions import MAX_GUESS_GAIN, MAX_MEMBERSHIP
from seepage.core.result import round_down, round_up
from seepage.tables.names import counted, listed, shown

SHORT = 48  # characters of a name that fit a table cell
LONG = 400  # the most characters of a sentence that quotes a long name
_UNEVEN = 1.25  # a group that leaks a quarter more than another is worth a sentence
_LITTLE_GAIN, _LARGE_GAIN = 0.05, 0.20  # of a guess from the release, as probabilities
_LITTLE_TPR, _LARGE_TPR = 0.10, 0.50  # of telling a level at 1 % false positives
_HARDLY_USEFUL = 0.25  # of the model's advantage over a constant prediction
_FIGURES, _ALONE, _DISCLOSED = 5, 5, 20  # the most figures, rows and changes of rows named
_GATE_FIGURES = 10  # and figures in the sentence of a gate
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
# Controls and lone surrogates cannot be written; direction overrides would turn the page around.
_UNPRINTABLE = {"Cc", "Cs", "Cn", "Co"}
_OVERRIDES = set("\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u2028\u2029")
_MARKDOWN = {c: "\\" + c for c in "\\`*_{}[]#|~!:@$"} | {"<": "&lt;", ">": "&gt;", "&": "&amp;"}


def number(value: float) -> str:
    """Write a number with three digits: ``0.142``, ``12,300``, ``4.2 × 10⁻⁵``, ``∞``."""
    value = float(value)
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value == 0:
        return "0"
    exponent = math.floor(math.log10(abs(value)))
    if -4 < exponent < 6:
        rounded = float(f"{value:.3g}")
        text = f"{rounded:,.0f}" if abs(rounded) >= 100 else f"{rounded:.3g}"
        return text.replace("-", "−")
    mantissa, power = f"{value:.2e}".split("e")
    mantissa = mantissa.rstrip("0").rstrip(".").replace("-", "−")
    return f"{mantissa} × 10{str(int(power)).translate(_SUPERSCRIPT)}"


def count(value: int) -> str:
    """Write a count with thousands separated."""
    return f"{int(value):,}"


def plain(text: object) -> str:
    """Return a caller's name or value as one printable line."""
    safe = "".join(
        " " if c in _OVERRIDES or unicodedata.category(c) in _UNPRINTABLE else c for c in str(text)
    )
    return " ".join(safe.split()) or "(no name)"


def short(text: object, width: int = SHORT) -> str:
    """Return a caller's name or value as one printable line of at most ``width`` characters."""
    line = plain(text)
    return line if len(line) <= width else line[: width - 1].rstrip() + "…"


def row_name(audit: Audit, row: int) -> str:
    """Return what a row is called in the report: its label in the caller's table, or its number."""
    return short(audit.called(row))


def sentence(text: object, width: int = LONG) -> str:
    """Return a sentence that may quote names, shortened if a name made it far too long."""
    return short(text, width)


def markdown(text: object, width: int = SHORT) -> str:
    """Return a caller's name as Markdown that shows it and does nothing else."""
    escaped = "".join(_MARKDOWN.get(c, c) for c in short(text, width))
    # Renderers turn bare addresses, such as www.example.org, into links, but not across an entity.
    return re.sub(r"(?<=\w)\.(?=\w)", "&#46;", escaped)


def at_most(value: float) -> str:
    """Write a figure that depends on the data as the next point of the coarse grid above it."""
    return number(round_up(value)) if np.isfinite(value) and value > 0 else number(value)


def at_least(value: float) -> str:
    """Write it as the next point of the coarse grid below it."""
    return number(round_down(value)) if np.isfinite(value) and value > 0 else number(value)


def bits(value: float) -> str:
    """Write an estimate of bits; below zero counts as zero."""
    return number(round(max(value, 0.0), 3)) if math.isfinite(value) else "–"


def interval(value: float, low: float, high: float) -> str:
    """Write an estimate of bits with its 95 % interval."""
    return f"{bits(value)} ({bits(low)} to {bits(high)})"


@dataclass(frozen=True)
class Limit:
    """The leakage a record should not exceed, and where that number comes from, in words."""

    eta: float
    words: str


def find_limit(audit: Audit) -> Limit:
    """Return the caller's gate, else the target of the calibration, else one standard deviation."""
    for gate in audit.gates:
        if gate.name == "--max-eta":
            return Limit(gate.limit, "your limit")
    if audit.target_eta is not None:
        return Limit(audit.target_eta, "the target")
    return Limit(1.0, "the yardstick")


def count_over(audit: Audit) -> int:
    """Return how many records leak more than the limit."""
    return audit.records.over(find_limit(audit).eta * (1 + ROUNDING))


def relative_error(attribute: AttributeFinding, error: float) -> float:
    """Return an attack's error relative to the natural variation of a column.

    For numbers that is the standard deviation. A category's error is on its one-hot code, where 1
    is a whole level, and stays unchanged.
    """
    if attribute.kind == "numeric" and np.isfinite(attribute.spread) and attribute.spread > 0:
        return float(error / attribute.spread)
    return float(error)


def protection(attribute: AttributeFinding) -> str:
    """Return ``strong``, ``partial`` or ``weak`` for the easiest record of a column.

    For a category, by what the release adds to the best guess: strong up to 5 times in 100, weak
    from 20. A rare level is hardly guessed more often even where it is recognised, so the true
    positive rate of telling it at 1 % false positives counts as well: strong up to 10 %, weak from
    50 %. For a number, strong if the best unbiased attack errs by at least the spread of the
    column, so that a normal prior of that spread keeps 0.71 of it or more; weak if by less than
    half of it.
    """
    if attribute.gain is not None:
        tpr = 0.0 if attribute.tpr is None else attribute.tpr
        if attribute.gain <= _LITTLE_GAIN and tpr <= _LITTLE_TPR:
            return "strong"
        return "partial" if attribute.gain <= _LARGE_GAIN and tpr <= _LARGE_TPR else "weak"
    error = relative_error(attribute, attribute.smallest_error)
    if error >= 1 - ROUNDING:
        return "strong"
    return "partial" if error >= 0.5 else "weak"


def most_exposed(attributes: tuple[AttributeFinding, ...]) -> tuple[AttributeFinding, ...]:
    """Return the attributes from the easiest to attack to the hardest."""
    return tuple(sorted(attributes, key=lambda a: relative_error(a, a.smallest_error)))


def error_at(audit: Audit, sigma: float) -> float | None:
    """Return the model's test error at a noise scale, read off the curve, or None outside it."""
    scales, errors = np.asarray(audit.curve.sigma), np.asarray(audit.curve.error)
    order = np.argsort(scales)
    scales, errors = scales[order], errors[order]
    if not (len(scales) and scales[0] > 0 and scales[0] <= sigma <= scales[-1]):
        return None
    return float(np.interp(np.log(sigma), np.log(scales), errors))


def usefulness(audit: Audit, sigma: float) -> float | None:
    """Return how much of the model's advantage over a constant prediction survives the noise.

    1 is all of it, 0 none, or that there never was any; None if the curve does not say.
    """
    error = error_at(audit, sigma)
    gain = audit.curve.trivial_error - audit.curve.noiseless_error
    if error is None:
        return None
    if no_better(audit.curve.noiseless_error, audit.curve.trivial_error):
        return 0.0
    return float(np.clip((audit.curve.trivial_error - error) / gain, 0, 1))


def warn_of_constant(audit: Audit, sigma: float | None = None) -> str:
    """Say that the noisy model is no better than a constant prediction; nothing if it is.

    The noise is that of the release unless another scale is given.
    """
    error = error_at(audit, audit.sigma if sigma is None else sigma)
    constant = audit.curve.trivial_error
    if error is None or not no_better(error, constant):
        return ""
    return (
        "The model is no better than a constant prediction: on held-out records its "
        f"{short(audit.curve.error_name, 80)} is {say_error(audit, error)}, and a constant "
        f"prediction's {say_error(audit, constant)}."
    )


def say_error(audit: Audit, error: float) -> str:
    """Write an error: a rate in per cent, or a number in the units of the target."""
    return _percent(error) if audit.classes else number(error)


@dataclass(frozen=True)
class Answer:
    """A question that readers ask first, and its answer."""

    question: str
    text: str


@dataclass(frozen=True)
class Verdict:
    """The answer in words: what every report prints, and what a summary says beside its numbers."""

    tone: str  # ``good``, ``caution`` or ``bad``: the colour of the box; ``label`` says it in words
    # The kind of answer, and the answer
    label: str
    headline: str
    sentences: tuple[str, ...]  # the reasons, one sentence each
    answers: tuple[Answer, ...] = ()  # answers to the questions that come before these
    gates: tuple[tuple[Gate, str], ...] = ()  # every limit that was set, and what is said of it
    advice: tuple[tuple[str, str], ...] = ()  # what would help: its name, and a sentence

    @property
    def passed(self) -> bool:
        """Whether every limit that was set is met."""
        return all(gate.passed for gate, _ in self.gates)

    def summary(self) -> dict[str, Any]:
        """Return the verdict and its gates, each with its sentence beside its numbers."""
        return {
            "verdict": {"tone": self.tone, "label": self.label, "headline": self.headline},
            "gates": [asdict(gate) | {"text": text} for gate, text in self.gates],
            "passed": self.passed,
        }


def judge(audit: Audit) -> Verdict:
    """Return the verdict on an audit."""
    over, limit = count_over(audit), find_limit(audit)
    failed = [gate for gate in audit.gates if not gate.passed]
    useful = usefulness(audit, audit.sigma)
    judged = audit.usefulness
    useless = useful is not None and useful < _HARDLY_USEFUL
    # A difference smaller than its interval counts as none.
    useless = useless or (judged is not None and judged.low <= 0)
    if failed:
        tone, label = "bad", "Over the limit"
        headline = (
            f"Do not release this model as it is: {len(failed)} of "
            f"{counted(len(audit.gates), 'limit')} {'is' if len(failed) == 1 else 'are'} exceeded."
        )
    elif over:
        tone, label = "caution", "Above " + limit.words
        total = audit.records.count
        who = f"{count(over)} of {counted(total, 'record')}"
        if over == total > 1:
            who = f"All {counted(total, 'record')}"
        headline = f"{who} {'gives' if over == 1 else 'give'} away more than {limit.words} allows."
    else:
        tone, label = "good", "Within the limits" if audit.gates else "Within " + limit.words
        headline = f"No record gives away more than {limit.words} allows."
    exposed = _stands_out(audit)
    if exposed and not failed and not over:
        tone, label, headline = "caution", "Over the default limit", f"{exposed}."
    elif audit.risks is None and not failed and not over:
        tone, label = "caution", "Membership not measured"
        headline = f"{headline[:-1]}, but whether a row can be recognised was not measured."
    worse, private = warn_of_constant(audit), tone == "good"
    if worse and not failed and not over:
        tone, label = "caution", f"{label}, {'but' if private else 'and'} useless"
        headline = f"{headline} {worse}"
    elif useless and private:
        tone, label = "caution", "Private, but hardly useful"
        headline = headline[:-1] + ", but the noise leaves little of the model."
    return Verdict(
        tone,
        label,
        headline,
        _explain(audit),
        _answer(audit),
        tuple((gate, tell_gate(audit, gate)) for gate in audit.gates),
        tuple((remedy.name, tell_remedy(audit, remedy)) for remedy in audit.remedies),
    )


def _stands_out(audit: Audit) -> str:
    """Say who is recognised or guessed beyond the limits, the caller's or the default ones."""
    risks = audit.risks
    if risks is None:
        return ""
    set_by_caller = {gate.name: gate.limit for gate in audit.gates}
    membership = set_by_caller.get("--max-membership", MAX_MEMBERSHIP)
    if risks.recognised > membership * (1 + ROUNDING):
        return (
            f"Row {row_name(audit, risks.recognised_row)} can be recognised: membership inference "
            f"succeeds up to {percent(risks.recognised)} of the time (limit {percent(membership)}, "
            "chance 50 %)"
        )
    gain = set_by_caller.get("--max-guess-gain", MAX_GUESS_GAIN)
    most = risks.worst_guess
    if most is not None and most.gain > gain * (1 + ROUNDING):
        return (
            f"“{short(most.name)}” of row {row_name(audit, most.row)} is guessed right "
            f"{percent(most.right)} of the time, {percent(most.baseline)} without the release "
            f"(limit {100 * gain:g} percentage points more)"
        )
    return ""


def percent(probability: float) -> str:
    """Write a probability in per cent, never rounded to certainty, impossibility or chance."""
    if probability in (0.0, 0.5, 1.0):
        return f"{100 * probability:.0f} %"
    if probability > 0.9995:
        return "nearly 100 %"
    if probability < 0.0005:
        return "nearly 0 %"
    rounded = f"{100 * probability:.3g}"
    return f"nearly {rounded} %" if rounded == "50" else f"{rounded} %"


def in_100(probability: float) -> str:
    """Write a probability as times in 100, never rounded to certainty or to a coin toss."""
    if probability in (0.0, 0.5, 1.0):
        return f"{100 * probability:.0f}"
    if probability > 0.999:
        return "nearly 100"
    rounded = f"{100 * probability:.0f}"
    return f"{100 * probability:.1f}" if rounded in ("50", "100", "0") else rounded


def _answer(audit: Audit) -> tuple[Answer, ...]:
    """Return the answers to a privacy officer's questions, in times in 100 if known."""
    told = [
        Answer("Is any row at risk?", _tell_membership(audit)),
        Answer("Which one?", " ".join([_tell_who(audit), *_tell_groups(audit)])),
        Answer("How sure could an attacker be, with this release and without?", _tell_sure(audit)),
        Answer("What would fix it?", _tell_fixes(audit)),
        Answer("What does protection cost?", _tell_costs(audit)),
    ]
    return tuple(answer for answer in told if answer.text)


def _tell_membership(audit: Audit) -> str:
    over, total, limit = count_over(audit), audit.records.count, find_limit(audit)
    who = f"{'all' if over == total else count(over) + ' of'} {counted(total, 'record')}"
    step = _inverse(limit.eta)
    share = "" if step == 1 else f"{number(step)} × "
    close = (
        f"be estimated, without systematic error, more closely than {share}its standard deviation "
        f"(for a category: {share or 'one '}whole level)"
    )
    told = [f"No row's values leak beyond {limit.words}: no value of any record can {close}."]
    if over:
        told = [f"Yes: for {who}, some value can {close}, which {limit.words} forbids."]
    risks = audit.risks
    if risks is None:
        told.append(tell_not_measured(audit))
    else:
        some = "" if risks.looked_at == total else f" of the {count(risks.looked_at)} looked at"
        told.append(
            "As for membership, an attacker who has all the other records is right about whether a "
            f"row is in the table at most {in_100(risks.membership)} times in 100 (a coin toss: "
            f"50), and {in_100(risks.median)} times or fewer for half of the records{some}."
        )
        if risks.disclosed:
            told.append(
                f"But for {counted(len(risks.disclosed), 'row')} of those tried, the first of them "
                f"row {row_name(audit, risks.disclosed[0])}, membership is certain: a published "
                "figure would be another without it."
            )
    return " ".join(told)


def _tell_who(audit: Audit) -> str:
    row, worst = audit.records.worst()
    if not worst > 0:
        return "The release says nothing about any single record."
    counted = " (counted from 0)" if audit.labels is None else ""
    told = f"Row {row_name(audit, row)}{counted} gives away most about its values"
    if audit.risks is not None and audit.risks.row == row:
        told += ", and is the easiest to recognise as in the table"
    elif audit.risks is not None:
        easiest = row_name(audit, audit.risks.row)
        told += f"; row {easiest} is the easiest to recognise as in the table"
    return f"{told}."


def _tell_sure(audit: Audit) -> str:
    guesses = () if audit.risks is None else audit.risks.guesses
    told = []
    by_prior = {(g.name, g.prior): g for g in guesses}
    predicted = by_prior.get((audit.target, "model"))
    own = by_prior.get((audit.target, "frequencies"))
    if predicted is not None:
        told.append(
            f"An attacker who knows everything else about row {row_name(audit, predicted.row)}, "
            f"and predicts its “{short(predicted.name)}” from all other records, is right "
            f"{in_100(predicted.right)} times in 100 with the release and "
            f"{in_100(predicted.baseline)} times without, the largest difference for any record; "
            f"for half of the records it is {in_100(predicted.median_baseline)} times or more even "
            "without."
        )
    if own is not None:
        told.append(
            "An attacker who starts from the commonest answer instead is right up to "
            f"{in_100(own.right)} times with the release (row {row_name(audit, own.row)}; for half "
            f"of the records {in_100(own.median_right)} times or fewer) and "
            f"{in_100(own.baseline)} times without."
        )
    sensitive = {a.name for a in audit.attributes if a.sensitive}
    others = [g for g in guesses if g.name != audit.target]
    others = [g for g in others if g.name in sensitive] or others
    if others:
        most = max(others, key=lambda guess: guess.gain)
        tried = (
            "all records"
            if most.looked_at == audit.records.count
            else f"the {count(most.looked_at)} most exposed records"
        )
        told.append(
            f"“{short(most.name)}” is guessed right {in_100(most.right)} times in 100 at most "
            f"with the release (row {row_name(audit, most.row)}; {tried} were tried), and "
            f"{in_100(most.baseline)} times without it, by the commonest answer."
        )
        told.append(_tell_recognised(audit, others))
    if audit.model == "linear":
        told.append(_tell_numeric_label(audit))
    numbers = tuple(a for a in audit.attributes if a.kind == "numeric")
    numbers = tuple(a for a in numbers if a.sensitive) or numbers
    if numbers and (not told or any(a.sensitive for a in numbers)):
        told.append(_tell_number(audit, most_exposed(numbers)[0]))
    return " ".join(line for line in told if line)


def _tell_recognised(audit: Audit, guesses: Sequence[GuessFinding]) -> str:
    """Say how well a level is recognised with few false alarms, however rare it is."""
    known = [(g.tpr, g.tpr_row, g) for g in guesses if g.tpr is not None and g.tpr_row is not None]
    if not known:
        return ""
    tpr, row, guess = max(known, key=lambda entry: entry[0])
    return (
        f"At a false positive rate of 1 %, the true positive rate for “{short(guess.name)}” is up "
        f"to {_percent(tpr)} (row {row_name(audit, row)}, of the {count(guess.looked_at)} tried)."
    )


def _tell_number(audit: Audit, attribute: AttributeFinding) -> str:
    name, row = short(attribute.name), row_name(audit, attribute.easiest_row)
    if not np.isfinite(attribute.smallest_error):
        return f"“{name}” of a record cannot be estimated from the release."
    error, spread = attribute.smallest_error, attribute.spread
    told = f"An unbiased estimate of “{name}” is off by ±{number(error)} at best (row {row})"
    kept = spread_kept_of(attribute)
    if kept is None:
        return f"{told}."
    return (
        f"{told}; its standard deviation is ±{number(spread)}. To first order, a normal prior of "
        f"that width narrows to ±{number(kept * spread)}, {_share(kept)} of it."
    )


def _tell_numeric_label(audit: Audit) -> str:
    largest = audit.records.largest("eta_label")
    if not largest > 0:
        return ""
    return (
        f"An unbiased estimate of “{short(audit.target)}” is off by {number(1 / largest)} standard "
        "deviations at best. To first order, a normal prior of one standard deviation narrows to "
        f"{_share(spread_kept(1 / largest))} of it."
    )


def _share(kept: float) -> str:
    """Write a share that is never rounded to all of it."""
    return number(kept) if kept < 0.9995 else "more than 0.999"


def spread_kept(ratio: float) -> float:
    """Return the posterior deviation over the prior one, ``1/√(1 + 1/r²)``, of a normal prior.

    ``r`` is the error of the best unbiased estimate over the deviation of the prior: information
    adds up, ``1/post² = 1/prior² + 1/error²``.
    """
    return float(1 / np.hypot(1, 1 / ratio)) if ratio > 0 else 0.0


def spread_kept_of(attribute: AttributeFinding) -> float | None:
    """Return the posterior deviation over the spread of a column of numbers, for its worst record.

    ``None`` for categories, and for columns without a spread.
    """
    if attribute.kind != "numeric" or not attribute.spread > 0:
        return None
    return spread_kept(attribute.smallest_error / attribute.spread)


def _tell_fixes(audit: Audit) -> str:
    named = [(name_change(audit, remedy), remedy.useless) for remedy in audit.remedies]
    changes = [change for change, useless in named if change and not useless]
    useless = " or ".join(change for change, useless in named if change and useless)
    if not count_over(audit):
        told = f"Nothing needs to be changed to stay within {find_limit(audit).words}"
        if _stands_out(audit):
            told += (
                "; more noise protects the row that stands out (--max-membership and "
                "--max-guess-gain say how much it takes)"
            )
        if changes:
            told += f". {'Another way' if len(changes) == 1 else 'Other ways'} to stay within it: "
            told += ", or ".join(changes)
        return f"{told}."
    if not changes:
        if not useless:
            return ""
        return (
            f"Nothing that was tried. {useless[0].upper()}{useless[1:]} would bring every record "
            f"within {_aim(audit)}, but leaves a model no better than a constant prediction."
        )
    listed = changes[0] if len(changes) == 1 else f"{', '.join(changes[:-1])}, or {changes[-1]}"
    ending = "it brings" if len(changes) == 1 else "each of these brings"
    told = f"{listed[0].upper()}{listed[1:]}: {ending} every record within {_aim(audit)}."
    if useless:
        told += f" So would {useless}, but with an error no smaller than a constant prediction's."
    return told


def _aim(audit: Audit) -> str:
    return "the target" if audit.target_eta is not None else "one standard deviation (η = 1)"


def _tell_costs(audit: Audit) -> str:
    curve = audit.curve
    error = error_at(audit, audit.sigma)
    if error is None:
        return ""
    tried = [
        f"{say_error(audit, remedy.error)} with {remedy.name}"
        + (" (useless)" if remedy.useless else "")
        for remedy in audit.remedies
        if name_change(audit, remedy) and remedy.error is not None
    ]
    name = short(curve.error_name, 80)
    told = (
        f"On records that the model has not seen, the {name} is {say_error(audit, error)} now; it "
        f"would be {say_error(audit, curve.noiseless_error)} without noise, and "
        f"{say_error(audit, curve.trivial_error)} for a constant prediction"
    )
    return f"{told}. Changed as above: {', '.join(tried)}." if tried else f"{told}."


def name_change(audit: Audit, remedy: Advice) -> str:
    """Say what to do in a few words; nothing if it does not help, or is not needed."""
    if remedy.reason is not None or not remedy.reaches_target or remedy.sigma is None:
        return ""
    if remedy.rounds is not None:
        return f"reweighting, to even out the leakage (with σ = {remedy.sigma:.3g})"
    if audit.meets_target or remedy.public is not None:
        return ""
    taken = f"σ = {remedy.sigma:.3g} instead of {audit.sigma:.3g}"
    if remedy.l2 is not None:
        taken = f"λ = {remedy.l2:.3g} instead of {audit.l2:.3g}"
    return f"{remedy.name} ({taken})"


def tell_remedy(audit: Audit, remedy: Advice) -> str:
    """Say what a remedy takes and what it costs, or why it does not help."""
    told = _tell_tried(audit, remedy) if remedy.sigma is not None else _tell_not_tried(remedy)
    if remedy.useless and remedy.constant is not None:
        told += f" Useless: a constant prediction's is {say_error(audit, remedy.constant)}."
    return told


def _tell_not_tried(remedy: Advice) -> str:
    """Say why a remedy was not tried, and how to have it tried if possible."""
    weights = "Weights that even out the leakage were not tried:"
    return {
        "large": "Other penalties and weights were not tried: fitting a table this large is slow.",
        "slow": f"{weights} so many refits would be slow; ask for them with --remedies weights.",
        "unknown": f"{weights} what choosing them would itself give away is computed for linear "
        f"and logistic models of up to {WIDEST} standardised features only.",
    }.get(remedy.reason or "", f"Another fit could not be tried: {remedy.problem}")


def _tell_tried(audit: Audit, remedy: Advice) -> str:
    sigma, target = f"σ = {remedy.sigma:.3g}", f"η = {_target(audit):.3g}"
    enough = audit.sigma if audit.calibrated_sigma is None else audit.calibrated_sigma
    error = math.nan if remedy.error is None else remedy.error
    cost = f"the {short(audit.curve.error_name, 80)} on held-out records is then "
    cost += say_error(audit, error)
    now, plain_noise = (_error_said(audit, scale) for scale in (audit.sigma, enough))
    if remedy.rounds is not None:
        return _tell_weights(remedy, sigma, target, enough, cost)
    if remedy.public is not None:
        told = (
            f"With noise in the shape of a model of the {counted(remedy.public, 'public record')}, "
            f"{remedy.sigma:.3g} times its unit, no record leaks more than {target}; {cost} "
            f"({plain_noise} with plain noise, σ = {enough:.3g})"
        )
        return f"{told}{'.' if remedy.reason is None else ': it does not help here.'}"
    if remedy.l2 is None:
        without = say_error(audit, audit.curve.noiseless_error)
        told = f"With {sigma} instead of {audit.sigma:.3g} no record leaks more than {target}; "
        if audit.meets_target:
            told = (
                f"The target {target} is met. Leakage is inversely proportional to the noise: "
                f"half of it takes {sigma}, and "
            )
        return f"{told}{cost} ({now} at σ = {audit.sigma:.3g}, {without} without noise)."
    if remedy.reason is not None:
        return (
            f"No penalty is enough at {sigma}: even with λ = {remedy.l2:g} the most exposed "
            f"record has η = {remedy.eta:.3g}."
        )
    told = f"With λ = {remedy.l2:.3g} instead of {audit.l2:.3g} the "
    if not audit.meets_target:
        return f"{told}noise {sigma} is enough for {target}; {cost} ({now} now)."
    effect = "only" if remedy.sigma is not None and remedy.sigma < enough else "even"
    return (
        f"{told}target {target} takes {effect} {sigma} (now {enough:.3g}); {cost} "
        f"({plain_noise} now)."
    )


def _tell_weights(remedy: Advice, sigma: str, target: str, enough: float, cost: str) -> str:
    how = (
        "Fitted again with weights that even out the leakage "
        f"({counted(remedy.rounds or 0, 'round')}), "
    )
    counting = "the choice of the weights counted in"
    if remedy.reason is not None:
        return (
            f"{how}the worst record would need {sigma} for {target}, {counting}, instead of "
            f"{enough:.3g}: it does not help here."
        )
    return (
        f"{how}{sigma} instead of {enough:.3g} is enough for {target}, {counting}; {cost}. Do not "
        "publish the weights."
    )


def _target(audit: Audit) -> float:
    return 1.0 if audit.target_eta is None else audit.target_eta


def _error_said(audit: Audit, sigma: float) -> str:
    error = error_at(audit, sigma)
    return "–" if error is None else say_error(audit, error)


def tell_gate(audit: Audit, gate: Gate) -> str:
    """Say how what was measured compares with a limit; records by row, never by value."""
    limit, side = f"{gate.limit:g}", "within" if gate.passed else "over"
    if gate.name == "--max-group-ratio":
        return (
            f"Between the groups of column {gate.where!r} the mean leakage differs by a factor of "
            f"{gate.measured:.4g}, {side} the limit of {limit}."
        )
    if gate.name == "--max-membership":
        return _tell_membership_gate(audit.risks, gate, side)
    if gate.name == "--max-guess-gain":
        return _tell_guess_gate(audit.risks, gate, side)
    if gate.name == "--max-eta":
        within = f"The most exposed record has η = {gate.measured:.4g}"
        over = f"more than η = {limit} (the worst {gate.measured:.4g})"
    else:
        within = (
            f"No unbiased attack has a mean squared error below {gate.measured:.4g} on any record"
        )
        over = (
            f"so much that the mean squared error of an attack may be below {limit} (as low as "
            f"{gate.measured:.4g})"
        )
    if gate.passed:
        return f"{within}, within the limit of {limit}."
    return f"{_tell_over(gate)} {over}; {_tell_enough(gate)}"


def _tell_over(gate: Gate) -> str:
    over, rows = gate.over or 0, ", ".join(map(str, gate.rows))
    if over == 1:
        return f"1 record (row {rows}) leaks"
    more = f" and {over - len(gate.rows):,} more" if over > len(gate.rows) else ""
    return f"{over:,} records (rows {rows}{more}) leak"


def _tell_enough(gate: Gate) -> str:
    return f"σ = {gate.enough:g} would be enough."


def _tell_membership_gate(risks: RiskFinding | None, gate: Gate, side: str) -> str:
    if risks is None or gate.measured is None:
        return "Membership was not measured."
    limit = percent(gate.limit)
    if risks.disclosed:
        return (
            f"Without row {gate.rows[0]} published figures would change "
            f"({', '.join(risks.disclosing[:_GATE_FIGURES])}), so its membership is certain "
            f"({counted(len(risks.disclosed), 'row')} of those tried), {side} the limit of "
            f"{limit}. Through the noisy numbers membership inference succeeds up to "
            f"{percent(risks.membership)} of the time (row {risks.row})."
        )
    told = (
        f"Membership inference succeeds up to {percent(gate.measured)} of the time (row "
        f"{gate.rows[0]}; chance: 50 %), {side} the limit of {limit}."
    )
    if gate.passed:
        return told
    if gate.beside is not None:
        return (
            f"{told} What is drawn beside the noisy numbers (ε = {risks.epsilon:.3g}) allows "
            f"{percent(gate.beside)} by itself: declare the noise with --sigma."
        )
    if gate.enough is None:
        return f"{told} No noise would be enough: without this row the model is not determined."
    return f"{told} {_tell_enough(gate)}"


def _tell_guess_gate(risks: RiskFinding | None, gate: Gate, side: str) -> str:
    if risks is None or gate.measured is None:
        return "Guesses were not measured."
    worst = risks.worst_guess
    if worst is None:
        return "There is no class or category to guess."
    told = (
        f"{shown(worst.name)} of row {worst.row} is guessed right {percent(worst.right)} of the "
        f"time, {percent(worst.baseline)} without the release, "
        f"{side} the limit of {100 * gate.limit:g} percentage points more."
    )
    return told if gate.passed else f"{told} More noise or a larger penalty would lower it."


def tell_not_measured(audit: Audit) -> str:
    """Say that membership and guesses are not known, and why."""
    return f"Membership and guesses were not measured. {audit.risks_reason}".rstrip()


def tell_noise(audit: Audit) -> str:
    """Say why the noise is what it is."""
    noise, how = audit.noise, audit.noise.how
    if how == "given":
        return f"The noise σ = {audit.sigma:.4g} was given."
    if how == "declared":
        return f"The noise σ = {audit.sigma:g} was declared beforehand."
    if how in ("least", "vote"):
        also = " with the earlier releases of the ledger" if noise.with_earlier else ""
        needed = (
            "the least of the coarse grid with which no record leaks more than η = "
            f"{_target(audit):g}{also}"
        )
        if noise.vote is None:
            return (
                f"The noise σ = {audit.sigma:g} is {needed}: it follows the most exposed record, "
                "for there were too few records for a vote, or what a vote could draw was not "
                "enough."
            )
        return (
            f"The noise σ = {audit.sigma:g} was drawn by a vote of blocks of records, with ε = "
            f"{noise.vote.epsilon:g}. That it follows no single record is paid for in noise: "
            f"{needed} is {noise.least:g}. A draw is enough with a probability of "
            f"{noise.vote.probability:.1%}."
        )
    coarse = (
        "It depends on the data, so it was rounded up to a coarse grid (1, 1.5, 2, 3, 5 or 7 times "
        "a power of ten); a σ declared beforehand, with --sigma, does not depend on them."
    )
    if how == "target":
        return (
            f"With the noise σ = {audit.sigma:.4g} no record leaks more than the "
            f"η = {_target(audit):.4g} that was asked for. {coarse}"
        )
    return (
        f"No noise was given, so σ = {audit.sigma:.4g} was chosen, with which no record has more "
        "than η = 1: no unbiased attack on any single number of any record is more precise than "
        f"one standard deviation of its column (for a class or category: a whole level). {coarse}"
    )


def tell_steps(audit: Audit) -> tuple[str, ...]:
    """Say what was done to the data, and what came out beside the leakage, a sentence each."""
    told, curve = list(audit.steps), audit.curve
    if not curve.held_out:
        told.append("No model could be fitted without the held-out records: it saw them all.")
    elif curve.l2 is not None and curve.l2 != audit.l2:
        told.append(
            f"The privacy–utility curve was drawn with λ = {curve.l2:g}: without a "
            "penalty the model is not determined on a part of the rows."
        )
    if audit.risks_reason:
        told.append(tell_not_measured(audit))
    if audit.ledger is not None:
        told.extend(tell_ledger(audit.ledger))
    if audit.disclosures is not None:
        told.extend(tell_disclosures(audit.disclosures))
    return tuple(told)


def tell_ledger(ledger: LedgerFinding) -> list[str]:
    """Say what the ledger knows of the records, and what the owner must know about that."""
    told = list(ledger.doubts)
    if ledger.known:
        told.append(
            f"{counted(ledger.known, 'record was', 'records were')} in earlier releases of the "
            f"ledger: over all of them the most exposed has η = {ledger.eta:.4g} at most."
        )
    return told


def tell_disclosures(check: DisclosureCheck) -> list[str]:
    """Say what the check of the most exposed records found, and what to do about it."""
    if not check.everything:
        return [*_tell_other_noise(check), *_tell_alone(check)]
    if not check.found:
        return [
            "As far as was tried, no published figure would change if one of the most exposed "
            "records were left out or replaced."
        ]
    figures = {figure for found in check.found for figure in found.figures}
    told = (
        f"Disclosed: {counted(len(figures), 'published figure')} would change with single records "
        f"({', '.join(sorted(figures)[:_FIGURES])}), for {counted(len(check.rows()), 'record')} of "
        "those tried; whoever knows all the others learns that for certain. Declared figures "
        "disclose nothing: σ with --sigma, the scaling with --domain. A number of records at the "
        "edge of its grid discloses nothing once a record is left out."
    )
    single = (
        f"Disclosed by row {found.row} {found.change}: {listed(found.figures)}."
        for found in check.found[:_DISCLOSED]
    )
    return [told, *single]


def _tell_other_noise(check: DisclosureCheck) -> list[str]:
    """Say for how many of the most exposed records the coarse σ would change."""
    changed: dict[str, set[int]] = {}
    for found in check.found:
        if "σ" in found.figures:
            kind = LEFT_OUT if found.change == LEFT_OUT else "replaced within their columns"
            changed.setdefault(kind, set()).add(found.row)
    if not changed:
        return []
    told = ", ".join(f"{len(rows)} {change}" for change, rows in changed.items())
    return [
        "Disclosed: σ would be another point of the grid with some of the "
        f"{check.checked} most exposed records changed, one at a time ({told}); whoever knows all "
        "the other records learns that for certain. Declare σ beforehand with --sigma."
    ]


def _tell_alone(check: DisclosureCheck) -> list[str]:
    """Say which records are the only ones of their class, which the release names."""
    rows = check.rows("classes")
    if not rows:
        return []
    more = f" and {len(rows) - _ALONE} more" if len(rows) > _ALONE else ""
    which = f"{', '.join(map(str, rows[:_ALONE]))}{more}"
    are = "row {} is the only record" if len(rows) == 1 else "rows {} are each the only record"
    return [
        f"Disclosed: the release names every class, and {are.format(which)} of its class; whoever "
        "knows all the other records learns for certain that it is there. Merge rare classes, or "
        "leave such records out."
    ]


def _percent(share: float) -> str:
    return f"{share:.1%}"


def _explain(audit: Audit) -> tuple[str, ...]:
    told = [_tell_limit(audit), _tell_worst_record(audit), _tell_label(audit)]
    sensitive = tuple(a for a in audit.attributes if a.sensitive)
    if sensitive:
        told.append(
            _tell_attribute(audit, most_exposed(sensitive)[0], "the columns you called sensitive")
        )
    elif audit.attributes:
        told.append(_tell_attribute(audit, most_exposed(audit.attributes)[0], "all columns"))
    told.append(_tell_usefulness(audit))
    told.append(_tell_advantage(audit))
    return tuple(line for line in told if line)


def _tell_limit(audit: Audit) -> str:
    limit = find_limit(audit)
    return (
        "The leakage η of a record says how closely the released numbers give it away: whoever "
        "estimates any one number of it without bias is off by at least 1/η standard deviations "
        "(for a category or class: 1/η of a whole level). "
        f"{limit.words.capitalize()}, η = {number(limit.eta)}, asks for an error of at least "
        f"{number(_inverse(limit.eta))}."
    )


def _tell_worst_record(audit: Audit) -> str:
    row, worst = audit.records.worst()
    if not worst > 0:
        return "The release says nothing about any single record."
    return (
        f"The most exposed record is row {row_name(audit, row)} (η = {number(worst)}): for an "
        "attacker who already knows everything else, down to the other cells of this row, an error "
        "of at least "
        f"{number(_inverse(worst))} remains. For half of the records it is "
        f"{number(_inverse(audit.records.median()))} or more."
    )


def _tell_label(audit: Audit) -> str:
    label, columns = (audit.records.largest(name) for name in ("eta_label", "eta_features"))
    if max(label, columns) < 2 * min(label, columns) or max(label, columns) == 0:
        return ""
    if label > columns:
        return (
            f"What leaks most is the target, “{short(audit.target)}”: up to η = {number(label)}. "
            f"About the other columns of a record, all together, it is at most {number(columns)}."
        )
    return (
        f"The columns of a record leak up to η = {number(columns)}; its target, "
        f"“{short(audit.target)}”, at most {number(label)}."
    )


def _tell_attribute(audit: Audit, attribute: AttributeFinding, among: str) -> str:
    name, row = short(attribute.name), row_name(audit, attribute.easiest_row)
    if not np.isfinite(attribute.smallest_error):
        return f"Of {among}, none can be estimated from the release without bias."
    if attribute.kind == "numeric":
        return (
            f"Of {among}, “{name}” is the easiest to attack: no unbiased attacker can pin it down "
            f"to better than ±{number(attribute.smallest_error)} for any record (row {row}), while "
            f"it varies by ±{number(attribute.spread)} over the table."
        )
    reading = (
        "too much for a single release to settle which level it is"
        if attribute.smallest_error >= 0.5
        else "small enough that a single release may well settle which level it is"
    )
    return (
        f"Of {among}, “{name}” is the easiest to attack: no unbiased attacker's error is below "
        f"±{number(attribute.smallest_error)} of a whole level (row {row}), "
        f"{reading}."
    )


def _tell_groups(audit: Audit) -> list[str]:
    if not audit.groupings:
        return []
    uneven = max(audit.groupings, key=lambda grouping: grouping.ratio)
    column = short(uneven.column)
    if uneven.ratio < _UNEVEN:
        return [
            f"The groups by “{column}” give away about as much as each other (at most "
            f"{number(uneven.ratio)} times as much on average)."
        ]
    return [
        f"Protection is uneven: by “{column}”, the records of “{short(uneven.least_protected)}” "
        f"give away {number(uneven.ratio)} times as much on average as those of "
        f"“{short(uneven.most_protected)}”."
    ]


def _tell_usefulness(audit: Audit) -> str:
    curve, error = audit.curve, error_at(audit, audit.sigma)
    if error is None:
        return ""
    name = short(curve.error_name, 80)
    said, constant = say_error(audit, error), say_error(audit, curve.trivial_error)
    return (
        f"The noise costs accuracy: on records held out from fitting, the {name} goes "
        f"from {say_error(audit, curve.noiseless_error)} to {said}; "
        f"for a constant prediction it is {constant}."
        if error > curve.noiseless_error * 1.01
        else f"The noise costs next to nothing: on records held out from fitting, the "
        f"{name} stays at {said}; for a constant prediction it is {constant}."
    )


def _tell_advantage(audit: Audit) -> str:
    judged = audit.usefulness
    if judged is None:
        return ""
    name = short(audit.curve.error_name, 80)
    ends = f"95 % CI {number(judged.low)} to {number(judged.high)}"
    if judged.low <= 0:
        return (
            f"Over {judged.splits} train/test splits it is not clearly better than a constant "
            f"prediction: its {name} is {number(judged.advantage)} below that ({ends})."
        )
    return (
        f"Over {judged.splits} train/test splits its {name} is {number(judged.advantage)} below a "
        f"constant prediction's ({ends})."
    )


def _inverse(eta: float) -> float:
    return 1 / eta if eta > 0 else float("inf")
