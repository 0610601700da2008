"""The formula of a statsmodels model as a step: from the caller's own data frame to the design.

Formulas are differentiated by finite differences. What they learn from the data (``center``, ``bs``
and the like) only the library that reads them knows, so it can be frozen but not refitted.
"""

from __future__ import annotations

import ast
from typing import Any

import narwhals as nw
import numpy as np

from seepage.errors import InputError
from seepage.glm.adapters.kinds import refusal
from seepage.glm.preprocessing.steps import FeatureStep, by_differences


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
                f"The formula left out {len(data.missing_row_idx)} rows with missing values; drop "
                "them from the data frame, and from y, and fit again."
            )
        spec = getattr(data, "model_spec", None)
        return cls(getattr(data, "design_info", None) if spec is None else spec, data.const_idx)

    def transform(self, X: Any) -> np.ndarray:
        """Return the design of a data frame."""
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
                    f"X does not fit the model's formula: {str(problem).splitlines()[0]}; pass the "
                    "data frame that the model was fitted on."
                ) from problem
        return made if self.constant is None else np.delete(made, self.constant, axis=1)

    def coded(self, X: Any) -> tuple[str, ...]:
        """Return the columns of numbers that the formula takes as categories, such as C(race)."""
        columns = [str(name) for name in nw.from_native(X, eager_only=True).columns]
        if hasattr(self.spec, "encoder_state"):  # formulaic's
            written = [
                str(factor)
                for factor, (kind, _) in self.spec.encoder_state.items()
                if kind.value == "categorical"
            ]
        else:
            written = [
                factor.code
                for factor, info in self.spec.factor_infos.items()
                if info.type == "categorical"
            ]
        named = {
            node.id if isinstance(node, ast.Name) else node.value
            for code in written
            for node in ast.walk(ast.parse(code, mode="eval"))
            if isinstance(node, ast.Name)
            or (isinstance(node, ast.Constant) and isinstance(node.value, str))  # Q("column")
        }
        return tuple(name for name in columns if name in named)

    def push(self, X: Any, dX: np.ndarray) -> np.ndarray:
        """Return the derivative of the design, by differences."""
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
        """Return nothing, or refuse where the formula has learnt something."""
        if self.held:
            raise refusal(
                "What a formula learns from the data (center, standardize or bs) is known only to "
                "the library that reads it, and cannot be refitted here.",
                "Take preprocessing='frozen', which counts it as public.",
            )
        return np.zeros(0)

    @property
    def held(self) -> tuple[str, ...]:  # type: ignore[override]
        """What functions in the formula keep from the data it was fitted on."""
        if hasattr(self.spec, "transform_state"):
            learns = bool(self.spec.transform_state)
        else:
            infos = self.spec.factor_infos.values()
            learns = any(info.state.get("transforms") for info in infos)
        return ("preprocessing",) if learns else ()
