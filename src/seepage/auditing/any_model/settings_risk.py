"""Settings of tree models that are needlessly risky for any data.

The rules are those of SACRO-ML 2.0.1. They come from a study of membership inference against
decision trees, random forests and XGBoost with many settings (Preen and Smith 2025,
https://arxiv.org/abs/2502.09396). They describe the fifth of the settings for which the attack's
area under the ROC curve was largest. A model matches a rule if it has all settings that the rule
names. The rules apply to these three kinds of model only.
"""

from __future__ import annotations

import math
from typing import Any

from seepage.support.library_classes import library_class

_ALL = "all columns"
_SOME = "some columns"
# An interval (low, high] of a number, or a value; the depth of a tree without a limit is infinite
_RULES: dict[str, tuple[dict[str, Any], ...]] = {
    "DecisionTreeClassifier": (
        {"max_depth": (7.5, math.inf), "min_samples_leaf": (0, 7.5), "min_samples_split": (0, 15)},
        {
            "splitter": "best",
            "max_depth": (7.5, math.inf),
            "min_samples_leaf": (0, 7.5),
            "min_samples_split": (15, math.inf),
        },
        {
            "splitter": "best",
            "max_depth": (7.5, math.inf),
            "min_samples_leaf": (7.5, 15),
            "max_features": _ALL,
        },
        {
            "splitter": "best",
            "max_depth": (3.5, 7.5),
            "min_samples_leaf": (0, 7.5),
            "max_features": _ALL,
        },
        {
            "splitter": "random",
            "max_depth": (7.5, math.inf),
            "min_samples_leaf": (0, 7.5),
            "max_features": _ALL,
        },
    ),
    "RandomForestClassifier": (
        {"max_depth": (3.5, math.inf), "n_estimators": (35, math.inf), "max_features": _SOME},
        {
            "max_depth": (3.5, math.inf),
            "n_estimators": (35, math.inf),
            "min_samples_split": (0, 15),
            "max_features": _ALL,
            "bootstrap": True,
        },
        {
            "max_depth": (7.5, math.inf),
            "n_estimators": (15, 35),
            "min_samples_leaf": (0, 15),
            "bootstrap": False,
        },
    ),
    "XGBClassifier": (
        {
            "max_depth": (3.5, math.inf),
            "n_estimators": (3.5, 12.5),
            "min_child_weight": (-math.inf, 1.5),
        },
        {
            "max_depth": (3.5, math.inf),
            "n_estimators": (12.5, math.inf),
            "min_child_weight": (-math.inf, 3),
        },
        {
            "max_depth": (3.5, math.inf),
            "n_estimators": (62.5, math.inf),
            "min_child_weight": (3, 6),
        },
    ),
}
# What XGBoost does where nothing was set
_XGBOOST: dict[str, float] = {"n_estimators": 100, "max_depth": 6, "min_child_weight": 1}


def rules_met(model: Any, records: int) -> int | None:
    """Return how many rules on risky settings a model matches; ``None`` if no rule applies to it.

    A fraction of the records, such as ``min_samples_leaf=0.01``, is converted to a count out of
    ``records``.
    """
    known = library_class(model, ("sklearn", "xgboost"))
    if known is None or known.name not in _RULES:
        return None
    settings = dict(model.get_params(deep=False))
    if known.library == "xgboost":
        settings |= {name: value for name, value in _XGBOOST.items() if settings[name] is None}
    elif settings["max_depth"] is None:
        settings["max_depth"] = math.inf
    for name in ("min_samples_leaf", "min_samples_split"):
        share = settings.get(name)
        if isinstance(share, float) and share < 1:
            settings[name] = math.ceil(share * records)
    return sum(
        all(_meets(settings[name], wanted) for name, wanted in rule.items())
        for rule in _RULES[known.name]
    )


def _meets(value: Any, wanted: Any) -> bool:
    if wanted in (_ALL, _SOME):
        return (value is None) is bool(wanted == _ALL)
    if isinstance(wanted, tuple):
        return bool(wanted[0] < value <= wanted[1])
    return bool(value == wanted)
