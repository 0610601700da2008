"""The registry of all kinds of models, and ``describe``: from a fitted model to its objective.

The page ``docs/how-to/models.md`` lists every kind and is made from this registry.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from array_api_compat import array_namespace, device

from seepage.errors import InputError
from seepage.glm.adapters import other_libraries, ours, refused, scikit_learn, statsmodels_results
from seepage.glm.adapters.kinds import PAGE, SEARCHES, ModelKind, RefusedKind
from seepage.glm.fitting.objective import FittedGLM
from seepage.tables.source import Table

KINDS: tuple[ModelKind | RefusedKind, ...] = (
    *ours.KINDS,
    *scikit_learn.KINDS,
    *statsmodels_results.KINDS,
    *other_libraries.KINDS,
    *refused.KINDS,
)
_BY_NAME = {(kind.library, kind.name): kind for kind in KINDS}
SUPPORTED = (
    "seepage.glm's LinearRegression, LogisticRegression, PoissonRegression, SoftmaxRegression and "
    "GeneralizedLinearRegression, the linear models of scikit-learn, statsmodels, glum and skglm "
    f"listed in {PAGE}, and pipelines and searches of these"
)


def kind_of(model: Any) -> ModelKind:
    """Return the kind of a fitted model, or refuse it with the reason."""
    names = list(_names(model))
    for library, name in names:
        kind = _BY_NAME.get((library, name)) or _BY_NAME.get((library, "*"))
        if isinstance(kind, RefusedKind):
            raise kind.error()
        if kind is not None:
            return kind
    library = names[0][0]
    raise InputError(
        f"A {type(model).__name__} of {library} is not supported; supported are {SUPPORTED}."
    )


def describe(model: Any, table: Table, y: Any, sample_weight: Any = None) -> FittedGLM:
    """Return the family, parameters, penalty, weights and labels of a fitted model.

    The table, the labels, as the model knows them (classes may be strings), and the weights are
    those it was fitted with. Refused are models that are not in the registry, not fitted, of other
    columns than the table's, or whose objective is not that of a GLM on this very table.
    """
    if getattr(model, "release_", None) is not None:
        raise InputError(
            "This model has been released: its coefficients carry noise and minimise nothing; pass "
            "the original model."
        )
    if type(model).__name__ in ("Pipeline", *SEARCHES):
        raise InputError(
            f"A {type(model).__name__} also leaks through its transformers: pass its final "
            "estimator and the transformed table (pipeline[-1] and pipeline[:-1].transform(X)); "
            "sp.leakage and sp.audit take it as it is."
        )
    return kind_of(model).read(model, _in_double(table), y, sample_weight)


def _names(model: Any) -> Iterator[tuple[str, str]]:
    """Yield the names a model may be known by: its class's, and those of a user's class's bases."""
    if _library(type(model)) == "statsmodels":
        model = getattr(model, "model", model)
    for cls in type(model).__mro__[:-1] or (type(model),):
        yield _library(cls), cls.__name__
        # What another library derives from a class of its own minimises something else.
        if _library(cls) in ("sklearn", "statsmodels", "glum", "skglm"):
            return


def _library(cls: type) -> str:
    return cls.__module__.partition(".")[0]


def _in_double(table: Table) -> Table:
    """Return a stand-in for the table, of its shape, library and device but in float64.

    No reader looks at the values, and coefficients, labels and weights are not to be rounded to
    the type of a table in single precision.
    """
    xp = array_namespace(table.values)
    zero = xp.zeros((1, 1), dtype=xp.float64, device=device(table.values))
    return replace(table, values=xp.broadcast_to(zero, table.values.shape))
