"""Tables with one record left out or replaced: whether a rounded figure follows a record.

A figure on a coarse grid does not move with small changes of a record, but a finite change may move
it to another point, and then whoever knows all other records learns something for certain. So the
most exposed records are left out and replaced within their domain, one at a time, and the model is
refitted, starting from the current one. If nothing changes, that is no proof for all replacements.
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
AT_THE_ENDS = ("with its numbers at their least", "with its numbers at their most")
_OTHER_CLASSES = 3  # the most labels that are tried
_MANY_REFITS = 2e7  # multiplications in a pass over the records, beyond which it takes too long


def most_exposed(eta: np.ndarray) -> np.ndarray:
    """Return the positions of the most exposed records, the worst first."""
    return np.argsort(-eta, kind="stable")[:CHECKED]


def other_labels(own: Any, known: Sequence[Any]) -> list[Any]:
    """Return some of the labels that a record could have instead of its own."""
    return [label for label in known if label != own][:_OTHER_CLASSES]


def find_other_noise(trained: TrainedModel, sigma: float, target: float) -> DisclosureCheck | None:
    """Return with which of the most exposed records the coarse σ would change, if that is quick.

    The encoding is held fixed: its means and deviations are public constants to an audit. A record
    that is alone in its class is told apart: without it the model has other outputs, whatever σ is.
    """
    if trained.refit_work > _MANY_REFITS:
        return None
    source = trained.records
    if trained.table.through is not None or not trained.settings.refits:
        return None
    rows = most_exposed(record_leakage(trained)).tolist()
    found = []
    classes = getattr(trained.model, "classes_", None)
    for row in rows:
        for change, neighbour in _neighbours(trained, source, row):
            if classes is not None and len(neighbour.classes) != len(classes):
                continue  # a model of other classes, which no refit from here reaches
            try:
                needed = largest_share(trained.refitted(source=neighbour)) / target
                if round_up(needed) == sigma:
                    continue
            except InputError:  # there is no such model
                pass
            found.append(Disclosure(int(source.beside[ROW][row]), change, ("σ",)))
    counts = trained.table.labels.counts
    if counts is not None and min(counts.values()) == 1:
        places = distinct(source.y)[1]
        alone = source.beside[ROW][np.bincount(places)[places] == 1].tolist()
        found.extend(Disclosure(row, LEFT_OUT, ("classes",)) for row in alone)
    return DisclosureCheck(len(rows), tuple(found))


def _neighbours(
    trained: TrainedModel, source: RecordsInMemory, row: int
) -> Iterator[tuple[str, RecordsInMemory]]:
    """Yield the records with one left out or replaced, as features and labels."""
    yield LEFT_OUT, source.at(np.delete(np.arange(len(source)), row))
    y, counts = source.y, trained.table.labels.counts
    known = [float(np.min(y)), float(np.max(y))] if counts is None else list(counts)
    for label in other_labels(y[row], known):
        yield RELABELLED, _replaced(source, row, source.X[row], label)
    numeric = [j for a in trained.table.attributes if a.kind == "numeric" for j in a.columns]
    for words, end in zip(AT_THE_ENDS, (np.min, np.max), strict=True):
        features = source.X[row].copy()
        features[numeric] = end(source.X[:, numeric], axis=0)
        yield words, _replaced(source, row, features, y[row])


def _replaced(
    source: RecordsInMemory, row: int, features: np.ndarray, label: Any
) -> RecordsInMemory:
    X, y = source.X.copy(), source.y.copy()
    X[row], y[row] = features, label
    return RecordsInMemory(X, source.names, y, source.sample_weight, source.beside)
