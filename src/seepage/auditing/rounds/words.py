"""An audit of recorded rounds in words: leaking layers, first round, outlying clients, advice."""

from __future__ import annotations

from dataclasses import dataclass

from seepage.auditing.findings import Gate
from seepage.auditing.report.rendering import tell
from seepage.auditing.report.words import Verdict, short
from seepage.layers.federated.gradients import BUFFERS, JOINED, METRICS
from seepage.layers.measures.independence_test import LEVEL
from seepage.layers.recording_audit import RecordingAudit
from seepage.tables.names import counted

_LITTLE = 0.05  # bits of a whole update: of less, what remedies leave is not worth a sentence


WITH_DATA, WITH_CLIENTS = "auxiliary data", "other clients' property"  # what an attacker has


@dataclass(frozen=True)
class PropertyAttack:
    """The layer from which an attacker infers a property best, with the AUC of the attack."""

    attacker: str  # the attacker's data
    layer: str
    auc: float
    # The 95 % interval over clients, for this layer
    low: float
    high: float
    p_value: float | None  # over all layers and attackers; ``None`` if it was not tested
    chance: float | None = None  # the largest area of any layer in 95 % of random labellings
    shadows: int = 0  # how many shadow clients the attacker trained


def leading(audit: RecordingAudit, attacks: tuple[PropertyAttack, ...]) -> PropertyAttack | None:
    """Return the attack with auxiliary data if it is significant; the headline then states it."""
    found = [attack for attack in attacks if attack.attacker == WITH_DATA]
    return found[0] if found and audit.told_to_auxiliary() else None


def untestable(audit: RecordingAudit) -> bool:
    """Return whether there are too few clients for any P-value to reach the significance level."""
    return audit.over_rounds is not None and audit.least_p_value() > LEVEL


def told_by_all_updates(audit: RecordingAudit) -> frozenset[str]:
    """Return the layers that reveal the property in their own test over all updates together."""
    found = audit.layers.v_information
    pairs = zip(found.layers, found.columns["p_value"], strict=True)
    return frozenset(name for name, p_value in pairs if p_value <= LEVEL)


def judge_recording(
    audit: RecordingAudit,
    name: str,
    gates: tuple[Gate, ...],
    attacks: tuple[PropertyAttack, ...] = (),
) -> Verdict:
    """Return the verdict on what a recording leaks about the property ``name``."""
    lead = leading(audit, attacks)
    what = f"“{short(name)}”"
    telling, apart = audit.telling(), audit.clients.named()
    failed = [gate for gate in gates if not gate.passed]
    since = None if audit.over_rounds is None else audit.over_rounds.first()
    if failed:
        tone, label = "bad", "Over the limit"
        headline = f"The updates leak more about {what} than you allow."
    elif lead is not None:
        tone, label = "caution", "The property leaks"
        headline = tell("lead", lead, what, JOINED, of="rounds.j2")
    elif telling:
        tone, label = "caution", "The property leaks"
        # The test over rounds may name layers that all updates together do not show to leak.
        alone = [name for name in telling if name in told_by_all_updates(audit)]
        over_rounds, beside = "", ""
        if len(alone) < len(telling):
            over_rounds = " in the test over rounds"
            beside = f"; {len(alone) or 'none'} of them over all updates together"
        headline = (
            f"{counted(len(telling), 'layer')} of {len(audit.layers.v_information)} "
            f"{'reveals' if len(telling) == 1 else 'reveal'} {what}"
            f"{over_rounds}{'' if since is None else f', the first after round {since}'}{beside}."
        )
    elif apart:
        tone, label = "caution", "Outlying clients"
        headline = (
            f"{counted(len(apart), 'client')} {'stands' if len(apart) == 1 else 'stand'} out at "
            f"the 5 % level; no layer reveals {what} at that level."
        )
    elif untestable(audit):
        tone, label = "caution", "Too few clients to test"
        headline = f"There are too few clients to test whether the updates reveal {what}."
    else:
        # Not being able to show a leak is no assurance; an interval within a limit is.
        beyond = any(gate.inconclusive for gate in gates)
        tone, label = "good" if gates and not beyond else "caution", "Nothing found"
        clients = ", and no client stands out" if audit.clients.reference else ""
        limits = ", but a confidence interval extends beyond the limit" if beyond else ""
        headline = f"No layer reveals {what} at the 5 % level{clients}{limits}."
    sentences = (
        tell("attackers", audit, attacks, JOINED, of="rounds.j2"),
        tell("seen", audit, of="rounds.j2"),
        audit.set_aside,
        tell("most", audit, of="rounds.j2"),
        tell("when", audit, untestable(audit), of="rounds.j2"),
        tell("who", audit, of="rounds.j2"),
        tell("metrics", audit, METRICS, of="rounds.j2"),
    )
    return Verdict(
        tone,
        label,
        headline,
        tuple(filter(None, sentences)),
        gates=tuple((gate, tell("gate", gate, JOINED, of="rounds.j2")) for gate in gates),
        advice=tuple(
            (each.name, tell("advice", audit, each, of="rounds.j2")) for each in advise(audit)
        ),
    )


@dataclass(frozen=True)
class LayerAdvice:
    """A piece of advice, with the remaining leakage of a whole update, if the advice was tried."""

    name: str
    layers: tuple[str, ...] = ()  # the layers concerned
    remedy: str | None = None  # the name of the remedy that was tried on the recording
    # The V-information of a whole update with the remedy, and as recorded
    left: float | None = None
    whole: float | None = None
    unreached: tuple[str, ...] = ()  # the revealing layers that the remedy does not change


def advise(audit: RecordingAudit) -> tuple[LayerAdvice, ...]:
    """Return the advice, with the results of the remedies tried."""
    telling = audit.telling()
    buffers = tuple(name for name in telling if name.endswith(BUFFERS))
    others = tuple(name for name in telling if name not in buffers and name != METRICS)
    advice = []
    if buffers:
        advice.append(_without(audit, "Keep statistics on the clients", buffers))
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
    if audit.reveals() or apart:
        advice.append(LayerAdvice("Aggregate securely", telling))
    if apart:
        advice.append(LayerAdvice("Examine outlying clients"))
    return tuple(advice)


def _without(audit: RecordingAudit, name: str, layers: tuple[str, ...]) -> LayerAdvice:
    """Return advice to leave layers out, with the remaining leakage if this was tried."""
    whole = audit.layers.remedies[0].value
    for remedy in audit.layers.remedies if whole > _LITTLE else ():
        if set(remedy.name.removeprefix("without ").split(", ")) == set(layers):
            return LayerAdvice(name, layers, remedy.name, remedy.value, whole)
    return LayerAdvice(name, layers)
