"""Finds rounded figures that change if one record is removed or replaced (neighbouring tables).

A figure on a coarse grid is insensitive to small changes of a record, but a finite change may move
it to another grid point. An attacker who knows all other records is then certain of the change.
Therefore the most exposed records are left out, or replaced within their domain, one at a time, and
the model is refitted from the current fit. If a figure does not change, another replacement may
still change it. If the unit is the person, all records of one person are left out or replaced
together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from seepage.auditing.findings import LEFT_OUT, RELABELLED, Disclosure, DisclosureCheck
from seepage.auditing.measures import largest_share, record_leakage
from seepage.auditing.trained_model import ROW, RecordsInMemory, TrainedModel
from seepage.core.result import round_up
from seepage.errors import InputError
from seepage.tables.source import distinct

CHECKED = 50  # how many of the most exposed records
AT_THE_ENDS = ("with its numbers at their minimum", "with its numbers at their maximum")
OTHER_VALUES = 3  # the most labels, and the most levels of categories, that are tried
_MANY_REFITS = 2e7  # multiplications in a pass over the records, beyond which it takes too long


def most_exposed(eta: np.ndarray) -> np.ndarray:
    """Return the positions of the most exposed records, the worst first."""
    return np.argsort(-eta, kind="stable")[:CHECKED]


def other_labels(own: Any, known: Sequence[Any]) -> list[Any]:
    """Return at most three of the known labels that differ from a record's own."""
    return [label for label in known if label != own][:OTHER_VALUES]


def find_other_noise(trained: TrainedModel, sigma: float, target: float) -> DisclosureCheck | None:
    """Return which of the most exposed records change the rounded σ if left out or replaced.

    The result is ``None`` if this was not checked. The encoding is treated as fixed, since its
    means and standard deviations count as public constants in an audit. A record that is the only
    one of its class is also listed: without it, the model has one class fewer, even if σ does not
    change.
    """
    if trained.refit_work > _MANY_REFITS:
        return None
    source = trained.records
    if trained.table.through is not None or not trained.settings.refits:
        return None
    holders = source.holders
    who = most_exposed(record_leakage(trained)).tolist()
    found = []
    classes = getattr(trained.model, "classes_", None)
    for rows in (holders[k] for k in who):
        for change, neighbour in _neighbours(trained, source, rows):
            if classes is not None and len(neighbour.classes) != len(classes):
                continue  # a model of other classes, which no refit from here reaches
            try:
                needed = largest_share(trained.refitted(source=neighbour)) / target
                if round_up(needed) == sigma:
                    continue
            except InputError:  # there is no such model
                pass
            found.append(Disclosure(int(source.beside[ROW][rows[0]]), change, ("σ",)))
    if trained.table.labels.counts is not None:
        places, owner = distinct(source.y)[1], source.owner
        pairs = np.unique(np.stack([places, owner]), axis=1)[0]  # each class of each holder once
        alone = np.bincount(pairs)[places] == 1
        first = dict.fromkeys(holders[k][0] for k in owner[alone])
        found.extend(
            Disclosure(int(source.beside[ROW][row]), LEFT_OUT, ("classes",)) for row in first
        )
    return DisclosureCheck(len(who), tuple(found), unit=trained.unit)


def _neighbours(
    trained: TrainedModel, source: RecordsInMemory, rows: np.ndarray
) -> Iterator[tuple[str, RecordsInMemory]]:
    """Yield each change to the records at ``rows``, with all records after that change."""
    yield LEFT_OUT, source.at(np.delete(np.arange(len(source)), rows))
    y, counts = source.y, trained.table.labels.counts

    def replaced(features: np.ndarray, label: Any) -> RecordsInMemory:
        others, labels = source.X.copy(), y.copy()
        others[rows], labels[rows] = features, label
        return RecordsInMemory(others, source.names, labels, source.sample_weight, source.beside)

    known = [float(np.min(y)), float(np.max(y))] if counts is None else list(counts)
    for label in other_labels(y[rows[0]], known):
        yield RELABELLED, replaced(source.X[rows], label)
    numeric = [j for a in trained.table.attributes if a.kind == "numeric" for j in a.columns]
    for words, end in zip(AT_THE_ENDS, (np.min, np.max), strict=True):
        features = source.X[rows].copy()
        features[:, numeric] = end(source.X[:, numeric], axis=0)
        yield words, replaced(features, y[rows])
