"""model-card.md: a page to paste into a model card or a data-protection impact assessment.

It may leave the house, so it names no record and rounds what depends on the data.
"""

from __future__ import annotations

from seepage.auditing.measures.findings import Findings
from seepage.auditing.report.exposure import count_over, error_at, find_limit, most_exposed
from seepage.auditing.report.wording import count, counted, markdown, number

_SHOWN = 5


def write_card(audit: Findings) -> str:
    """Return the page as Markdown."""
    return "\n".join(
        [
            "# Privacy of the training data",
            "",
            "<!-- Before you publish: the numbers below are rounded, but they were computed from",
            "the training data without noise. Leave out those your reviewer does not need. -->",
            "",
            _what(audit),
            "",
            _protection(audit),
            "",
            *_attributes(audit),
            *_groups(audit),
            *_gates(audit),
            *_usefulness(audit),
            "**What this does and does not cover.** The bounds hold for an attacker who sees the "
            "released numbers once, knows the model family, the penalty and the noise, and every "
            "other record, and whose estimates are unbiased. They do not cover attackers who trade "
            "bias for precision or bring knowledge about similar people, nor membership inference, "
            "nor anything else that leaves (predictions, logs, further releases: leakages of "
            "several releases add up). They are not a differential-privacy guarantee.",
            "",
            f"*Measured with {_versions(audit)}; Fisher information loss (Hannun, Guo and van "
            "der Maaten, 2021).*",
            "",
        ]
    )


def _what(audit: Findings) -> str:
    article = {"linear": "A linear", "poisson": "A Poisson"}.get(audit.model, f"A {audit.model}")
    return (
        f"**Release.** {article} regression of “{markdown(audit.target)}”, fitted to "
        f"{counted(audit.records.count, 'record')} of “{markdown(audit.source)}” with L2 penalty "
        f"λ = {number(audit.l2)}; {counted(audit.released, 'number')} released, each with "
        f"independent Gaussian noise of standard deviation σ = {_round(audit.sigma)}."
    )


def _protection(audit: Findings) -> str:
    over, limit = count_over(audit), find_limit(audit)
    worst, median = audit.records.largest("eta"), audit.records.median()
    told = (
        f"**Protection.** Fisher information loss η of a record: at most {_round(worst)}, "
        f"median {_round(median)}. "
    )
    if over:
        return told + (
            f"{count(over)} of {counted(audit.records.count, 'record')} exceed {limit.words} of "
            f"η = {number(limit.eta)}."
        )
    return told + f"No record exceeds {limit.words} of η = {number(limit.eta)}."


def _attributes(audit: Findings) -> list[str]:
    sensitive = tuple(a for a in audit.attributes if a.sensitive)
    ranked = most_exposed(sensitive or audit.attributes)[:_SHOWN]
    if not ranked:
        return []
    lines = ["| column | no unbiased attack errs by less than | spread of the column |", "|-|-|-|"]
    for a in ranked:
        error, spread = f"±{_round(a.smallest_error)}", f"±{_round(a.spread)}"
        if a.kind != "numeric":
            error, spread = f"{error} of a level", "a whole level"
        lines.append(f"| {markdown(a.name)} | {error} | {spread} |")
    return [*lines, ""]


def _groups(audit: Findings) -> list[str]:
    if not audit.groupings:
        return []
    ratios = "; ".join(
        f"by “{markdown(g.column)}” {_round(g.ratio)} (most for “{markdown(g.least_protected)}”, "
        f"least for “{markdown(g.most_protected)}”)"
        for g in audit.groupings
    )
    return [f"**Groups.** Largest over smallest mean leakage of a group: {ratios}.", ""]


def _gates(audit: Findings) -> list[str]:
    if not audit.gates:
        return []
    told = "; ".join(
        f"{gate.name} {number(gate.limit)}: {'met' if gate.passed else 'not met'}"
        for gate in audit.gates
    )
    return [f"**Limits set beforehand.** {told}.", ""]


def _usefulness(audit: Findings) -> list[str]:
    error, curve = error_at(audit, audit.sigma), audit.curve
    if error is None:
        return []
    return [
        f"**Usefulness.** Held-out {markdown(curve.error_name)}: "
        f"{_round(curve.noiseless_error)} without noise, {_round(error)} as "
        f"released, {_round(curve.trivial_error)} for always giving the same answer.",
        "",
    ]


def _versions(audit: Findings) -> str:
    named = [f"{name} {version}" for name, version in audit.versions.items()]
    return markdown(named[0]) if named else "seepage"


def _round(value: float) -> str:
    """Write two digits: enough for a reader, less than an attacker would like."""
    return number(float(f"{value:.2g}"))
