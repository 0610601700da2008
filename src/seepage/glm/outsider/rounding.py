"""Numbers rounded to printed digits: whose absence changes one, to who knows all the rest."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from seepage.glm.changes.batched_refits import BatchedRefits, Change
from seepage.glm.changes.local_model import LocalModel
from seepage.glm.losses import Family


def step_of(digits: int, family: Family | None) -> Callable[[np.ndarray], np.ndarray]:
    """Return the function that gives the steps of numbers, (m,) → (m,).

    With a family the numbers are margins, whose means are printed to these decimals: the step of a
    margin is larger where the mean is flat.
    """

    def step(values: np.ndarray) -> np.ndarray:
        if family is None:
            return np.full(len(values), 10.0**-digits)
        near = 1e-5
        slope = np.asarray(family.mean(values + near) - family.mean(values - near)) / (2 * near)
        with np.errstate(divide="ignore"):
            return np.asarray(10.0**-digits / slope)

    return step


def changed_digits(
    model: LocalModel,
    sets: list[np.ndarray],
    seen: Callable[[np.ndarray], np.ndarray],
    digits: int,
    family: Family | None,
) -> np.ndarray:
    """Return whose absence changes a printed digit, by refits without each, (n,).

    ``seen`` gives A for the records of a person. A refit that fails, or a number too close to a
    step's edge to tell, counts as changed.
    """
    here = np.asarray(model.outputs.within(model.theta)).reshape(-1)
    steps, errors = BatchedRefits(model).moves([Change(rows) for rows in sets], None)
    changed = np.zeros(len(sets), dtype=bool)
    for k, rows in enumerate(sets):
        A = seen(rows)
        before, after = A @ here, A @ (here + steps[k])
        off = np.abs(A) @ np.abs(errors[k]) + 1e-12 * (1 + np.abs(before))
        ends = [_printed(after + shift, digits, family) for shift in (-off, off)]
        kept = [np.array_equal(_printed(before, digits, family), end) for end in ends]
        changed[k] = not (np.isfinite(after).all() and all(kept))
    return changed


def _printed(values: np.ndarray, digits: int, family: Family | None) -> np.ndarray:
    printed = values if family is None else np.asarray(family.mean(values))
    return np.asarray(np.round(printed * 10.0**digits))
