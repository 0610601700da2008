"""An audit of recorded rounds in words: what was found, since when, who stands out, what to do."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from seepage.auditing.findings import Advice, Gate
from seepage.auditing.report.words import Verdict, number, short
from seepage.layers.federated.gradients import BUFFERS, METRICS
from seepage.layers.layer_audit import LayerRemedy
from seepage.layers.measures.first_round import LEVEL
from seepage.layers.recording_audit import RecordingAudit
from seepage.tables.names import counted

SCHEMA = "seepage-rounds/1"
_NAMED = 4  # layers or clients in a sentence
_LITTLE = 0.05  # of a whole update, below which what remedies leave is not worth a sentence


@dataclass(frozen=True, eq=False)
class RecordingReport:
    """What the report is about.

    Parameters
    ----------
    audit
        What was found.
    source
        The name of the recording.
    property
        That of the property.
    gates
        The limits that were set, and whether they were met.
    values
        By client, the value of the property, if it is to be shown.
    versions
        Versions of the software that computed it.
    """

    audit: RecordingAudit
    source: str
    property: str
    gates: tuple[Gate, ...] = ()
    values: Mapping[str, str] | None = None
    versions: Mapping[str, str] = field(default_factory=dict)


def several(names: list[str] | tuple[str, ...], most: int = _NAMED) -> str:
    """Return names for a sentence; the last of many are only counted."""
    shown = [f"“{short(name)}”" for name in names[:most]]
    if len(names) > most:
        return ", ".join(shown) + f" and {len(names) - most} more"
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)


def interval(value: float, low: float, high: float) -> str:
    """Write an estimate with its 95 % interval; below zero counts as zero."""
    ends = f"{number(round(max(low, 0.0), 3))} to {number(round(max(high, 0.0), 3))}"
    return f"{number(round(max(value, 0.0), 3))} ({ends})"


def untestable(audit: RecordingAudit) -> bool:
    """Return whether there are too few clients for any P-value at the level."""
    return audit.over_rounds is not None and audit.least_p_value() > LEVEL


def judge_recording(report: RecordingReport) -> Verdict:
    """Return the verdict on a recording."""
    audit, what = report.audit, f"“{short(report.property)}”"
    told, apart = audit.telling(), audit.clients.named()
    failed = [gate for gate in report.gates if not gate.passed]
    since = None if audit.over_rounds is None else audit.over_rounds.first()
    if failed:
        tone, label = "bad", "Over the limit"
        headline = f"The updates give away more about {what} than you allow."
    elif told:
        tone, label = "caution", "The property shows"
        headline = (
            f"{counted(len(told), 'layer')} of {len(audit.layers.v_information)} "
            f"{'gives' if len(told) == 1 else 'give'} away {what}"
            f"{'' if since is None else f', the first after round {since}'}."
        )
    elif apart:
        tone, label = "caution", "Not everyone blends in"
        headline = (
            f"{counted(len(apart), 'client')} {'stands' if len(apart) == 1 else 'stand'} out from "
            f"the others (approximate P ≤ 0.05); no layer tells {what} at the 5 % level."
        )
    elif untestable(audit):
        tone, label = "caution", "Too few clients to tell"
        headline = f"There are too few clients to say whether the updates tell {what}."
    else:
        tone, label = "good", "Nothing shows"
        headline = f"No layer tells {what} at the 5 % level, and no client stands out."
    return Verdict(tone, label, headline, _explain(report))


def _explain(report: RecordingReport) -> tuple[str, ...]:
    told = [
        _tell_what_was_seen(report),
        _tell_most(report),
        _tell_when(report),
        _tell_who(report),
        _tell_metrics(report),
    ]
    return tuple(line for line in told if line)


def _tell_what_was_seen(report: RecordingReport) -> str:
    audit = report.audit
    when = "" if audit.rounds is None else f" in rounds {audit.rounds[0]} to {audit.rounds[1]}"
    unit = "client" if audit.by_client else "update"
    shares = ", ".join(f"{counted(n, unit)} with “{short(v, 24)}”" for v, n in audit.shares.items())
    return (
        f"{counted(audit.updates, 'update')} of {counted(len(audit.clients.clients), 'client')}"
        f"{when}: {shares if len(audit.shares) <= _NAMED else counted(len(audit.shares), 'value')}."
    )


def _tell_most(report: RecordingReport) -> str:
    information = report.audit.layers.v_information
    k = information.layers.index(information.ranking()[0])
    entropy, unit = float(information.columns["entropy"][k]), information.unit
    alone = report.audit.by_client and min(report.audit.shares.values()) < 2
    whom = "updates (of clients it knows)" if alone else "clients"
    found = interval(information.values[k], information.low[k], information.high[k])
    return (
        f"“{short(information.layers[k])}” gives away most: {found} {unit}, where "
        f"{number(entropy)} would be all there is to know. That is what an adversary who sees this "
        f"layer alone reads off it about {whom} it has not met, with the 95 % interval in brackets."
    )


def _tell_when(report: RecordingReport) -> str:
    audit = report.audit
    if audit.over_rounds is None:
        return ""
    if untestable(audit):
        return (
            f"The values of {counted(len(audit.clients.clients), 'client')} can be exchanged in so "
            f"few ways that no P-value can be below {number(audit.least_p_value())}: what is said "
            "about the layers is about these clients, not about the property."
        )
    told = audit.telling()
    if not told:
        return (
            "That nothing is significant does not mean that nothing is there: more clients would "
            "tell more, and the intervals say how much may have been missed."
        )
    ends = [f"{short(k, 24)} after round {audit.over_rounds.first(k)}" for k in told[:_NAMED]]
    more = f", {len(told) - _NAMED} more" if len(told) > _NAMED else ""
    return (
        f"First significant at the 5 % level: {', '.join(ends)}{more}. The test allows for all "
        "rounds and layers: where there is nothing to find, it names one in 5 of 100 recordings."
    )


def _tell_who(report: RecordingReport) -> str:
    who = report.audit.clients
    named = who.named()
    if not named:
        return "No client's updates stand out from the others'."
    k = who.clients.index(named[0])
    return (
        f"The updates of {several([str(name) for name in named])} stand out"
        f"{', most of all' if len(named) > 1 else ':'} in “{short(who.layer[k])}”, "
        f"{number(who.times[k])} times as far from the middle as the median client "
        f"(approximate P = {number(who.p_value[k])}: an indication, not a test)."
    )


def _tell_metrics(report: RecordingReport) -> str:
    names = report.audit.metrics
    if not names:
        return ""
    return (
        f"Beside the network, clients sent {several(names)}: these numbers leave as they are, and "
        f"are measured here as “{METRICS}”."
    )


def advise(report: RecordingReport) -> tuple[Advice, ...]:
    """Return what to do, with the numbers of the remedies that were tried."""
    audit = report.audit
    told = list(audit.telling())
    buffers = [name for name in told if name.endswith(BUFFERS)]
    others = [name for name in told if name not in buffers and name != METRICS]
    advice = []
    if buffers:
        advice.append(
            Advice(
                "Keep statistics at home",
                f"Running statistics of the clients' records are in {several(buffers)}. Leave them "
                "with the clients (FedBN), or use GroupNorm, which has none."
                + _left(audit, buffers),
            )
        )
    if METRICS in told:
        advice.append(
            Advice(
                "Send fewer metrics",
                f"{several(audit.metrics)} tell the property: round them, or do not send them."
                + _left(audit, [METRICS]),
            )
        )
    if others:
        advice.append(
            Advice(
                "Hold layers back",
                f"Freeze {several(others)}, send them rarely, or add noise to them alone."
                + _left(audit, others),
            )
        )
    whole = audit.layers.remedies[0]
    noised = next((r for r in audit.layers.remedies if "noise" in r.name), None)
    if others and noised is not None and whole.value > _LITTLE:  # neither reaches the rest
        advice.append(
            Advice(
                "Clip and add noise",
                f"Clipped updates with noise ({short(noised.name, 60)}) tell {_bits(noised)} "
                f"instead of {_bits(whole)} {audit.layers.v_information.unit} in all; what it "
                f"costs in accuracy was not measured here.{_not_reached(told)}",
            )
        )
    if told or audit.clients.named():
        advice.append(
            Advice(
                "Aggregate securely",
                "With secure aggregation (Flower's SecAgg+) the server sees sums of many clients "
                "only, and can look at nobody's update alone. Metrics go around it unless they are "
                "left out.",
            )
        )
    if audit.clients.named():
        advice.append(
            Advice(
                "Look at who stands out",
                "Ask what sets these clients apart: other records, more of them, another device, "
                "a mistake. Whoever sees the updates can tell them from the others.",
            )
        )
    return tuple(advice)


def _not_reached(told: list[str]) -> str:
    """Return which of the telling entries neither clipping nor noise changes."""
    beside = [name for name in told if name == METRICS or name.endswith(BUFFERS)]
    return f" Neither reaches {several(beside)}." if beside else ""


def _left(audit: RecordingAudit, names: list[str]) -> str:
    """Return what is left without these layers, if that was tried."""
    whole = audit.layers.remedies[0]
    wanted = set(names)
    if whole.value <= _LITTLE:
        return ""
    for remedy in audit.layers.remedies:
        if set(remedy.name.removeprefix("without ").split(", ")) == wanted:
            unit = audit.layers.v_information.unit
            return (
                f" Without {'them' if len(names) > 1 else 'it'} a whole update tells "
                f"{_bits(remedy)} instead of {_bits(whole)} {unit}."
            )
    return ""


def _bits(remedy: LayerRemedy) -> str:
    return number(round(max(remedy.value, 0.0), 3)) if math.isfinite(remedy.value) else "–"
