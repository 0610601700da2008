"""The classifiers an adversary may use to read a property off gradients, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from seepage.errors import InputError, nearest


def _logistic(seed: int) -> Any:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    # Wide gradients separate any few of them perfectly; the penalty keeps predictions moderate.
    model = LogisticRegression(C=0.1, max_iter=500, random_state=seed)
    return make_pipeline(StandardScaler(), model)


def _random_forest(seed: int) -> Any:
    from sklearn.ensemble import RandomForestClassifier

    return RandomForestClassifier(n_estimators=100, random_state=seed)


def _gradient_boosting(seed: int) -> Any:
    from sklearn.ensemble import HistGradientBoostingClassifier

    return HistGradientBoostingClassifier(max_iter=100, random_state=seed)


def _mlp(seed: int) -> Any:
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = MLPClassifier((64,), early_stopping=True, max_iter=300, random_state=seed)
    return make_pipeline(StandardScaler(), model)


CLASSIFIERS: dict[str, Callable[[int], Any]] = {
    "logistic": _logistic,
    "random_forest": _random_forest,
    "gradient_boosting": _gradient_boosting,
    "mlp": _mlp,
}


def find_family(family: Any, seed: int) -> Any:
    """Return an unfitted classifier: one of the named ones, or a copy of the caller's own.

    Examples
    --------
    >>> from seepage.layers.measures.classifiers import find_family
    >>> find_family("random_forest", seed=0).n_estimators
    100
    """
    check_seed(seed)
    if isinstance(family, str):
        if family not in CLASSIFIERS:
            raise InputError(
                f"There is no family {family!r}{nearest(family, CLASSIFIERS)}; there are "
                f"{', '.join(CLASSIFIERS)}, or give a classifier of scikit-learn."
            )
        return CLASSIFIERS[family](seed)
    if isinstance(family, type):
        raise InputError(
            f"family is the class {family.__name__}; give a classifier of it, such as "
            f"{family.__name__}()."
        )
    from sklearn.base import clone

    if not (hasattr(family, "fit") and hasattr(family, "predict_proba")):
        raise InputError(
            f"{type(family).__name__} cannot serve as a family: it needs fit and predict_proba "
            "(CalibratedClassifierCV of scikit-learn adds the latter to many classifiers)."
        )
    return clone(family)


def family_name(family: Any) -> str:
    """Return what to call a family in words."""
    return family.replace("_", " ") if isinstance(family, str) else type(family).__name__


def check_seed(seed: int) -> None:
    """Raise unless NumPy and scikit-learn take this seed."""
    if not 0 <= seed < 1 << 32:
        raise InputError(f"seed must lie between 0 and 2³² − 1, but is {seed!r}.")
