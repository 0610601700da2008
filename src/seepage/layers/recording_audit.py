"""Audits recorded federated rounds for layers that reveal a property and for outlying clients."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from seepage.core.result import NOTICE
from seepage.errors import InputError, accepts_other_names
from seepage.layers.federated.client_identity import anew_in_a_run, one_run, same_client
from seepage.layers.federated.client_means import ClientRounds
from seepage.layers.federated.gradients import LayerGradients, joined
from seepage.layers.federated.stored_recordings import load_gradients
from seepage.layers.layer_audit import LayerAudit, audit_updates
from seepage.layers.measures.client_scores import ClientScores, ScoreTest
from seepage.layers.measures.first_round import RoundByRound, compare_attackers
from seepage.layers.measures.independence_test import LEVEL
from seepage.layers.measures.property_batches import read_property
from seepage.layers.measures.standing_out import Reference, StandingOut, standing_out
from seepage.support.text_table import text_table
from seepage.tables.names import counted, listed, shown
from seepage.tables.result_table import Reportable, ResultTable
from seepage.tables.source import as_numpy

OneRecording = LayerGradients | str | os.PathLike[str]  # a recording, or its folder or file
Recording = OneRecording | Sequence[OneRecording]  # one, or those of several runs


@dataclass(frozen=True, eq=False, repr=False)
class RecordingAudit(Reportable, ResultTable):
    """The leakage of recorded federated rounds about a property of the clients.

    Parameters
    ----------
    layers
        The leakage of each layer over all rounds, without and with remedies.
    over_rounds
        Each layer's P-values after each round, which show the first round that reveals the
        property; ``None`` if a client has several values of the property, or if rounds are unknown.
    clients
        The distance of each client's updates from those of the other clients.
    by_client
        Whether each client has a single value of the property.
    shares
        The number of clients with each value of the property; if clients have several values, the
        number of updates.
    updates
        The number of recorded updates.
    rounds
        The first and the last round, if known.
    metrics
        The metrics that clients sent in addition to the network's state.
    notes
        Caveats, as sentences.
    runs
        The number of runs that were analysed together.
    set_aside
        A sentence about updates of other runs that were left out because their clients cannot be
        matched; empty if there are none.
    auxiliary
        The test of the attacker with auxiliary data; ``None`` if no such attacker was run.
    """

    layers: LayerAudit
    over_rounds: RoundByRound | None
    clients: StandingOut
    by_client: bool
    shares: Mapping[str, int]
    updates: int
    rounds: tuple[int, int] | None
    metrics: tuple[str, ...]
    notes: tuple[str, ...]
    runs: int = 1
    set_aside: str = ""
    auxiliary: ScoreTest | None = None

    value_column = "v_information"

    def table(self, library: str | None = None) -> Any:
        """Return a data frame with one row per layer: its leakage over all rounds."""
        return self.layers.table(library)

    def plot(self, ax: Any = None) -> Any:
        """Plot the leakage of each layer over all rounds; see :meth:`LayerAudit.plot`."""
        return self.layers.plot(ax)

    def telling(self) -> tuple[str, ...]:
        """Return the layers that reveal the property at the 5 % level, the strongest first.

        The result contains the layers that reveal the property after some round, or to an attacker
        with auxiliary data. If no layer leaks, the probability that any layer is named is at most
        5 %. If rounds were not tested, the result contains the layers that the layer audit names.
        """
        if self.over_rounds is None:
            return self.layers.protect
        sure = {k for k in self.over_rounds.layers if self.over_rounds.first(k) is not None}
        sure |= set(self.told_to_auxiliary())
        return tuple(k for k in self.layers.v_information.ranking() if k in sure)

    def told_to_auxiliary(self) -> tuple[str, ...]:
        """Return the layers that reveal the property to an attacker with auxiliary data."""
        if self.auxiliary is None:
            return ()
        found = zip(self.auxiliary.layers, self.auxiliary.p_values, strict=True)
        return tuple(layer for layer, p_value in found if p_value <= LEVEL)

    def reveals(self) -> bool:
        """Return whether any attacker that was run infers the property at the 5 % level."""
        return bool(self.telling() or self.told_to_auxiliary())

    def least_p_value(self) -> float:
        """Return the smallest P-value that permutations of the clients' labels can produce.

        Ten clients, five with the property, can be labelled in 252 ways; each labelling and its
        complement have the same statistic, so the minimum is 2/252. If one client has the property
        and nine do not, the minimum is 1/10.
        """
        counts = list(self.shares.values())
        ways = math.factorial(sum(counts)) // math.prod(math.factorial(n) for n in counts)
        opposite = len(counts) == 2 and counts[0] == counts[1]
        return (2 if opposite else 1) / ways

    def __str__(self) -> str:
        who = self.clients
        order = who.order()[:8]  # a screen has room for no more
        lines = [
            self._opening(),
            *filter(None, [self.set_aside]),
            "",
            *str(self.layers).removesuffix(NOTICE).rstrip().split("\n"),
        ]
        lines += [
            "",
            "Clients, the furthest from the others first (as a multiple of the median distance):",
        ]
        clients = [
            (
                str(who.clients[k]),
                f"{who.times[k]:.2f} at {_called('layer', who.layer[k])}, "
                + (
                    f"P = {who.p_value[k]:.3f}"
                    if who.reference
                    else f"{place} of {len(who.clients)}"
                ),
            )
            for place, k in enumerate(order, start=1)
        ]
        lines.append(text_table(clients, indent=2))
        return "\n".join([*lines, "", *self.notes, NOTICE])

    def _opening(self) -> str:
        telling, other = self.telling(), self.auxiliary
        if other is None:
            first = "No attacker with data of the same kind was tested (pass scores=). "
        else:
            k = other.best
            first = (
                f"An attacker with {other.shadows} shadow clients infers the property from "
                f"{_called('layer', other.layers[k])} with an AUC of {other.auc[k]:.3f} (P = "
                f"{other.p_values[k]:.3f}). "
            )
        if not telling:
            return f"{first}No layer reveals the property at the 5 % level."
        since = self.over_rounds.first() if self.over_rounds is not None else None
        when = "" if since is None else f" in the test over rounds, first after round {since}"
        names = [_called("layer", name) for name in telling[:5]]
        more = f" and {len(telling) - 5} more" if len(telling) > 5 else ""
        return (
            f"{first}The property is revealed by {', '.join(names)}{more} at the 5 % level{when}."
        )

    def __repr__(self) -> str:
        outlying = counted(len(self.clients.named()), "client stands out", "clients stand out")
        return (
            f"<audit of {self.updates:,} updates of {len(self.clients.clients):,} clients: "
            f"{counted(len(self.telling()), 'layer reveals', 'layers reveal')} the property"
            f"{f', {outlying}' * (self.clients.reference > 0)}>"
        )


@accepts_other_names
def audit_recording(
    recording: Recording,
    property: Any,
    *,
    family: Any = "random_forest",
    noise: float = 1.0,
    folds: int = 5,
    unit: str = "bits",
    permutations: int = 999,
    reference: Reference | None = None,
    scores: ClientScores | None = None,
    seed: int = 0,
) -> RecordingAudit:
    """Find layers that reveal a property, the round after which they first do, and outliers.

    Parameters
    ----------
    recording
        A recording with nodes, or its folder or file; or a list of these, one for each run. A
        client that takes part in several runs counts once. Clients of several runs are matched by
        their keys, or by their nodes if these are the same in all runs. Otherwise, only the longest
        run is used, and the result states this.
    property
        A mapping from clients (keys or nodes), or from pairs of client and round, to values; or one
        value per update, ``(n,)``. Nodes may be numbers or strings.
    family, noise, folds, unit
        As for :func:`audit_updates`; fewer folds are used if a value of the property is rare.
    permutations
        The number of permutations in the tests over rounds.
    reference
        Simulated clients, as for :func:`standing_out`; without them, clients are ranked, but none
        is named as outlying.
    scores
        The scores of an attacker with auxiliary data (``ShadowClients(…).scores(recording)`` of
        :mod:`seepage.attacks`). P-values are then adjusted for both attackers, with clients as
        units.
    seed
        The seed of all random draws.

    Examples
    --------
    >>> import numpy as np
    >>> from dataclasses import replace
    >>> import seepage.layers as layers
    >>> draw = np.random.default_rng(0)
    >>> client, number = np.tile(np.arange(12), 4), np.repeat([1, 2, 3, 4], 12)
    >>> late = (client % 2) * (number > 2)
    >>> seen = layers.LayerGradients.of(
    ...     {"fc1": draw.standard_normal((48, 5)) + 9 * late[:, None], "fc2": np.ones((48, 2))}
    ... )
    >>> seen = replace(seen, nodes=client, rounds=number)
    >>> glasses = {node: node % 2 == 1 for node in range(12)}
    >>> found = layers.audit_recording(seen, glasses, family="logistic")
    >>> found.telling(), found.over_rounds.first("fc1")
    (('fc1',), 3)
    """
    known = KnownUpdates.read(recording, property, folds)
    layers = audit_updates(
        known.seen,
        known.values,
        groups=False if known.alone else None,
        family=family,
        noise=noise,
        folds=known.folds,
        unit=unit,
        seed=seed,
    )
    rounds = known.seen.rounds
    sent = known.seen.with_metrics()
    over_rounds, auxiliary = None, None
    if scores is not None and (not known.by_client or rounds is None):
        raise InputError(
            "An attacker with auxiliary data needs a recording with rounds, and one value of the "
            "property for each client; give both, or leave out scores=."
        )
    notes = [*layers.v_information.notes, *filter(None, [anew_in_a_run(known.seen)])]
    if known.alone:
        notes.append(
            "A value of the property belongs to a single client, so the layers' information may "
            "come from any difference between that client and the others, not only from this "
            "property."
        )
    if not known.by_client:
        notes.append(
            "Clients have several values of the property, so a permutation test over clients "
            "cannot find the first round that reveals the property."
        )
    elif rounds is None:
        notes.append(
            "The recording has no rounds, so the first round that reveals the property is unknown."
        )
    if known.by_client and rounds is not None:
        over_rounds, auxiliary = compare_attackers(
            sent, known.values, scores, permutations=permutations, seed=seed
        )
        notes += () if scores is None else scores.notes
    return RecordingAudit(
        layers,
        over_rounds,
        standing_out(sent, reference=reference),
        known.by_client,
        known.shares,
        len(known.seen),
        None if rounds is None else (known.who.rounds[0], known.who.rounds[-1]),
        tuple(known.seen.metrics),
        tuple(notes),
        len(np.unique(known.who.run)),
        known.set_aside,
        auxiliary,
    )


@dataclass(frozen=True, eq=False, repr=False)
class KnownUpdates:
    """Recorded updates, and the property of the clients who sent them.

    Parameters
    ----------
    seen
        The updates.
    who
        The client that sent each update.
    values
        The property of every update, ``(n,)``.
    by_client, shares
        As in :class:`RecordingAudit`.
    folds
        The requested number of folds, or fewer if a value of the property is rare.
    set_aside
        As in :class:`RecordingAudit`.
    """

    seen: LayerGradients
    who: ClientRounds
    values: Any
    by_client: bool
    shares: Mapping[str, int]
    folds: int
    set_aside: str = ""

    @staticmethod
    def read(recording: Recording, property: Any, folds: int) -> KnownUpdates:
        """Read the recording and the property passed to :func:`audit_recording`."""
        seen = read_recording(recording)
        kept, set_aside = one_run(seen)
        if not isinstance(property, Mapping):  # one value per update of the whole recording
            read_property(property, len(seen), "updates")
            property = np.asarray(as_numpy(property))[kept]
        seen = seen.rows(kept)
        who = ClientRounds.of(seen)
        values = property_of_updates(property, seen)
        levels, labels = read_property(values, len(seen), "updates")
        of_client = np.zeros((len(who.clients), len(levels)), dtype=int)
        np.add.at(of_client, (who.client, labels), 1)
        whole = bool(((of_client > 0).sum(axis=1) == 1).all())
        counts = (of_client > 0).sum(axis=0) if whole else of_client.sum(axis=0)
        if len(levels) < 2:
            raise InputError(
                "All clients have the same property, so there is nothing to infer; record clients "
                "with another value too."
            )
        if whole and 2 * len(levels) > len(who.clients):
            raise InputError(
                f"The property has {len(levels)} values among {len(who.clients)} clients; group "
                "the values into classes first, such as below and above the median."
            )
        return KnownUpdates(
            seen,
            who,
            values,
            whole,
            {str(level): int(n) for level, n in zip(levels, counts, strict=True)},
            max(2, min(folds, len(who.clients), int(of_client.sum(axis=0).min()))),
            set_aside,
        )

    @property
    def alone(self) -> bool:
        """Whether any value of the property occurs in only one client."""
        return self.by_client and min(self.shares.values()) < 2


def read_recording(recording: Recording) -> LayerGradients:
    """Return a recording, read from its folder or file if needed; join several into one."""
    if isinstance(recording, LayerGradients):
        return recording
    if isinstance(recording, str | os.PathLike):
        return load_gradients(recording)[0]
    parts = []
    for number, each in enumerate(recording, start=1):
        part = read_recording(each)
        # Files of earlier versions do not say which run they hold.
        unknown = part.runs is None or not np.any(part.runs)
        runs = np.full(len(part), number, dtype=np.uint64) if unknown else part.runs
        keys = np.full(len(part), "") if part.clients is None else part.clients
        parts.append(replace(part, runs=runs, clients=keys))
    if not parts:
        raise InputError("The list of recordings is empty; give at least one recording.")
    return joined(parts)


def property_of_updates(property: Any, recording: LayerGradients) -> Any:
    """Return the property of every update, looked up by client, or by client and round."""
    if not isinstance(property, Mapping):
        return property
    known = {_key(key): value for key, value in property.items()}
    nodes = [str(key) for key in _listed(same_client(recording))]
    if not set(nodes) <= {key[0] if isinstance(key, tuple) else key for key in known}:
        by_node = [str(node) for node in _listed(recording.nodes)]  # where keys were expected
        nodes = by_node if by_node and set(by_node) <= set(known) else nodes
    pairs = any(isinstance(key, tuple) for key in known)
    if pairs and recording.rounds is None:
        raise InputError("The recording has no rounds; give the property by client.")
    rounds = [str(number) for number in _listed(recording.rounds)] if pairs else []
    wanted: list[Any] = list(zip(nodes, rounds, strict=True)) if pairs else list(nodes)
    missing = list(dict.fromkeys(key for key in wanted if key not in known))
    if missing:
        what = "updates (client and round)" if pairs else "clients"
        total = len(set(wanted))
        raise InputError(
            f"The property is not given for {len(missing)} of the {total} {what} in the recording "
            f"({listed([' '.join(k) if pairs else k for k in missing])}); add the missing values."
        )
    return np.array([known[key] for key in wanted])


def _called(kind: str, name: object) -> str:
    """Return a name; a number is preceded by its kind, as in ``layer 0``."""
    return f"{kind} {name}" if str(name).isdigit() else shown(name)


def _key(key: Any) -> Any:
    return tuple(str(part) for part in key) if isinstance(key, tuple) else str(key)


def _listed(values: np.ndarray | None) -> list[Any]:
    return [] if values is None else list(values.tolist())
