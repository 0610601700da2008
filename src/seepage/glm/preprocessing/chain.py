"""Combine steps in sequence and in parallel; each combination is also a step.

Each step is fitted to the output of the earlier steps on all rows. So one row affects a later
step's learnt parameters in two ways. The direct effect is due to the row's own transformed values.
The indirect effect is due to the earlier steps, which learn different parameters and transform all
rows differently.
"""

from __future__ import annotations

from copy import copy
from typing import Any

import numpy as np

from seepage.core.result import joined
from seepage.glm.preprocessing.steps import FeatureStep, by_differences, dense
from seepage.glm.preprocessing.transformers import Transformer
from seepage.glm.refusals import refusal
from seepage.support.library_classes import own_name
from seepage.tables.source import check_names


class Chain(FeatureStep):
    """Steps in sequence."""

    name = "pipeline"

    def __init__(self, steps: tuple[FeatureStep, ...]) -> None:
        self.steps = steps
        self._responses: tuple[Any, list[list[np.ndarray]]] | None = None

    @classmethod
    def of_pipeline(cls, pipeline: Any, X: Any) -> Chain:
        """Return the fitted transformers of a ``Pipeline`` with the input ``X``."""
        steps: list[FeatureStep] = []
        for _, transformer in pipeline.steps:
            if transformer is None or (
                isinstance(transformer, str) and transformer == "passthrough"
            ):
                continue
            check_names(X)  # scikit-learn rejects only a mixture
            steps.append(as_step(transformer, X))
            X = steps[-1].transform(X)
        return cls(tuple(steps))

    def inputs(self, X: Any) -> list[Any]:
        """Return the input of every step, and the output of the last step."""
        out = [X]
        for step in self.steps:
            out.append(step.transform(out[-1]))
        return out

    def transform(self, X: Any) -> Any:
        """Return the output of the last step."""
        return self.inputs(X)[-1]

    def push(self, X: Any, dX: np.ndarray) -> np.ndarray:
        """Return the product of the steps' derivatives with ``dX``."""
        for step in self.steps:
            X, dX = step.transform(X), step.push(X, dX)
        return dX

    def coded(self, X: Any) -> tuple[str, ...]:
        """Return the numeric columns that the first step treats as category codes."""
        return self.steps[0].coded(X) if self.steps else ()

    def refitted(self, X: Any) -> FeatureStep:
        """Return all steps refitted on new rows, each on the output of the earlier steps."""
        steps = []
        for step in self.steps:
            steps.append(step.refitted(X))
            X = steps[-1].transform(X)
        return Chain(tuple(steps))

    def learnt(self) -> np.ndarray:
        """Return the learnt parameters of all steps."""
        return np.concatenate([np.zeros(0), *(step.learnt() for step in self.steps)])

    def with_learnt(self, numbers: np.ndarray) -> FeatureStep:
        """Return a copy with different learnt parameters."""
        steps, at = [], 0
        for step in self.steps:
            size = len(step.learnt())
            steps.append(step.with_learnt(numbers[at : at + size]))
            at += size
        other = copy(self)
        other.steps, other._responses = tuple(steps), None
        return other

    @property
    def held(self) -> tuple[str, ...]:  # type: ignore[override]
        """Everything that the steps learnt from the data."""
        return joined(*(step.held for step in self.steps))

    @property
    def choices(self) -> tuple[str, ...]:  # type: ignore[override]
        """Everything that the steps chose from the data."""
        return joined(*(step.choices for step in self.steps))

    def units(self, X: Any) -> np.ndarray:
        """Return the units of all steps' learnt parameters."""
        inputs = self.inputs(X)
        each = (step.units(rows) for step, rows in zip(self.steps, inputs, strict=False))
        return np.concatenate([np.zeros(0), *each])

    def influence(self, X: Any, dX: np.ndarray) -> np.ndarray:
        """Return the change of all steps' learnt parameters when one row changes."""
        moves, here = [], X
        for step in self.steps:
            moves.append(step.influence(here, dX))
            here, dX = step.transform(here), step.push(here, dX)
        return self._settled(X, moves)

    def response(self, X: Any, first: Any, other: Any) -> np.ndarray:
        """Return the linearised change of learnt parameters when ``other`` replaces ``first``."""
        moves, here = [], X
        for step in self.steps:
            moves.append(step.response(here, first, other))
            here, first, other = (step.transform(rows) for rows in (here, first, other))
        return self._settled(X, moves)

    def _settled(self, X: Any, moves: list[np.ndarray]) -> np.ndarray:
        """Add the effect of earlier steps on later steps to a row's direct effect on each step."""
        if sum(move.shape[1] > 0 for move in moves) > 1:
            responses = self._later(X)
            for s, move in enumerate(moves):
                for later in range(s + 1, len(moves)):
                    moves[later] = moves[later] + move @ responses[s][later].T
        return np.hstack([np.zeros((moves[0].shape[0] if moves else 0, 0)), *moves])

    def _later(self, X: Any) -> list[list[np.ndarray]]:
        """Return the direct effect of a step's learnt parameters on those of each later step.

        The parameters of the steps in between are held fixed.
        """
        if self._responses is None or self._responses[0] is not X:
            inputs = self.inputs(X)
            found = []
            for s, step in enumerate(self.steps):
                row = [np.zeros((len(later.learnt()), len(step.learnt()))) for later in self.steps]
                for a in range(len(step.learnt())):
                    for later, change in self._moved_by(s, a, inputs).items():
                        row[later][:, a] = change
                found.append(row)
            self._responses = (X, found)
        return self._responses[1]

    def _moved_by(self, s: int, a: int, inputs: list[Any]) -> dict[int, np.ndarray]:
        step = self.steps[s]
        numbers = step.learnt()
        unit = float(step.units(inputs[s])[a])
        sizes = {k: len(later.learnt()) for k, later in enumerate(self.steps) if k > s}
        if not any(sizes.values()):
            return {}

        def later(h: float) -> np.ndarray:
            moved = numbers.copy()
            moved[a] += h * unit
            rows, out = step.with_learnt(moved).transform(inputs[s]), [np.zeros(0)]
            for k in sizes:
                out.append(self.steps[k].refitted(rows).learnt() if sizes[k] else np.zeros(0))
                rows = self.steps[k].transform(rows)
            return np.concatenate(out)

        change = by_differences(later, f"The part after {step.name}") / unit
        cuts = np.cumsum(list(sizes.values()))[:-1]
        return dict(zip(sizes, np.split(change, cuts), strict=True))


class ColumnsApart(FeatureStep):
    """A ``ColumnTransformer`` or ``FeatureUnion``, whose steps run in parallel."""

    def __init__(
        self, inner: Any, parts: list[tuple[np.ndarray, slice, FeatureStep]], width: int
    ) -> None:
        self.inner, self.name = inner, type(inner).__name__
        self.parts, self.width = parts, width

    @classmethod
    def of_columns(cls, inner: Any, X: Any) -> ColumnsApart:
        """Return a fitted ``ColumnTransformer`` as a step."""
        parts: list[tuple[np.ndarray, slice, FeatureStep]] = []
        for name, transformer, _ in inner.transformers_:
            where = inner.output_indices_[name]
            if isinstance(transformer, str) and transformer == "drop":
                continue
            columns = np.asarray(inner._transformer_to_input_indices[name], dtype=int)
            if where.stop > where.start and len(columns):
                parts.append((columns, where, as_step(transformer, take(X, columns))))
        return cls(inner, parts, max((w.stop for w in inner.output_indices_.values()), default=0))

    @classmethod
    def of_union(cls, inner: Any, X: Any) -> ColumnsApart:
        """Return a fitted ``FeatureUnion`` as a step."""
        every, parts, at = np.arange(np.shape(X)[1]), [], 0
        for name, transformer in inner.transformer_list:
            if isinstance(transformer, str) and transformer == "drop":
                continue
            if (inner.transformer_weights or {}).get(name, 1.0) != 1.0:
                raise refusal(
                    "A FeatureUnion with transformer_weights is not supported, because seepage "
                    "does not rescale its parts.",
                    "Omit the weights, or put a scaler at the end of each part.",
                )
            step = as_step(transformer, X)
            width = dense(step.transform(X)).shape[1]
            parts.append((every, slice(at, at + width), step))
            at += width
        return cls(inner, parts, at)

    def transform(self, X: Any) -> np.ndarray:
        """Return the outputs of all parts, concatenated by column."""
        out = np.zeros((np.shape(X)[0], self.width))
        for columns, where, step in self.parts:
            out[:, where] = dense(step.transform(take(X, columns)))
        return out

    def push(self, X: Any, dX: np.ndarray) -> np.ndarray:
        """Return the product of the parts' derivatives with ``dX``."""
        out = np.zeros((len(dX), self.width))
        for columns, where, step in self.parts:
            moved = dX[:, columns]
            if np.any(moved):
                out[:, where] = step.push(take(X, columns), moved)
        return out

    def refitted(self, X: Any) -> FeatureStep:
        """Return all parts refitted on new rows."""
        from sklearn.base import clone

        return as_step(clone(self.inner).fit(X), X)

    def learnt(self) -> np.ndarray:
        """Return the learnt parameters of all parts."""
        return np.concatenate([np.zeros(0), *(step.learnt() for _, _, step in self.parts)])

    @property
    def held(self) -> tuple[str, ...]:  # type: ignore[override]
        """Everything that the parts learnt from the data."""
        return joined(*(step.held for _, _, step in self.parts))

    @property
    def choices(self) -> tuple[str, ...]:  # type: ignore[override]
        """Everything that the parts chose from the data."""
        return joined(*(step.choices for _, _, step in self.parts))

    def units(self, X: Any) -> np.ndarray:
        """Return the units of all parts' learnt parameters."""
        each = (step.units(take(X, columns)) for columns, _, step in self.parts)
        return np.concatenate([np.zeros(0), *each])

    def with_learnt(self, numbers: np.ndarray) -> FeatureStep:
        """Return a copy with different learnt parameters."""
        other, at, parts = copy(self), 0, []
        for columns, where, step in self.parts:
            size = len(step.learnt())
            parts.append((columns, where, step.with_learnt(numbers[at : at + size])))
            at += size
        other.parts = parts
        return other

    def influence(self, X: Any, dX: np.ndarray) -> np.ndarray:
        """Return the change of all parts' learnt parameters."""
        moves = [np.zeros((len(dX), 0))]
        for columns, _, step in self.parts:
            moved = dX[:, columns]
            if np.any(moved):
                moves.append(step.influence(take(X, columns), moved))
            else:
                moves.append(np.zeros((len(dX), len(step.learnt()))))
        return np.hstack(moves)

    def response(self, X: Any, first: Any, other: Any) -> np.ndarray:
        """Return the linearised change of learnt parameters when ``other`` replaces ``first``."""
        rows = (X, first, other)
        return np.hstack(
            [
                np.zeros((np.shape(X)[0], 0)),
                *(step.response(*(take(r, c) for r in rows)) for c, _, step in self.parts),
            ]
        )


def take(X: Any, columns: np.ndarray) -> Any:
    """Return some columns of a data frame or an array."""
    from sklearn.utils import _safe_indexing

    if len(columns) == np.shape(X)[1] and np.array_equal(columns, np.arange(len(columns))):
        return X
    return _safe_indexing(X, columns, axis=1)


def as_step(transformer: Any, X: Any) -> FeatureStep:
    """Return a fitted scikit-learn transformer as a step; ``X`` contains its input rows."""
    # Others' classes of these names, and derived ones that override something, are measured whole.
    name = own_name(transformer, "sklearn", ("ColumnTransformer", "FeatureUnion", "Pipeline"))
    if name == "ColumnTransformer":
        return ColumnsApart.of_columns(transformer, X)
    if name == "FeatureUnion":
        return ColumnsApart.of_union(transformer, X)
    if name == "Pipeline":
        return Chain.of_pipeline(transformer, X)
    if isinstance(transformer, str) or transformer is None:
        from sklearn.preprocessing import FunctionTransformer

        return Transformer(FunctionTransformer().fit(X))
    return Transformer(transformer)
