"""The audit of a fitted linear model, or of a pipeline with respect to its raw columns.

If the preprocessing is affine, ``x = B z + c``, a change of a column has the same effect on the
features of all records, and the closed forms of the model's own Jacobian apply. Otherwise each
record has its own Jacobian (:mod:`seepage.glm.preprocessing.jacobian`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from seepage.auditing.audit import Anew, audit_model
from seepage.auditing.findings import Audit
from seepage.auditing.gates import held_to
from seepage.auditing.intake.identities import (
    is_named_like_identifier,
    is_same_within,
    people_of_rows,
)
from seepage.auditing.intake.table import check_groups
from seepage.auditing.outsider import check_outsider
from seepage.auditing.questions import Limits
from seepage.auditing.trained_model import (
    ROW,
    TARGET_OF,
    Attribute,
    EncodedTable,
    FitSettings,
    LabelFacts,
    RecordsInMemory,
    ThroughPreprocessing,
    TrainedModel,
    settings_of,
)
from seepage.core.noise import Attacker, Gaussian
from seepage.core.people import identities
from seepage.core.result import held_sentences, joined
from seepage.errors import InputError
from seepage.glm.adapters.registry import GivenModel, Unwrapped, describe, kind_of, unwrap
from seepage.glm.estimators import LinearModel
from seepage.glm.fitting.objective import FittedGLM
from seepage.glm.leakage import identities_in, leakage
from seepage.glm.preprocessing.chain import Chain
from seepage.glm.preprocessing.raw_columns import (
    PREPROCESSING,
    REFITTED,
    FollowedColumns,
    read_frame,
)
from seepage.support.library_classes import is_pipeline, is_search
from seepage.tables.names import counted, shown
from seepage.tables.source import (
    as_numpy,
    check_column,
    check_order,
    own_index,
    read_table,
    row_labels,
)


def audit_linear(
    estimator: Any,
    X: Any,
    y: Any = None,
    *,
    noise: float | Gaussian | None = None,
    target_eta: float | None = None,
    attacker: Attacker | None = None,
    sensitive: Sequence[str] = (),
    groups: Mapping[str, Any] | Sequence[str] | None = None,
    categorical: Sequence[str] = (),
    quantities: Sequence[str] = (),
    person: Any = None,
    sample_weight: Any = None,
    preprocessing: str = "frozen",
    refit: str | None = None,
    preset: str | None = None,
    source: str = "the given table",
    target: str | None = None,
    seed: int = 0,
) -> Audit:
    """Audit a fitted linear model, or a pipeline that ends in one, about the columns of ``X``.

    With steps before the model (scalers, imputers, encoders, splines, column transformers,
    principal components), the leakage is about the raw columns. The Jacobian with respect to the
    features is then multiplied by that of the steps. The options are documented in ``sp.audit``.
    """
    if preprocessing not in PREPROCESSING:
        raise InputError(
            f"preprocessing must be {' or '.join(map(repr, PREPROCESSING))}, not {preprocessing!r}."
        )
    if refit not in (None, "model", "pipeline"):
        raise InputError(f"refit must be 'pipeline' or 'model', or be left out, not {refit!r}.")
    limits = Limits(preset=preset)  # refused before any work
    if attacker is not None:
        check_outsider(attacker)
    if not (is_search(estimator) or is_pipeline(estimator)):
        kind_of(estimator)  # before the table: a network's batch need not be one
    frame, _ = read_frame(X)
    rows, whose = X, person
    if isinstance(person, str):
        X, whose = identities_in(X, person, estimator)
    check_order(row_labels(whose), X, "person")
    opened, followed = _followed(estimator, X, categorical, quantities, person)
    refitted = preprocessing == "refitted" and bool(followed.steps.held)
    features = followed.features
    if y is None and getattr(opened.model, "model", None) is not None:
        y = opened.model.model.endog  # the formula took it from the data frame
    labels = as_numpy(y)
    labels = labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
    name = target or str(getattr(y, "name", None) or "label")
    if name in frame.columns:
        name = f"{name} (label)"
    weights = None if sample_weight is None else np.asarray(as_numpy(sample_weight), dtype=float)
    fit = describe(opened.model, read_table(features), labels, weights)
    settings = settings_of(fit, len(features))
    attributes = None if refitted else _constant_attributes(followed)
    through = None
    if attributes is None:
        through = ThroughPreprocessing(followed, refitted)
        attributes = _raw_attributes(followed)
    if not settings.classifies and (labels.dtype.kind not in "if" or fit.label_unit is not None):
        facts = LabelFacts.of(np.asarray(fit.target), False)
        spread = float(np.std(labels)) if labels.dtype.kind in "if" else 1.0
        facts, labels = replace(facts, spread=spread), np.asarray(fit.target)
    else:
        facts = LabelFacts.of(labels, settings.classifies)
    beside = _groups(groups, frame)
    compared = tuple(beside)
    beside[ROW] = np.arange(len(features))
    # The weights include class weights, which another library's model may carry too.
    records = RecordsInMemory(
        features,
        [f"feature {j}" for j in range(features.shape[1])],
        labels,
        None if fit.sample_weight is None else np.asarray(fit.sample_weight),
        beside,
    )
    same: frozenset[str] = frozenset()
    if whose is not None:
        owner = people_of_rows(identities(whose, records), "person")
        records = records.of_people(owner)
        cells = {c.name: frame[c.name].to_numpy() for c in followed.columns} | {name: labels}
        same = frozenset(n for n, values in cells.items() if is_same_within(values, owner))
    table = EncodedTable(
        source=records,
        attributes=attributes,
        target=name,
        target_kind=TARGET_OF.get(settings.model, "binary" if settings.classifies else "numeric"),
        labels=facts,
        groups=compared,
        sensitive=tuple(dict.fromkeys(sensitive)),
        person=None if whose is None else person if isinstance(person, str) else "person",
        same=same,
        notices=() if whose is not None else tuple(_notices(followed)),
        steps=(
            *_told_steps(opened, followed, refitted),
            f"The given {settings.model} model (L2 penalty λ = {settings.l2:.4g}) was confirmed to "
            f"minimise its objective on these {len(features):,} records.",
        ),
        through=through,
    )
    ours = _as_ours(opened.model, settings, fit, labels)
    steps = followed.steps
    held = joined(opened.held, steps.choices if refitted else steps.held)
    per_record = kind_of(opened.model).penalty is not None
    trained = TrainedModel(ours, settings, table, opened.notes, held, per_record)
    sigma = sigma_of(noise)
    anew = None
    if refit != "model":
        anew = _anew(estimator, X, y, weights, categorical, refit)
    result = audit_model(
        trained,
        name=source,
        sigma=sigma,
        target_eta=target_eta,
        attacker=attacker,
        seed=seed,
        anew=anew,
    )
    people = None if whose is None else np.asarray(whose)
    result = replace(result, labels=own_index(rows), people=people)
    bounds = result.guarantees
    if bounds is not None:
        result = replace(result, guarantees=replace(bounds, label=result.called(bounds.row)))
    return held_to(limits, result)


def _anew(
    estimator: Any,
    X: Any,
    y: Any,
    weights: np.ndarray | None,
    categorical: Sequence[str],
    refit: str | None,
) -> Anew | None:
    """Return how to rerun the procedure on some records, or ``None`` if no step is learnt."""
    leak = leakage(
        estimator, X, y, noise=Gaussian(1.0), sample_weight=weights, categorical=categorical
    )
    if leak.procedure is None and refit is not None:
        raise InputError(
            "refit='pipeline' refits a pipeline, but this model has no preceding steps; pass the "
            "fitted pipeline with its raw table."
        )
    if leak.procedure is None:
        return None
    procedure = leak.procedure
    return Anew(procedure.released, procedure.kept, procedure.fits)


def _followed(
    estimator: Any, X: Any, categorical: Sequence[str], quantities: Sequence[str], person: Any
) -> tuple[Unwrapped, FollowedColumns]:
    """Return the final model, and the map from raw columns to its features."""
    try:
        opened = unwrap(estimator, X)
        frame, _ = read_frame(X)
        beside = person if isinstance(person, str) and person in frame.columns else None
        steps = Chain(opened.steps)
        return opened, FollowedColumns(X, steps, categorical, quantities, beside)
    except InputError:
        raise
    except (TypeError, ValueError, KeyError) as problem:
        raise InputError(
            f"X cannot be converted to the model's features: {problem}; pass the raw table that "
            "the model or pipeline was fitted on."
        ) from problem


def _notices(followed: FollowedColumns) -> Iterator[str]:
    """Yield a notice for every column that is named like an identifier and has repeated values."""
    features = {column.name for column in followed.columns}
    for name in filter(is_named_like_identifier, followed.frame.columns):
        values = followed.frame[name]
        if values.dtype.is_float() or not 2 < values.n_unique() < len(values):
            continue
        used, first = ", and is a feature of this model", "fit the model without it and "
        if name not in features:
            used = first = ""
        yield (
            f"Column {shown(name)} is named like an identifier and has {values.n_unique():,} "
            f"different values in {len(values):,} rows{used}. Every number in this audit is about "
            f"a single row. If the column identifies people, {first}pass person={name!r}."
        )


def _told_steps(opened: Unwrapped, followed: FollowedColumns, refitted: bool) -> list[str]:
    steps = list(opened.notes)
    if opened.steps:
        steps.append(
            "Leakage is measured for the raw columns, through the Jacobian of the preprocessing."
        )
    learnt = followed.steps.choices if refitted else followed.steps.held
    steps += held_sentences(joined(opened.held, learnt))
    if refitted:
        steps.append(REFITTED)
    if followed.gaps:
        steps.append(
            f"{counted(followed.gaps, 'cell')} had no value and therefore cannot leak; the imputed "
            "values count as part of the preprocessing."
        )
    return steps


def sigma_of(noise: float | Gaussian | None) -> float | None:
    """Return the noise standard deviation of an audit, if given."""
    if noise is None:
        return None
    value = noise.sigma if isinstance(noise, Gaussian) else noise
    if np.ndim(value) != 0 or isinstance(value, bool):
        raise InputError(
            "An audit accepts one standard deviation for all released numbers; for other noise, "
            "use sp.leakage."
        )
    try:
        return float(value)
    except (TypeError, ValueError):
        raise InputError(
            f"noise must be a standard deviation or sp.Gaussian(sigma), not {noise!r}."
        ) from None


def _groups(groups: Mapping[str, Any] | Sequence[str] | None, frame: Any) -> dict[str, np.ndarray]:
    if groups is None:
        return {}
    if isinstance(groups, Mapping):
        by_name = {str(name): as_numpy(labels) for name, labels in groups.items()}
        for name, labels in groups.items():
            check_order(row_labels(labels), frame.to_native(), f"the groups {name!r}")
    else:
        wanted = [groups] if isinstance(groups, str) else list(groups)
        for name in wanted:
            check_column(name, frame.columns)
        by_name = {name: frame[name].to_numpy() for name in wanted}
    for name, labels in by_name.items():
        if labels.shape != (len(frame),):
            raise InputError(
                f"The grouping {name!r} must have one label for each of the {len(frame)} records, "
                f"but has the shape {labels.shape}."
            )
    check_groups({name: len(np.unique(labels.astype(str))) for name, labels in by_name.items()})
    return by_name


def _as_ours(model: Any, settings: FitSettings, fit: FittedGLM, y: np.ndarray) -> Any:
    """Return a fitted model, of seepage or another library, as a seepage model.

    If the model was fitted with class weights or sample weights, ``weighted_`` of the result is
    true.
    """
    if isinstance(model, LinearModel):
        return model
    if not settings.refits:
        return GivenModel(fit, np.unique(y) if settings.classifies else None)
    ours = settings.estimator()
    coef = np.asarray(fit.coef, dtype=float)
    outputs = coef.shape[1] if coef.ndim == 2 else 1
    free = np.zeros(outputs) if fit.intercept is None else np.ravel(np.asarray(fit.intercept))
    if settings.classifies:
        ours.classes_ = np.asarray(getattr(model, "classes_", np.unique(y)))
        ours.coef_, ours.intercept_ = np.atleast_2d(coef.T), free
    else:
        ours.coef_, ours.intercept_ = coef, free[0]
    ours.weighted_ = fit.sample_weight is not None
    ours.n_features_in_ = int(coef.shape[0])
    return ours


def _constant_attributes(followed: FollowedColumns) -> tuple[Attribute, ...] | None:
    """Return the columns and how each moves the features; ``None`` if this differs by record.

    With affine preprocessing, a column moves the features of all records alike, and closed forms
    apply.
    """
    moves = followed.moves
    middle = moves.mean(axis=0)
    scale = np.max(np.abs(moves), axis=(0, 1))
    # Derivatives by differences are alike up to about a millionth.
    if np.any(np.abs(moves - middle) > 1e-6 * scale):
        return None
    directions = np.where(np.abs(middle) > 1e-12 * scale, middle, 0.0)
    attributes, at = [], 0
    for column in followed.columns:
        own = directions[:, at : at + column.directions]
        at += column.directions
        features = tuple(int(j) for j in np.flatnonzero(np.any(own != 0, axis=1)))
        attributes.append(
            Attribute(column.name, column.kind, features, own[list(features), :], column.spread)
        )
    return tuple(attributes)


def _raw_attributes(followed: FollowedColumns) -> tuple[Attribute, ...]:
    """Return the raw columns as attributes, each with its own directions."""
    attributes, at = [], 0
    for column in followed.columns:
        t = column.directions
        attributes.append(
            Attribute(column.name, column.kind, (*range(at, at + t),), np.eye(t), column.spread)
        )
        at += t
    return tuple(attributes)
