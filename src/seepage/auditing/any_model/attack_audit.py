"""An audit by attack: fit, attack with shadow models, look at how the model is built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from seepage.attacks.membership.inference import (
    MembershipInference,
    MembershipInferenceResult,
    first_line,
    rows_of,
)
from seepage.attacks.membership.signals import check_estimator
from seepage.auditing.any_model.structure import StructuralRisk, structural_risks
from seepage.auditing.audit import find_versions
from seepage.errors import InputError, nearest
from seepage.support.library_classes import own_name
from seepage.tables.source import as_numpy

# Where scikit-learn has the classifier and the regressor of a kind
KINDS = {
    "forest": ("ensemble", "RandomForestClassifier", "RandomForestRegressor"),
    "boosting": ("ensemble", "HistGradientBoostingClassifier", "HistGradientBoostingRegressor"),
    "tree": ("tree", "DecisionTreeClassifier", "DecisionTreeRegressor"),
    "svm": ("svm", "SVC", "SVR"),
    "mlp": ("neural_network", "MLPClassifier", "MLPRegressor"),
    "neighbours": ("neighbors", "KNeighborsClassifier", "KNeighborsRegressor"),
}
MOST_RECORDS = 20_000  # the most records, halves of which shadow models are fitted on


@dataclass(frozen=True)
class AttackAudit:
    """What an audit by attack found: kind *attack*, never a bound.

    Parameters
    ----------
    source, target, model
        What was audited, which column is predicted, and by what model, in words.
    records
        How many records the model was fitted on.
    attacks
        The results of LiRA and RMIA.
    attacked
        The positions of the records that were attacked: all, or some drawn at random.
    shadows, targets
        How many models were fitted as shadow models, and how many were attacked.
    structure
        Structural risks, which need no attack.
    steps
        What was done, one sentence each.
    versions
        Versions of the software that computed this.
    """

    source: str
    target: str
    model: str
    records: int
    attacks: tuple[MembershipInferenceResult, ...]
    attacked: np.ndarray
    shadows: int
    targets: int
    structure: tuple[StructuralRisk, ...]
    steps: tuple[str, ...]
    versions: dict[str, str]

    @property
    def strongest(self) -> MembershipInferenceResult:
        """The attack with the largest area under its curve."""
        return max(self.attacks, key=lambda attack: attack.auc)

    def __repr__(self) -> str:
        found = sum(risk.found for risk in self.structure)
        return f"<audit of {self.model} by attack: {self.strongest!r}; {found} structural risks>"


def make_estimator(kind: str, classes: bool, seed: int = 0) -> Any:
    """Return scikit-learn's estimator of a kind with its default settings, not fitted."""
    if kind not in KINDS:
        raise InputError(
            f"There is no kind of model {kind!r}{nearest(kind, KINDS)}; choose one of "
            f"{', '.join(KINDS)}."
        )
    module, *names = KINDS[kind]
    made = getattr(import_module(f"sklearn.{module}"), names[0 if classes else 1])()
    return made.set_params(random_state=seed) if "random_state" in made.get_params() else made


def audit_estimator(
    estimator: Any,
    X: Any,
    y: Any,
    *,
    source: str = "the given table",
    target: str = "label",
    shadows: int = 16,
    jobs: int = 1,
    seed: int = 0,
    steps: tuple[str, ...] = (),
    tell: Callable[[str], object] | None = None,
) -> AttackAudit:
    """Audit any scikit-learn classifier or regressor by attack.

    Parameters
    ----------
    estimator
        It is cloned and fitted on all records and on random halves.
    X, y
        The records and their labels. A data frame is given to the estimator as it is, with the
        names of its columns, so that a pipeline may encode text.
    source, target
        What they are called in the report.
    shadows
        How many shadow models to fit.
    jobs
        How many to fit at a time.
    seed
        Of the halves.
    steps
        What was done to the data beforehand, in sentences.
    tell
        Called with the name of each stage.

    Examples
    --------
    >>> import numpy as np, seepage as sp
    >>> from sklearn.tree import DecisionTreeClassifier
    >>> rng = np.random.default_rng(0)
    >>> X, y = rng.standard_normal((200, 4)), rng.integers(0, 2, 200)
    >>> sp.audit_estimator(DecisionTreeClassifier(random_state=0), X, y, shadows=8)
    <audit of DecisionTreeClassifier by attack: <membership inference by ...
    """
    from sklearn.base import clone

    check_estimator(estimator)
    say = tell or (lambda words: None)
    X, y = _as_given(X), as_numpy(y)
    if len(X) != len(y):
        raise InputError(f"X has {len(X)} rows and y {len(y)}; they must have the same number.")
    say("fitting")
    try:
        model = clone(estimator).fit(X, y)
    except (TypeError, ValueError) as problem:
        name = type(estimator).__name__
        raise InputError(
            f"{name} cannot be fitted on these records ({first_line(problem)}). Text and gaps need "
            "a step before the model that encodes or fills them, in a Pipeline."
        ) from problem
    say("structure")
    structure = structural_risks(model, X, y)
    chosen, done = np.arange(len(X)), list(steps)
    if len(X) > MOST_RECORDS:
        chosen = np.sort(np.random.default_rng(seed).permutation(len(X))[:MOST_RECORDS])
        done.append(
            f"The attacked models are of {MOST_RECORDS:,} of the {len(X):,} records, drawn at "
            "random: models of fewer records tend to tell more about them, not less."
        )
    targets = 2
    done.append(
        f"{shadows + targets} models were fitted on random halves of the records; {targets} of "
        "them were attacked, with the others as shadow models."
    )
    say("shadow models")
    attack = MembershipInference(estimator, shadows=shadows, jobs=jobs, seed=seed)
    results = attack.run_all(rows_of(X, chosen), y[chosen], targets=targets)
    return AttackAudit(
        source=source,
        target=target,
        model=_called(estimator),
        records=len(X),
        attacks=results,
        attacked=chosen,
        shadows=shadows,
        targets=targets,
        structure=structure,
        steps=tuple(done),
        versions=find_versions(),
    )


def _as_given(X: Any) -> Any:
    """Return a data frame as it is; anything else as an array, of numbers unless it holds text."""
    if hasattr(X, "columns") or hasattr(X, "column_names"):
        return X
    values = as_numpy(X)
    return values if values.dtype.kind in "OUS" else np.asarray(values, dtype=float)


def _called(estimator: Any) -> str:
    """Return an estimator's class in words; of a pipeline, that of its last step."""
    if own_name(estimator, "sklearn", ("Pipeline",)) is None:
        return type(estimator).__name__
    return f"{type(estimator.steps[-1][1]).__name__} in a Pipeline"
