"""The formula of a statsmodels model, as a step from a data frame to the design matrix.

Formulas are differentiated by finite differences. Functions such as ``center`` and ``bs`` learn
values from the data. Only the formula library has access to these values, so they can be frozen but
not refitted.
"""

from __future__ import annotations

import ast
from typing import Any

import narwhals as nw
import numpy as np

from seepage.core.result import LEVELS
from seepage.errors import InputError
from seepage.glm.preprocessing.steps import FeatureStep, by_differences
from seepage.glm.refusals import refusal
from seepage.tables.names import counted

_LEARNT = "preprocessing"  # what functions such as center keep, in a word


class FormulaStep(FeatureStep):
    """The right-hand side of a formula, without the column of ones."""

    name = "formula"

    def __init__(self, spec: Any, constant: int | None) -> None:
        self.spec, self.constant = spec, constant

    @classmethod
    def of(cls, results: Any) -> FormulaStep:
        """Return the formula of fitted results."""
        data = results.model.data
        if getattr(data, "missing_row_idx", None):
            raise InputError(
                f"The formula dropped {counted(len(data.missing_row_idx), 'row')} with missing "
                "values; drop all such rows from the data frame and from y, and fit again."
            )
        spec = getattr(data, "model_spec", None)
        return cls(getattr(data, "design_info", None) if spec is None else spec, data.const_idx)

    def transform(self, X: Any) -> np.ndarray:
        """Return the design matrix of a data frame."""
        if hasattr(self.spec, "get_model_matrix"):  # formulaic's
            made = np.asarray(self.spec.get_model_matrix(X), dtype=float)
        else:
            from patsy import PatsyError, build_design_matrices

            frame = nw.from_native(X, eager_only=True)
            columns = {name: frame[name].to_numpy() for name in frame.columns}
            try:
                made = np.asarray(build_design_matrices([self.spec], columns, NA_action="raise")[0])
            except PatsyError as problem:
                raise InputError(
                    f"X does not match the model's formula: {str(problem).splitlines()[0]}; pass "
                    "the data frame that the model was fitted on."
                ) from problem
        return made if self.constant is None else np.delete(made, self.constant, axis=1)

    def coded(self, X: Any) -> tuple[str, ...]:
        """Return the numeric columns that the formula treats as categories, as in C(race)."""
        columns = [str(name) for name in nw.from_native(X, eager_only=True).columns]
        nodes = [node for code in self._categories() for node in ast.walk(ast.parse(code))]
        named: set[Any] = {node.id for node in nodes if isinstance(node, ast.Name)}
        named |= {node.value for node in nodes if isinstance(node, ast.Constant)}  # Q("column")
        return tuple(name for name in columns if name in named)

    def _categories(self) -> list[str]:
        """Return the categorical terms of the formula, as written."""
        if hasattr(self.spec, "encoder_state"):  # formulaic's
            found = self.spec.encoder_state.items()
            return [str(code) for code, (kind, _) in found if kind.value == "categorical"]
        infos = self.spec.factor_infos.items()
        return [factor.code for factor, info in infos if info.type == "categorical"]

    def push(self, X: Any, dX: np.ndarray) -> np.ndarray:
        """Return the derivative of the design matrix, by finite differences."""
        frame = nw.from_native(X, eager_only=True)
        moving = {name: dX[:, j] for j, name in enumerate(frame.columns) if np.any(dX[:, j])}
        start = {name: frame[name].to_numpy().astype(float) for name in moving}
        size = max(
            (float(np.max(np.abs(d)) / (np.std(start[n]) or 1.0)) for n, d in moving.items())
        )

        def moved(h: float) -> np.ndarray:
            shifted = [
                nw.new_series(name, start[name] + h / size * d, backend=frame.implementation)
                for name, d in moving.items()
            ]
            return self.transform(frame.with_columns(*shifted).to_native())

        return by_differences(moved, "The formula") * size

    def learnt(self) -> np.ndarray:
        """Return an empty vector, or raise an error if the formula has learnt values."""
        if _LEARNT in self.held:
            raise refusal(
                "Only the formula library has access to the values that functions such as center, "
                "standardize and bs learn from the data, so seepage cannot refit them.",
                "Use preprocessing='frozen', which treats these values as public.",
            )
        return np.zeros(0)

    @property
    def held(self) -> tuple[str, ...]:  # type: ignore[override]
        """Values that functions in the formula learnt from the data."""
        return (*([_LEARNT] if learns_from_data(self.spec) else []), *self.choices)

    @property
    def choices(self) -> tuple[str, ...]:  # type: ignore[override]
        """The levels of the formula's categories."""
        return (LEVELS,) if self._categories() else ()


def learns_from_data(spec: Any) -> bool:
    """Return whether functions in a patsy or formulaic formula learn from the data."""
    if hasattr(spec, "transform_state"):
        return bool(spec.transform_state)
    return any(info.state.get("transforms") for info in spec.factor_infos.values())
