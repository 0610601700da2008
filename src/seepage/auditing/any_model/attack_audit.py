"""Audits a model by attack: fits it, attacks it with shadow models, and checks its structure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from seepage.attacks.attribute.any_model import GuessingPlan, guess_columns, plan_guesses
from seepage.attacks.halves import fit_halves, random_halves, rows_of
from seepage.attacks.membership.inference import attack_all
from seepage.attacks.membership.signals import check_estimator, confidence
from seepage.auditing.any_model.findings import AttackAudit
from seepage.auditing.any_model.held_out import HeldOutFinding, compare_held_out, record_errors
from seepage.auditing.any_model.inputs import prepare
from seepage.auditing.any_model.limits import check_attack_limits, hold_to
from seepage.auditing.any_model.report import verdict_in_words
from seepage.auditing.any_model.structure import examine
from seepage.auditing.audit import find_versions
from seepage.auditing.findings import StructuralRisk
from seepage.auditing.questions import Limits
from seepage.errors import InputError, accepts_other_names, nearest
from seepage.support.library_classes import own_name
from seepage.support.number_check import check_count
from seepage.tables.names import counted, listed
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
MOST_RECORDS = 20_000  # the most records from which the halves are drawn


def make_estimator(kind: str, classes: bool, seed: int = 0) -> Any:
    """Return an unfitted scikit-learn estimator of this kind with default settings."""
    if kind not in KINDS:
        raise InputError(
            f"There is no model kind {kind!r}{nearest(kind, KINDS)}; choose one of "
            f"{', '.join(KINDS)}."
        )
    module, *names = KINDS[kind]
    made = getattr(import_module(f"sklearn.{module}"), names[0 if classes else 1])()
    return made.set_params(random_state=seed) if "random_state" in made.get_params() else made


@accepts_other_names
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
    together: Mapping[str, Sequence[int]] | None = None,
    groups: Mapping[str, Any] | None = None,
    limits: Limits | None = None,
    preset: str | None = None,
    steps: tuple[str, ...] = (),
    tell: Callable[[str], object] | None = None,
) -> AttackAudit:
    """Audit any scikit-learn classifier or regressor by attack.

    Parameters
    ----------
    estimator
        The estimator; clones of it are fitted on all records, and on random halves of the records
        (of 20,000 records drawn at random, if there are more).
    X, y
        The records and their labels. A data frame is passed to the estimator unchanged, with its
        column names, so that a pipeline may encode text. If the estimator does not accept text or
        missing values, an encoding step is put before it and listed in :attr:`AttackAudit.steps`.
    source, target
        The names of the data and of the labels in the report.
    shadows
        The number of shadow models to fit, in addition to two attacked models.
    jobs
        The number of models to fit in parallel.
    seed
        The seed of the random halves and of the records and columns drawn.
    together
        The column positions of attributes that are encoded in several columns, by attribute name.
        By default, every column is an attribute.
    groups
        The group of every record, by name, such as ``{"sex": table["sex"]}``. The report then gives
        the success rate of guesses in each group.
    limits, preset
        Limits on attack success, or the name of a preset. An attack that exceeds a limit fails the
        audit; an attack within a limit does not prove that the limit is met.
    steps
        Sentences about earlier processing of the data.
    tell
        A function that is called with the name of each stage.

    Examples
    --------
    >>> import numpy as np, seepage as sp
    >>> from sklearn.tree import DecisionTreeClassifier
    >>> rng = np.random.default_rng(0)
    >>> X, y = rng.standard_normal((200, 4)), rng.integers(0, 2, 200)
    >>> sp.audit_estimator(DecisionTreeClassifier(random_state=0), X, y, shadows=8)
    <audit of DecisionTreeClassifier by attack: Members can be recognised: Do not release: ...
    """
    check_estimator(estimator)
    held_to = Limits(preset=preset) if limits is None else limits
    check_attack_limits(held_to)
    check_count(shadows, "shadows", 4)
    say = tell or (lambda words: None)
    say("fitting")
    given = prepare(estimator, X, y)
    X, y = given.X, given.y
    labels = {name: _labels_of(name, values, len(y)) for name, values in (groups or {}).items()}
    say("structure")
    structure = examine(given.model, X, y)
    chosen, done = np.arange(len(y)), [*steps, *given.steps]
    if len(y) > MOST_RECORDS:
        chosen = np.sort(np.random.default_rng(seed).permutation(len(y))[:MOST_RECORDS])
        done.append(
            f"The attack used {MOST_RECORDS:,} of the {len(y):,} records, drawn at random. "
            "Models fitted on fewer records tend to leak more about these records, not less."
        )
    targets = 2
    done.append(
        f"{shadows + targets} models were fitted on random halves of the records; {targets} of "
        "them were attacked, with the other models as shadow models."
    )
    X, y = rows_of(X, chosen), y[chosen]
    plan = plan_guesses(X, y, together, seed=seed)
    done.append(_said_of(plan))
    say("shadow models")
    inside = random_halves(len(y), shadows + targets, seed)
    ask = partial(_asked, X=X, y=y, plan=plan)
    answers = fit_halves(given.estimator, X, y, inside, ask, jobs=jobs)
    signals = np.stack([answer.signal for answer in answers])
    errors = np.stack([answer.error for answer in answers])
    classes = getattr(given.model, "classes_", None) is not None
    held_out = compare_held_out(errors, signals, inside, y, classes=classes, targets=targets)
    found = guess_columns(plan, [answer.guessed for answer in answers], signals, inside)
    audit = AttackAudit(
        source=source,
        target=target,
        model=_called(estimator),
        records=len(given.y),
        attacks=attack_all(signals, inside, targets),
        attacked=chosen,
        shadows=shadows,
        targets=targets,
        structure=(*structure.risks, _gap(held_out, len(given.y))),
        by_record=structure.records,
        guesses=tuple(replace(one, rows=chosen[one.rows]) for one in found),
        held_out=held_out,
        steps=tuple(done),
        versions=find_versions(),
        groups=labels,
        verdict=verdict_in_words,
    )
    return hold_to(held_to, audit)


def _labels_of(name: str, values: Any, records: int) -> np.ndarray:
    labels = as_numpy(values)
    if labels.shape != (records,):
        raise InputError(
            f"groups[{name!r}] has the shape {labels.shape}; pass one label for each of the "
            f"{records} records."
        )
    return labels.astype(str)


class _Asked(NamedTuple):
    """The outputs for all records of a model that was fitted on a random half of them."""

    signal: np.ndarray
    error: np.ndarray
    guessed: list[np.ndarray]


def _asked(model: Any, X: Any, y: np.ndarray, plan: GuessingPlan) -> _Asked:
    return _Asked(confidence(model, X, y), record_errors(model, X, y), plan.ask(model))


def _said_of(plan: GuessingPlan) -> str:
    """Return a sentence about the guessed columns."""
    said = (
        f"The values in {counted(len(plan.columns), 'column')} of "
        f"{counted(len(plan.rows), 'record')}, drawn at random, were guessed from the model, the "
        "label and the other columns. Guesses without the model come from a random forest fitted "
        "on other records."
    )
    if plan.left_out:
        said += (
            " Columns that were not guessed, because they are constant or not in the random "
            f"selection: {listed(plan.left_out)}."
        )
    return said


def _gap(held_out: HeldOutFinding, records: int) -> StructuralRisk:
    """Return the generalisation gap as a structural risk; a significant gap counts as found."""
    found = held_out.gap_low > 0 or held_out.p_value < 0.05
    return StructuralRisk(
        "generalisation gap",
        found,
        records if found else 0,
        records,
        held_out.gap,
        0.0,
    )


def _called(estimator: Any) -> str:
    """Return an estimator's class name in words; for a pipeline, that of its last step."""
    if own_name(estimator, "sklearn", ("Pipeline",)) is None:
        return str(getattr(estimator, "called", type(estimator).__name__))
    return f"{type(estimator.steps[-1][1]).__name__} in a Pipeline"
