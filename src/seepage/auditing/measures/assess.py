"""The audit itself: fit, measure, choose the noise, weigh its price, and say what would help."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np

import seepage
from seepage.auditing.intake.recipe import Recipe, choose_model, read_recipe, weights_of
from seepage.auditing.measures.findings import (
    AttributeFinding,
    Audit,
    Remedy,
)
from seepage.auditing.measures.grouping import compare_groups
from seepage.auditing.measures.measure import measure
from seepage.auditing.measures.promises import find_guarantees
from seepage.auditing.measures.remedies import find_remedies
from seepage.auditing.measures.subject import Attribute, Subject, check_sensitive, label_step
from seepage.auditing.measures.tradeoff import draw_curve, try_out
from seepage.errors import InputError

if TYPE_CHECKING:
    from seepage.auditing.intake.encoding import Encoded

DEFAULT_L2 = 1e-3
SEPARABLE_L2 = 1e-2
DEFAULT_ETA = 1.0
FEWEST_ROWS = 10

Tell = Callable[[str], object]


def assess(
    encoded: Encoded,
    *,
    source: str,
    model: str | None = None,
    l2: float | None = None,
    sigma: float | None = None,
    target_eta: float | None = None,
    sensitive: Sequence[str] | None = None,
    fitted: Any = None,
    show_values: bool = False,
    remedies: bool = True,
    seed: int = 0,
    tell: Tell | None = None,
) -> Audit:
    """Audit the release of a linear model of an encoded table.

    Parameters
    ----------
    encoded
        The table as numbers.
    source
        What the table is called.
    model
        ``linear``, ``logistic``, ``poisson`` or ``softmax``; by the target where not given.
    l2
        The penalty λ; 0.001 where not given, and 0.01 where the classes can be told apart without
        an error.
    sigma, target_eta
        The noise; the leakage that no record should exceed (1 where not given). Without ``sigma``
        the noise is the one that meets the target.
    sensitive
        Columns (the target may be one) for which the error on every record is reported; those of
        ``encoded`` where not given.
    fitted
        A fitted model to audit, instead of fitting one.
    show_values
        Whether the audit carries the caller's own values.
    remedies
        Whether to try out what would help, which takes several more fits.
    seed
        Of the held-out rows and of the noise in the privacy–utility curve.
    tell
        Called with what is being done.
    """
    say = tell or (lambda words: None)
    if encoded.X.shape[0] < FEWEST_ROWS:
        raise InputError(
            f"Only {encoded.X.shape[0]} rows can be used, too few for an audit; give at least "
            f"{FEWEST_ROWS}."
        )
    steps, weights = list(encoded.steps), None
    say("fitting")
    if fitted is None:
        kind = choose_model(model, encoded.target_kind, encoded.target)
        recipe = Recipe(kind, DEFAULT_L2 if l2 is None else l2)
        fitted = recipe.fit(encoded.X, encoded.y)
        if (
            l2 is None
            and kind in ("logistic", "softmax")
            and fitted.score(encoded.X, encoded.y) == 1
        ):
            recipe = recipe.with_penalty(SEPARABLE_L2)
            fitted = recipe.fit(encoded.X, encoded.y)
            steps.append(
                f"The classes can be told apart without an error, so the penalty was raised to "
                f"λ = {SEPARABLE_L2:g}."
            )
        steps.append(
            f"A {kind} model with an intercept and L2 penalty λ = {recipe.l2:g} was fitted on "
            f"{encoded.X.shape[0]:,} records and {encoded.X.shape[1]:,} features."
        )
    else:
        recipe, description = read_recipe(fitted, encoded.X, encoded.y, None)
        weights = weights_of(description)
        steps.append(
            f"The given {recipe.model} model (L2 penalty λ = {recipe.l2:g}) was checked to be the "
            f"minimiser of its objective on these {encoded.X.shape[0]:,} records."
        )
    target_kind = kind_for(recipe.model, encoded.target_kind)
    subject = Subject(
        model=fitted,
        X=encoded.X,
        y=encoded.y,
        attributes=read_attributes(encoded),
        target=encoded.target,
        target_kind=target_kind,
        label_spread=label_step(encoded.y, target_kind),
        row_index=np.asarray(encoded.row_index),
        groups=dict(encoded.groups),
        sample_weight=weights,
        source=source,
        steps=tuple(steps),
    )
    values = _values(encoded) if show_values else None
    named = encoded.sensitive if sensitive is None else sensitive
    return examine(
        subject,
        recipe,
        sigma=sigma,
        target_eta=target_eta,
        sensitive=named,
        seed=seed,
        tell=tell,
        values=values,
        remedies=remedies,
    )


def examine(
    subject: Subject,
    recipe: Recipe,
    *,
    sigma: float | None,
    target_eta: float | None,
    sensitive: Sequence[str],
    seed: int = 0,
    tell: Tell | None = None,
    values: dict[str, list[str]] | None = None,
    remedies: bool = True,
) -> Audit:
    """Measure a fitted model and put everything found into an :class:`Audit`."""
    say = tell or (lambda words: None)
    check_noise(sigma, target_eta)
    named = check_sensitive(sensitive, subject)
    measured = measure(subject, named, say)
    worst = float(np.max(measured.eta))
    target, calibrated, noise = choose_noise(worst, sigma, target_eta)
    say("groups")
    groupings = tuple(
        compare_groups(column, labels, measured, noise) for column, labels in subject.groups.items()
    )
    say("privacy and utility")
    trial = try_out(subject, recipe, seed)
    curve = draw_curve(trial, noise, calibrated)
    advice: tuple[Remedy, ...] = ()
    if remedies:
        say("remedies")
        advice = find_remedies(
            subject, recipe, trial, sigma=noise, target=target, worst=worst, seed=seed
        )
    promised = None
    if remedies:
        say("bounds on the most exposed record")
        promised = find_guarantees(subject, noise)
    steps = list(subject.steps)
    if trial.recipe.l2 != recipe.l2:
        steps.append(
            f"The privacy–utility curve was drawn with λ = {trial.recipe.l2:g}: without a penalty "
            "the model is not determined on a part of the rows."
        )
    if np.all(np.isnan(measured.exact_error)):
        steps.append("The exact bound per record was left out: it would take too long here.")
    classes = getattr(subject.model, "classes_", None)
    return Audit(
        source=subject.source,
        target=subject.target,
        model=recipe.model,
        l2=recipe.l2,
        intercept=recipe.intercept,
        sigma=noise,
        sigma_reason=sigma_reason(sigma, target_eta, noise),
        released=measured.released,
        steps=tuple(steps),
        row_index=subject.row_index,
        eta=measured.eta / noise,
        eta_features=measured.eta_features / noise,
        eta_label=measured.eta_label / noise,
        exact_error=measured.exact_error * noise,
        attributes=tuple(
            AttributeFinding(
                name=found.attribute.name,
                kind=found.attribute.kind,
                eta=found.eta / noise,
                smallest_error=found.smallest * noise,
                easiest_row=int(subject.row_index[found.easiest]),
                median_error=found.median * noise,
                spread=found.attribute.spread,
                sensitive=found.attribute.name in named,
            )
            for found in measured.attributes
        ),
        dataset_eta=measured.dataset_eta / noise,
        curve=curve,
        groupings=groupings,
        cell_errors={
            found.attribute.name: found.errors * noise
            for found in measured.attributes
            if found.errors is not None
        },
        classes=() if classes is None else tuple(str(c) for c in classes),
        target_eta=target,
        calibrated_sigma=calibrated,
        remedies=advice,
        values=values,
        guarantees=promised,
        versions=versions(),
    )


def read_attributes(encoded: Encoded) -> tuple[Attribute, ...]:
    """Return the table's columns with the features they move."""
    units = np.asarray(encoded.units, dtype=float)
    return tuple(
        Attribute(
            name,
            encoded.kinds[name],
            columns,
            np.diag(1 / units[list(columns)]),
            float(encoded.spread[name]),
        )
        for name, columns in encoded.positions().items()
    )


def kind_for(model: str, target_kind: str) -> str:
    """Return what the label is to the model: a count may be given to a linear one as a number."""
    if model in ("linear", "poisson"):
        return "numeric" if model == "linear" else "count"
    return "multiclass" if model == "softmax" and target_kind != "binary" else target_kind


def check_noise(sigma: float | None, target_eta: float | None) -> None:
    """Refuse a noise or a target that is no positive number."""
    for name, number in (("sigma", sigma), ("target_eta", target_eta)):
        if number is not None and not (np.isfinite(number) and number > 0):
            raise InputError(f"{name} must be a finite number above zero, not {number:g}.")


def choose_noise(
    worst: float, sigma: float | None, target_eta: float | None
) -> tuple[float, float, float]:
    """Return the target, the noise that meets it, and the noise to speak of.

    ``worst`` is the largest leakage at a noise of one.
    """
    if not (np.isfinite(worst) and worst > 0):
        raise InputError(
            "The model does not depend on any record (it fits the data without an error), so there "
            "is no leakage to measure; check the target and the columns."
        )
    target = DEFAULT_ETA if target_eta is None else target_eta
    calibrated = worst / target
    return target, calibrated, calibrated if sigma is None else sigma


def sigma_reason(sigma: float | None, target_eta: float | None, noise: float) -> str:
    """Return why the noise is what it is, in words."""
    if sigma is not None:
        return f"The noise σ = {noise:.4g} was given."
    if target_eta is not None:
        return (
            f"The noise σ = {noise:.4g} is the least with which no record leaks more than the "
            f"η = {target_eta:.4g} that was asked for."
        )
    return (
        f"No noise was given, so σ = {noise:.4g} was chosen: with it the most leaked record has "
        "η = 1, that is, no unbiased attack on any single number of any record is surer than one "
        "standard deviation of its column (for a class or category: a whole level)."
    )


def _values(encoded: Encoded) -> dict[str, list[str]]:
    """Return the caller's cells as text."""
    return {
        name: ["" if cell is None else str(cell) for cell in encoded.raw.column(k).to_pylist()]
        for k, name in enumerate(encoded.raw.column_names)
    }


def versions() -> dict[str, str]:
    """Return the names and versions of what computed an audit."""
    names = ("numpy", "scipy", "scikit-learn", "pyarrow")
    return {
        "seepage": seepage.__version__,
        "Python": platform.python_version(),
        **{name: version(name) for name in names},
    }
