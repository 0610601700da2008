"""The verdict: what the audit means, in a headline and a few sentences that need no background."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from seepage.auditing.measures.findings import AttributeFinding, Findings
from seepage.auditing.report.exposure import (
    count_over,
    error_at,
    find_limit,
    most_exposed,
    usefulness,
)
from seepage.auditing.report.wording import count, counted, number, short

_UNEVEN = 1.25  # a group that leaks a quarter more than another is worth a sentence
_HARDLY_USEFUL = 0.25  # of the model's advantage over a constant prediction


@dataclass(frozen=True)
class Verdict:
    """The answer in words.

    Parameters
    ----------
    tone
        ``good``, ``caution`` or ``bad``: the colour of the box; ``label`` says it in words.
    label, headline
        What kind of answer it is, and the answer.
    sentences
        What stands behind it, one sentence each.
    """

    tone: str
    label: str
    headline: str
    sentences: tuple[str, ...]


def judge(audit: Findings) -> Verdict:
    """Return the verdict on an audit."""
    over, limit = count_over(audit), find_limit(audit)
    failed = [gate for gate in audit.gates if not gate.passed]
    useful = usefulness(audit, audit.sigma)
    useless = useful is not None and useful < _HARDLY_USEFUL
    if failed:
        tone, label = "bad", "Over the limit"
        headline = (
            f"Do not release this model as it is: {len(failed)} of "
            f"{counted(len(audit.gates), 'limit')} you set {'is' if len(failed) == 1 else 'are'} "
            "not met."
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
    if useless and not failed and not over:
        tone, label = "caution", "Private, but hardly useful"
        headline = headline[:-1] + ", but the noise leaves little of the model."
    return Verdict(tone, label, headline, _explain(audit))


def _explain(audit: Findings) -> tuple[str, ...]:
    told = [_tell_limit(audit), _tell_worst_record(audit), _tell_label(audit)]
    sensitive = tuple(a for a in audit.attributes if a.sensitive)
    if sensitive:
        told.append(_tell_attribute(most_exposed(sensitive)[0], "the columns you called sensitive"))
    elif audit.attributes:
        told.append(_tell_attribute(most_exposed(audit.attributes)[0], "all columns"))
    told.extend(_tell_groups(audit))
    told.append(_tell_usefulness(audit))
    return tuple(line for line in told if line)


def _tell_limit(audit: Findings) -> str:
    limit = find_limit(audit)
    return (
        "The leakage η of a record says how closely the released numbers give it away: whoever "
        "estimates any one number of it without bias is off by at least 1/η standard deviations "
        "(for a category or class: 1/η of a whole level). "
        f"{limit.words.capitalize()}, η = {number(limit.eta)}, asks for an error of at least "
        f"{number(_inverse(limit.eta))}."
    )


def _tell_worst_record(audit: Findings) -> str:
    row, worst = audit.records.worst()
    if not worst > 0:
        return "The release says nothing about any single record."
    return (
        f"The most exposed record is row {row} (η = {number(worst)}): for an attacker who already "
        "knows everything else, down to the other cells of this row, an error of at least "
        f"{number(_inverse(worst))} remains. For half of the records it is "
        f"{number(_inverse(audit.records.median()))} or more."
    )


def _tell_label(audit: Findings) -> str:
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


def _tell_attribute(attribute: AttributeFinding, among: str) -> str:
    name = short(attribute.name)
    if not np.isfinite(attribute.smallest_error):
        return f"Of {among}, none can be estimated from the release without bias."
    if attribute.kind == "numeric":
        return (
            f"Of {among}, “{name}” is the easiest to attack: no unbiased attacker can pin it down "
            f"to better than ±{number(attribute.smallest_error)} for any record (row "
            f"{attribute.easiest_row}), while it varies by ±{number(attribute.spread)} over the "
            "table."
        )
    reading = (
        "too much for a single release to settle which level it is"
        if attribute.smallest_error >= 0.5
        else "small enough that a single release may well settle which level it is"
    )
    return (
        f"Of {among}, “{name}” is the easiest to attack: no unbiased attacker's error is below "
        f"±{number(attribute.smallest_error)} of a whole level (row {attribute.easiest_row}), "
        f"{reading}."
    )


def _tell_groups(audit: Findings) -> list[str]:
    if not audit.groupings:
        return []
    uneven = max(audit.groupings, key=lambda grouping: grouping.ratio)
    column = short(uneven.column)
    if uneven.ratio < _UNEVEN:
        return ["Leakage is spread about evenly over the groups you named."]
    return [
        f"Protection is uneven: by “{column}”, the records of “{short(uneven.least_protected)}” "
        f"leak {number(uneven.ratio)} times as much on average as those of "
        f"“{short(uneven.most_protected)}”."
    ]


def _tell_usefulness(audit: Findings) -> str:
    curve, error = audit.curve, error_at(audit, audit.sigma)
    if error is None:
        return ""
    name = short(curve.error_name, 80)
    return (
        f"The noise costs accuracy: on records held out from fitting, the {name} goes "
        f"from {number(curve.noiseless_error)} to {number(error)}; always giving the same answer "
        f"would make it {number(curve.trivial_error)}."
        if error > curve.noiseless_error * 1.01
        else f"The noise costs next to nothing: on records held out from fitting, the "
        f"{name} stays at {number(error)}."
    )


def _inverse(eta: float) -> float:
    return 1 / eta if eta > 0 else float("inf")
