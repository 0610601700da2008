"""Answers that may be missing: what some rows were asked where perhaps none of them was left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Answers:
    """The answer on some rows, or none where there was no row; two add up to one."""

    given: tuple[Any, ...]

    def __add__(self, other: Answers) -> Answers:
        if not (self.given and other.given):
            return Answers(self.given + other.given)
        return Answers((self.given[0] + other.given[0],))
