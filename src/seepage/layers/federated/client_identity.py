"""Identifies the updates of the same client, over the rounds and over several runs.

Clients are the units of every interval and every test, so if a client is counted twice, chance
differences look significant. Flower draws a new number for every node in each simulation. Clients
of several runs are therefore matched by a key that stays the same (a hospital, a partition), or by
their nodes if these are the same in all runs. Otherwise only one run can be analysed.
"""

from __future__ import annotations

import numpy as np

from seepage.errors import InputError
from seepage.layers.federated.gradients import LayerGradients
from seepage.tables.source import as_numpy

_HOW = "record a permanent key for each client (recorder.add(…, client=…) or metric 'partition-id')"


def same_client(gradients: LayerGradients) -> np.ndarray | None:
    """Return every update's client, ``(n,)``, as a key or a node; ``None`` if unknown.

    Examples
    --------
    >>> import numpy as np
    >>> from dataclasses import replace
    >>> from seepage.layers import LayerGradients
    >>> from seepage.layers.federated.client_identity import same_client
    >>> seen = LayerGradients.of({"fc": np.ones((4, 2))})
    >>> seen = replace(seen, nodes=np.array([7, 9, 5, 3]), runs=np.array([1, 1, 2, 2]))
    >>> same_client(seen)
    Traceback (most recent call last):
    ...
    seepage.errors.InputError: The recording holds 2 runs whose clients cannot be matched, ...
    >>> same_client(replace(seen, clients=np.array(["a", "b", "a", "b"]))).tolist()
    ['a', 'b', 'a', 'b']
    """
    keys = gradients.clients
    if keys is not None and all(str(key) for key in keys.tolist()):
        return np.asarray(keys)
    if gradients.nodes is None:
        return None
    nodes, runs = as_numpy(gradients.nodes), separate_runs(gradients)
    if not _matched(nodes, runs):
        recorded = gradients.runs is not None and np.any(gradients.runs)
        last = int(np.argmax(runs != runs[0]))  # without recorded runs, each is one stretch of rows
        chosen = "recording.runs == …" if recorded else f"slice({last})"
        raise InputError(
            f"The recording holds {len(np.unique(runs))} runs whose clients cannot be matched, "
            f"because Flower draws new nodes in every run; {_HOW}, or choose one run: "
            f"recording.rows({chosen})."
        )
    return nodes


def one_run(gradients: LayerGradients) -> tuple[np.ndarray, str]:
    """Return a mask of the updates to analyse together, and a sentence if some are left out.

    If the clients of several runs cannot be matched, the mask selects the longest run (the first
    one, if several are equally long).
    """
    everything = np.ones(len(gradients), dtype=bool)
    try:
        same_client(gradients)
    except InputError:
        runs = separate_runs(gradients)
        numbers, first, counts = np.unique(runs, return_index=True, return_counts=True)
        order = np.lexsort((first, -counts))
        chosen = runs == numbers[order[0]]
        return chosen, (
            f"The recording holds {len(numbers)} runs whose clients cannot be matched, because "
            "Flower draws new nodes in every run: only the longest run was used "
            f"({int(chosen.sum()):,} of {len(runs):,} updates). To use all of them, {_HOW}."
        )
    return everything, ""


def separate_runs(gradients: LayerGradients) -> np.ndarray:
    """Return the run of every update, ``(n,)``.

    Recordings made with earlier versions of seepage do not state the run of an update. In these
    recordings, a new run is assumed to begin where the round number decreases and all nodes are
    new. Several nodes must take part before and after this point, because updates may also be
    listed client by client.
    """
    if gradients.runs is not None and np.any(gradients.runs):
        return np.asarray(gradients.runs)
    runs = np.zeros(len(gradients), dtype=int)
    if gradients.rounds is None or gradients.nodes is None:
        return runs
    rounds, nodes = np.asarray(gradients.rounds), as_numpy(gradients.nodes)
    falls = np.flatnonzero(np.diff(rounds) < 0) + 1
    stretches = [set(stretch.tolist()) for stretch in np.split(nodes, falls)]
    for k, place in enumerate(falls):
        several = min(len(stretches[k]), len(stretches[k + 1])) > 1
        if several and set().union(*stretches[: k + 1]).isdisjoint(*stretches[k + 1 :]):
            runs[place:] += 1
    return runs


def anew_in_a_run(gradients: LayerGradients) -> str:
    """Return a note if no node of the first rounds takes part in later rounds, or ``""``.

    Nodes change in this way if clients register anew in the middle of a run.
    """
    keyed = gradients.clients is not None and all(str(key) for key in gradients.clients.tolist())
    if keyed or gradients.nodes is None or gradients.rounds is None:
        return ""
    rounds, nodes = np.asarray(gradients.rounds), as_numpy(gradients.nodes)
    names, who = np.unique(nodes, return_inverse=True)
    if len(who) < 2 * len(names):  # clients who take part once come and go
        return ""
    first, last = (np.full(len(names), end) for end in (rounds.max(), rounds.min()))
    np.minimum.at(first, who, rounds)
    np.maximum.at(last, who, rounds)
    for number in np.unique(rounds)[1:]:
        if not np.any((first < number) & (last >= number)):
            return (
                f"No node of the rounds before {number} takes part from round {number} on. If "
                "clients registered anew, each counts twice and the P-values are too small; "
                f"{_HOW}."
            )
    return ""


def _matched(nodes: np.ndarray, runs: np.ndarray) -> bool:
    """Return whether every run has the same nodes."""
    sets = [set(nodes[runs == run].tolist()) for run in np.unique(runs)]
    return all(nodes_of_run == sets[0] for nodes_of_run in sets[1:])
