"""An audit of recorded rounds in words: what was found, since when, who stands out, what to do."""

from __future__ import annotations

import math
from dataclasses import dataclass

from seepage.auditing.findings import Gate
from seepage.auditing.report.words import Verdict, bits, interval, number, short
from seepage.layers.federated.gradients import BUFFERS, JOINED, METRICS
from seepage.layers.measures.first_round import LEVEL
from seepage.layers.recording_audit import RecordingAudit
from seepage.tables.names import counted, shown

_NAMED = 4  # layers or clients in a sentence
_LITTLE = 0.05  # bits of a whole update: of less, what remedies leave is not worth a sentence


def several(names: list[str] | tuple[str, ...], most: int = _NAMED) -> str:
    """Return names for a sentence; the last of many are only counted."""
    shown = [f"“{short(name)}”" for name in names[:most]]
    if len(names) > most:
        return ", ".join(shown) + f" and {len(names) - most} more"
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)


def untestable(audit: RecordingAudit) -> bool:
    """Return whether there are too few clients for any P-value at the level."""
    return audit.over_rounds is not None and audit.least_p_value() > LEVEL


def judge_recording(audit: RecordingAudit, name: str, gates: tuple[Gate, ...]) -> Verdict:
    """Return the verdict on what a recording tells about the property of this name."""
    what = f"“{short(name)}”"
    telling, apart = audit.telling(), audit.clients.named()
    failed = [gate for gate in gates if not gate.passed]
    since = None if audit.over_rounds is None else audit.over_rounds.first()
    if failed:
        tone, label = "bad", "Over the limit"
        headline = f"The updates give away more about {what} than you allow."
    elif telling:
        tone, label = "caution", "The property shows"
        headline = (
            f"{counted(len(telling), 'layer')} of {len(audit.layers.v_information)} "
            f"{'gives' if len(telling) == 1 else 'give'} away {what}"
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
    return Verdict(
        tone,
        label,
        headline,
        tuple(filter(None, (tell(audit) for tell in _EXPLANATIONS))),
        gates=tuple((gate, _tell_gate(gate)) for gate in gates),
        advice=tuple((each.name, _tell_advice(audit, each)) for each in advise(audit)),
    )


def _tell_what_was_seen(audit: RecordingAudit) -> str:
    when = "" if audit.rounds is None else f" in rounds {audit.rounds[0]} to {audit.rounds[1]}"
    unit = "client" if audit.by_client else "update"
    shares = ", ".join(f"{counted(n, unit)} with “{short(v, 24)}”" for v, n in audit.shares.items())
    return (
        f"{counted(audit.updates, 'update')} of {counted(len(audit.clients.clients), 'client')}"
        f"{when}: {shares if len(audit.shares) <= _NAMED else counted(len(audit.shares), 'value')}."
    )


def _tell_most(audit: RecordingAudit) -> str:
    information = audit.layers.v_information
    k = information.layers.index(information.ranking()[0])
    entropy, unit = float(information.columns["entropy"][k]), information.unit
    alone = audit.by_client and min(audit.shares.values()) < 2
    whom = "updates (of clients it knows)" if alone else "clients"
    most = interval(information.values[k], information.low[k], information.high[k])
    return (
        f"“{short(information.layers[k])}” gives away most: {most} {unit}, where "
        f"{number(entropy)} would be all there is to know. That is what an adversary who sees this "
        f"layer alone reads off it about {whom} it has not met, with the 95 % interval in brackets."
    )


def _tell_when(audit: RecordingAudit) -> str:
    if audit.over_rounds is None:
        return ""
    if untestable(audit):
        return (
            f"The values of {counted(len(audit.clients.clients), 'client')} can be exchanged in so "
            f"few ways that no P-value can be below {number(audit.least_p_value())}: what is said "
            "about the layers is about these clients, not about the property."
        )
    telling = audit.telling()
    if not telling:
        return (
            "That nothing is significant does not mean that nothing is there: more clients would "
            "tell more, and the intervals say how much may have been missed."
        )
    ends = [f"{short(k, 24)} after round {audit.over_rounds.first(k)}" for k in telling[:_NAMED]]
    more = f", {len(telling) - _NAMED} more" if len(telling) > _NAMED else ""
    return (
        f"First significant at the 5 % level: {', '.join(ends)}{more}. The test allows for all "
        "rounds and layers: where there is nothing to find, it names one in 5 of 100 recordings."
    )


def _tell_who(audit: RecordingAudit) -> str:
    who = audit.clients
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


def _tell_metrics(audit: RecordingAudit) -> str:
    names = audit.metrics
    if not names:
        return ""
    return (
        f"Beside the network, clients sent {several(names)}: these numbers leave as they are, and "
        f"are measured here as “{METRICS}”."
    )


_EXPLANATIONS = (_tell_what_was_seen, _tell_most, _tell_when, _tell_who, _tell_metrics)


@dataclass(frozen=True)
class LayerAdvice:
    """One thing to do about what shows, and what a whole update still tells then, if tried."""

    name: str
    layers: tuple[str, ...] = ()  # those it is about
    remedy: str | None = None  # the name of the remedy that was tried on the recording
    # The information of a whole update with it, and as recorded
    left: float | None = None
    whole: float | None = None
    unreached: tuple[str, ...] = ()  # the telling layers that it does not change


def advise(audit: RecordingAudit) -> tuple[LayerAdvice, ...]:
    """Return what to do, with the numbers of the remedies that were tried."""
    telling = audit.telling()
    buffers = tuple(name for name in telling if name.endswith(BUFFERS))
    others = tuple(name for name in telling if name not in buffers and name != METRICS)
    advice = []
    if buffers:
        advice.append(_without(audit, "Keep statistics at home", buffers))
    if METRICS in telling:
        advice.append(_without(audit, "Send fewer metrics", (METRICS,)))
    if others:
        advice.append(_without(audit, "Hold layers back", others))
    noised = next((r for r in audit.layers.remedies if "noise" in r.name), None)
    whole = audit.layers.remedies[0].value
    if others and noised is not None and whole > _LITTLE:
        beside = tuple(name for name in telling if name not in others)
        advice.append(
            LayerAdvice(
                "Clip and add noise", others, noised.name, noised.value, whole, unreached=beside
            )
        )
    apart = audit.clients.named()
    if telling or apart:
        advice.append(LayerAdvice("Aggregate securely", telling))
    if apart:
        advice.append(LayerAdvice("Look at who stands out"))
    return tuple(advice)


def _without(audit: RecordingAudit, name: str, layers: tuple[str, ...]) -> LayerAdvice:
    """Return advice to leave layers out, with what is left without them if that was tried."""
    whole = audit.layers.remedies[0].value
    for remedy in audit.layers.remedies if whole > _LITTLE else ():
        if set(remedy.name.removeprefix("without ").split(", ")) == set(layers):
            return LayerAdvice(name, layers, remedy.name, remedy.value, whole)
    return LayerAdvice(name, layers)


def _tell_advice(audit: RecordingAudit, advice: LayerAdvice) -> str:
    """Say what to do, and what is left then."""
    layers = several(advice.layers) if advice.layers else ""
    unit = audit.layers.v_information.unit
    telling = {
        "Keep statistics at home": f"Running statistics of the clients' records are in {layers}. "
        "Leave them with the clients (FedBN), or use GroupNorm, which has none.",
        "Send fewer metrics": f"{several(audit.metrics) if audit.metrics else ''} tell the "
        "property: round them, or do not send them.",
        "Hold layers back": f"Freeze {layers}, send them rarely, or add noise to them alone.",
        "Aggregate securely": "With secure aggregation (Flower's SecAgg+) the server sees sums of "
        "many clients only, and can look at nobody's update alone. Metrics go around it unless "
        "they are left out.",
        "Look at who stands out": "Ask what sets these clients apart: other records, more of them, "
        "another device, a mistake. Whoever sees the updates can tell them from the others.",
    }
    if advice.left is None or advice.whole is None:
        return telling[advice.name]
    instead = f"{bits(advice.left)} instead of {bits(advice.whole)} {unit}"
    if advice.name in telling:
        it = "them" if len(advice.layers) > 1 else "it"
        return f"{telling[advice.name]} Without {it} a whole update tells {instead}."
    beside = f" Neither reaches {several(advice.unreached)}." if advice.unreached else ""
    return (
        f"Clipped updates with noise ({short(advice.remedy, 60)}) tell {instead} in all; what it "
        f"costs in accuracy was not measured here.{beside}"
    )


def _tell_gate(gate: Gate) -> str:
    """Say which layer, or a whole update, gives most away, beside the limit."""
    limit = f"{'within' if gate.passed else 'over'} the limit of {gate.limit:g}."
    measured = math.nan if gate.measured is None else gate.measured
    layer = f"the layer {shown(gate.where)}"
    if gate.name == "--max-bits":
        where = "a whole update" if gate.where == JOINED else layer
        return f"Most is given away by {where}: {max(measured, 0):.3g} bits, {limit}"
    where = "whole updates" if gate.where == JOINED else layer
    return (
        f"Clients are best told apart by {where}: an AUC of {measured:.3f} ({gate.low:.3f} to "
        f"{gate.high:.3f}), {limit}"
    )
