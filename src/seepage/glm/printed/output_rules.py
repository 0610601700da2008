"""The rules that output checkers in data archives apply to a regression table.

A regression is considered safe if its residual degrees of freedom and its counts of people reach a
threshold, usually 10 (Eurostat's and the ESSNet's guidelines; Griffiths et al. 2019, Handbook on
Statistical Disclosure Control for Outputs). These are rules of thumb; a table that meets them is
not proven safe.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from seepage.glm.printed.specification import Specification


@dataclass(frozen=True, eq=False)
class BrokenRule:
    """A rule that a table breaks.

    Parameters
    ----------
    rule
        ``"degrees of freedom"``, ``"column"``, ``"cell"`` or ``"difference"``.
    count
        The actual number of degrees of freedom or people.
    threshold
        The required number.
    where
        The specification or specifications, and the column, as text.
    people
        The affected people, by label or identity; empty for the rule on degrees of freedom.
    """

    rule: str
    count: int
    threshold: int
    where: str
    people: np.ndarray

    def __str__(self) -> str:
        people = f"{self.count:,} {'person' if self.count == 1 else 'people'}"
        degrees = f"{self.count:,} residual degree{'s' * (self.count != 1)} of freedom"
        what = {
            "degrees of freedom": degrees,
            "column": (
                f"only {people} {'differs' if self.count == 1 else 'differ'} from the most common "
                "value of this column"
            ),
            "cell": f"the leverage of {people} is above 1/{self.threshold:,}, so fewer than "
            f"{self.threshold:,} records determine their fitted value{'s' * (self.count != 1)}",
            "difference": f"the two differ by {people}, so the difference of their "
            f"results describes only {'this person' if self.count == 1 else 'these people'}",
        }[self.rule]
        return f"{self.where}: {what} (rule: at least {self.threshold:,})."


def broken_rules(
    specifications: Sequence[Specification],
    rows: Sequence[np.ndarray],
    owner: np.ndarray,
    names: Callable[[np.ndarray], np.ndarray],
    threshold: int,
) -> tuple[BrokenRule, ...]:
    """Return the rules broken by the specifications, and by every pair of specifications.

    ``rows`` contains the positions of each specification's records among all records; ``owner`` is
    the person of every record.
    """
    found = []

    def add(rule: str, count: int, where: str, people: np.ndarray) -> None:
        found.append(BrokenRule(rule, count, threshold, where, names(people)))

    for k, (one, here) in enumerate(zip(specifications, rows, strict=True)):
        people, where = owner[here], f"Specification {k + 1}"
        degrees = len(one.X) - one.X.shape[1]
        if degrees < threshold:
            add("degrees of freedom", degrees, where, np.empty(0, dtype=int))
        for name, column in zip(one.names, one.X.T, strict=True):
            values, counts = np.unique(column, return_counts=True)
            carriers = np.unique(people[column != values[np.argmax(counts)]])
            if len(values) > 1 and len(carriers) < threshold:
                add("column", len(carriers), f"{where}, column {name}", carriers)
        # A cell of m records that the columns can tell from all others has leverage 1/m or more.
        few = np.unique(people[one.design_leverage * threshold > 1 + 1e-9])
        if len(few):
            add("cell", len(few), where, few)
        for other in range(k):
            apart = np.setxor1d(people, owner[rows[other]])
            rows_apart = np.setxor1d(here, rows[other])
            apart = np.union1d(apart, owner[rows_apart])
            if 0 < len(apart) < threshold:
                add("difference", len(apart), f"Specifications {other + 1} and {k + 1}", apart)
            elif not len(apart):
                _changed_columns(specifications, rows, owner, other, k, threshold, add)
    return tuple(found)


def _changed_columns(
    specifications: Sequence[Specification],
    rows: Sequence[np.ndarray],
    owner: np.ndarray,
    first: int,
    second: int,
    threshold: int,
    add: Callable[[str, int, str, np.ndarray], None],
) -> None:
    """Add a broken rule if only a few people's values differ in columns of the same name."""
    one, other = specifications[first], specifications[second]
    if set(one.names) != set(other.names):
        return
    here, there = np.argsort(rows[first]), np.argsort(rows[second])
    same = one.y[here] == other.y[there]
    for name in one.names:
        pair = (s.X[at, s.names.index(name)] for s, at in ((one, here), (other, there)))
        same &= np.equal(*pair)
    apart = np.unique(owner[rows[first][here][~same]])
    if 0 < len(apart) < threshold:
        add("difference", len(apart), f"Specifications {first + 1} and {second + 1}", apart)
