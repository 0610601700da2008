"""The classifiers, by name, that an adversary may use to infer a property from gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sklearn.base import clone
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from seepage.errors import InputError, nearest
from seepage.layers.measures.property_batches import check_seed

CLASSIFIERS: dict[str, Callable[[int], Any]] = {
    # A few wide gradients can always be separated perfectly; the penalty keeps predictions
    # moderate.
    "logistic": lambda seed: make_pipeline(
        StandardScaler(), LogisticRegression(C=0.1, max_iter=500, random_state=seed)
    ),
    "random_forest": lambda seed: RandomForestClassifier(n_estimators=100, random_state=seed),
    "gradient_boosting": lambda seed: HistGradientBoostingClassifier(
        max_iter=100, random_state=seed
    ),
    "mlp": lambda seed: make_pipeline(
        StandardScaler(),
        MLPClassifier((64,), early_stopping=True, max_iter=300, random_state=seed),
    ),
}


def find_classifier(family: Any, seed: int) -> Any:
    """Return an unfitted classifier: a named one, or a copy of the given one.

    Examples
    --------
    >>> from seepage.layers.measures.classifiers import find_classifier
    >>> find_classifier("random_forest", seed=0).n_estimators
    100
    """
    check_seed(seed)
    if isinstance(family, str):
        if family not in CLASSIFIERS:
            raise InputError(
                f"There is no family {family!r}{nearest(family, CLASSIFIERS)}; choose from "
                f"{', '.join(CLASSIFIERS)}, or give a scikit-learn classifier."
            )
        return CLASSIFIERS[family](seed)
    if isinstance(family, type):
        raise InputError(
            f"family is the class {family.__name__}; give an instance of it, such as "
            f"{family.__name__}()."
        )
    if not (hasattr(family, "fit") and hasattr(family, "predict_proba")):
        raise InputError(
            f"{type(family).__name__} cannot be used as a family because it lacks fit or "
            "predict_proba; scikit-learn's CalibratedClassifierCV adds the latter to many "
            "classifiers."
        )
    return clone(family)
