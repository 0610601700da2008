"""The two problems of attribute inversion: a gene in IWPC, marital status in Adult."""

from __future__ import annotations

from dataclasses import dataclass, replace

from seepage.attacks import NominalAttribute
from seepage.data import adult_one_hot, iwpc_one_hot, load_adult, load_iwpc
from seepage.data.structures import Problem


@dataclass(frozen=True, eq=False)
class AttributeProblem:
    """A data set and the attribute under attack (``words``); ``l2`` is Figure 7's penalty."""

    name: str
    words: str
    problem: Problem
    attribute: NominalAttribute
    l2: float

    @property
    def columns(self) -> list[int]:
        """The columns that encode the attribute, and that η is about."""
        return list(self.attribute.columns)


def warfarin() -> AttributeProblem:
    """Return IWPC with the VKORC1 genotype, which has three values (section 6.4)."""
    problem = iwpc_one_hot(load_iwpc())
    attribute = NominalAttribute.from_problem(problem, "vkorc1", dropped="CC")
    return AttributeProblem("IWPC", "the VKORC1 genotype", problem, attribute, 1e-2)


def census() -> AttributeProblem:
    """Return Adult with marital status, married or not (section 6.4); targets are −1 and 1."""
    found = adult_one_hot(load_adult())
    # Without an intercept the two numbers that encode the classes matter.
    problem = replace(found, y=2 * found.y - 1, y_test=2 * found.y_test - 1)
    attribute = NominalAttribute.from_problem(problem, "marital-status", dropped="married")
    return AttributeProblem("Adult", "marital status", problem, attribute, 1e-3)
