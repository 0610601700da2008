"""The audit of Parquet data that are read in chunks: the same findings, from a few passes.

What is left out beside the audit of a table in memory, and said so in the report: refits with other
penalties or weights, and the table of all bounds on the most exposed record. The error on held-out
records is that of a model fitted without them; the leakage drawn beside it is that of the release
itself. No row is kept: everything is a sum over chunks, formed where the rows are.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from seepage.auditing.intake.clean_batches import CleanBatches
from seepage.auditing.intake.columns import ColumnPlan
from seepage.auditing.intake.encoding import told_steps
from seepage.auditing.intake.recipe import Recipe, choose_model, recipe_of
from seepage.auditing.measures.assess import (
    DEFAULT_L2,
    FEWEST_ROWS,
    SEPARABLE_L2,
    Tell,
    check_noise,
    choose_noise,
    kind_for,
    sigma_reason,
    versions,
)
from seepage.auditing.measures.findings import (
    AttributeFinding,
    GroupFinding,
    GroupingFinding,
    StreamedAudit,
)
from seepage.auditing.measures.grouping import grouping_of
from seepage.auditing.measures.measure import class_deviation, kind_as_column
from seepage.auditing.measures.remedies import remedies_of_noise
from seepage.auditing.measures.subject import Attribute, basis_of
from seepage.auditing.measures.tradeoff import curve_scales, draw_curve
from seepage.auditing.streamed.measure import StreamedMeasures, measure_streamed
from seepage.auditing.streamed.plan import plan_streamed
from seepage.auditing.streamed.record_questions import LABEL, Questions
from seepage.auditing.streamed.records import StreamedRecords
from seepage.auditing.streamed.trial import try_out_streamed
from seepage.core.noise import Gaussian
from seepage.errors import InputError
from seepage.glm.fitting.streamed import PenalisedLoss, StreamedObjective
from seepage.glm.leakage import describe_on, release_of
from seepage.glm.losses.families import Categorical, bernoulli
from seepage.streams.disk.column_scan import ColumnSums
from seepage.streams.disk.encoding import Coding
from seepage.streams.disk.files import Batches
from seepage.streams.disk.source import ParquetRows, scan_columns
from seepage.tables.encoded import Part


def assess_streamed(
    batches: Batches,
    *,
    source: str,
    target: str,
    model: str | None,
    l2: float | None,
    sigma: float | None,
    target_eta: float | None,
    choices: dict[str, Any],
    scale: bool,
    fitted: Any,
    remedies: bool,
    tell: Tell,
    seed: int = 0,
) -> StreamedAudit:
    """Audit the release of a linear model of Parquet data.

    Parameters
    ----------
    batches
        The data.
    source, model, l2, sigma, target_eta, fitted, remedies, tell, seed
        As for :func:`seepage.auditing.measures.assess.assess`.
    target
        The column that is predicted.
    choices
        The other parameters of :func:`seepage.auditing.streamed.plan.plan_streamed`.
    scale
        Whether numeric columns are standardised.
    """
    check_noise(sigma, target_eta)
    plan, used, parts = plan_streamed(CleanBatches(batches), target, **choices)
    if used.rows < FEWEST_ROWS:
        raise InputError(
            f"Only {used.rows} rows can be used, too few for an audit; give at least {FEWEST_ROWS}."
        )
    scale = scale and fitted is None
    drop_first = True if fitted is None else bool(fitted.fit_intercept)
    data = ParquetRows(used, Coding(parts, target, None, scale, drop_first))
    steps = [*plan.steps, *told_steps(parts, scale, drop_first)]
    steps.append(f"The data were read in chunks, {len(data):,} records of them.")
    labels = scan_columns(used, [target])[target]
    tell("fitting")
    fitted, recipe = _fit(data, plan, fitted, model, l2, steps)
    tell("leakage of every record")
    questions = _ask(data, plan, parts, scale, drop_first, fitted, recipe, labels)
    found = measure_streamed(data, questions)
    worst = float(found.quantiles["eta"][-1])
    goal, calibrated, noise = choose_noise(worst, sigma, target_eta)
    tell("privacy and utility")
    trial, held = try_out_streamed(
        data, fitted, recipe, labels, (float(found.medians[0]), worst), seed
    )
    # Twice the noise is what the advice may be about.
    trial.prepare([0.0, *curve_scales(noise, calibrated), 2 * noise])
    if not held:
        steps.append("No model could be fitted without the held-out records: theirs is of all.")
    if np.isnan(found.quantiles["exact_error"][-1]):
        steps.append("The exact bound per record was left out: it would take too long here.")
    curve = draw_curve(trial, noise, calibrated)
    advice = remedies_of_noise(trial, sigma=noise, target=goal, worst=worst) if remedies else ()
    classes = getattr(fitted, "classes_", None)
    return StreamedAudit(
        source=source,
        target=target,
        model=recipe.model,
        l2=recipe.l2,
        intercept=recipe.intercept,
        sigma=noise,
        sigma_reason=sigma_reason(sigma, target_eta, noise),
        released=questions.release.template.size,
        steps=tuple(steps),
        attributes=_attributes(found, plan, noise, labels),
        dataset_eta=found.together(found.tally.whole, questions.every) / noise,
        curve=curve,
        groupings=tuple(_grouping(name, found, noise) for name in plan.groups),
        classes=() if classes is None else tuple(str(c) for c in classes),
        target_eta=goal,
        calibrated_sigma=calibrated,
        remedies=advice,
        versions=versions(),
        kept=StreamedRecords(data, found, noise),
    )


def _fit(
    data: ParquetRows,
    plan: ColumnPlan,
    fitted: Any,
    model: str | None,
    l2: float | None,
    steps: list[str],
) -> tuple[Any, Recipe]:
    """Return the model and how it was fitted, given or fitted now."""
    if fitted is not None:
        from seepage.auditing.intake.modelfile import match_features

        match_features(fitted, data.names)
        recipe = recipe_of(describe_on(fitted, data)[0], len(data))
        steps.append(
            f"The given {recipe.model} model (L2 penalty λ = {recipe.l2:g}) was checked to be the "
            f"minimiser of its objective on these {len(data):,} records."
        )
        return fitted, recipe
    kind = choose_model(model, plan.target_kind, plan.target)
    recipe = Recipe(kind, DEFAULT_L2 if l2 is None else l2)
    fitted = recipe.estimator().fit(data)
    if l2 is None and recipe.classifies and _tells_apart(data, fitted, recipe):
        recipe = recipe.with_penalty(SEPARABLE_L2)
        fitted = recipe.estimator().fit(data)
        steps.append(
            "The classes can be told apart without an error, so the penalty was raised to "
            f"λ = {SEPARABLE_L2:g}."
        )
    steps.append(
        f"A {kind} model with an intercept and L2 penalty λ = {recipe.l2:g} was fitted on "
        f"{len(data):,} records and {len(data.names):,} features."
    )
    return fitted, recipe


def _tells_apart(data: ParquetRows, fitted: Any, recipe: Recipe) -> bool:
    """Say whether the model predicts the class of every record."""
    classes = fitted.classes_
    family = bernoulli if recipe.model == "logistic" else Categorical(len(classes))
    loss = PenalisedLoss(family, classes, 0.0, recipe.intercept, len(data.names))
    return StreamedObjective(data, loss).gains(fitted._parameters())[0] > 0


def _ask(
    data: ParquetRows,
    plan: ColumnPlan,
    parts: tuple[Part, ...],
    scale: bool,
    drop_first: bool,
    fitted: Any,
    recipe: Recipe,
    labels: ColumnSums,
) -> Questions:
    """Return the questions to ask of every record."""
    attributes, start = [], 0
    for part in parts:
        width = part.width(drop_first)
        unit = part.spread if scale and part.kind == "numeric" else 1.0
        columns = tuple(range(start, start + width))
        attributes.append(
            Attribute(part.name, part.kind, columns, np.eye(width) / unit, part.spread)
        )
        start += width
    numbers = kind_for(recipe.model, plan.target_kind) in ("numeric", "count")
    step = labels.spread if numbers and labels.spread > 0 else 1.0
    return Questions(
        release=release_of(fitted, data, Gaussian(1.0), "raise"),
        attributes=tuple(attributes),
        basis=basis_of(attributes, len(data.names)),
        label_step=step,
        groups=plan.groups,
        sensitive=plan.sensitive,
        rows=len(data),
    )


def _attributes(
    found: StreamedMeasures, plan: ColumnPlan, noise: float, labels: ColumnSums
) -> tuple[AttributeFinding, ...]:
    """Return what was found of every column, the target last."""
    questions, tally = found.questions, found.tally
    kind = kind_as_column(plan.target_kind)
    spread = labels.spread
    if plan.target_kind not in ("numeric", "count"):
        counts = np.asarray([n for _, n in sorted((labels.levels or {}).items())], dtype=float)
        spread = class_deviation(counts, plan.target_kind)
    told = [(a.name, a.kind, a.spread) for a in questions.attributes] + [
        (plan.target, kind, spread)
    ]
    label = found.together(tally.label, LABEL)
    etas = [*found.column_leakage(), label]
    return tuple(
        AttributeFinding(
            name=name,
            kind=its_kind,
            eta=float(eta) / noise,
            smallest_error=float(tally.smallest[k]) * noise,
            easiest_row=int(tally.easiest[k]),
            median_error=float(found.medians[1 + k]) * noise,
            spread=its_spread,
            sensitive=name in plan.sensitive,
        )
        for k, ((name, its_kind, its_spread), eta) in enumerate(zip(told, etas, strict=True))
    )


def _grouping(name: str, found: StreamedMeasures, noise: float) -> GroupingFinding:
    groups = [
        GroupFinding(
            label,
            tally.count,
            tally.total / tally.count / noise,
            tally.worst / noise,
            found.together(tally.block, found.questions.every) / noise,
        )
        for label, tally in sorted(found.tally.groups[name].items())
    ]
    return grouping_of(name, groups)
