"""``sp.audit``: the audit of a fitted model, or of a pipeline about its raw columns, in Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from seepage.auditing.intake.recipe import as_ours, read_recipe, weights_of
from seepage.auditing.measures.assess import examine
from seepage.auditing.measures.findings import Audit
from seepage.auditing.measures.preprocessing import dense, raw_attributes, raw_frame
from seepage.auditing.measures.subject import Subject, label_step
from seepage.core.noise import Gaussian
from seepage.errors import InputError, nearest
from seepage.tables.frames import as_numpy

_TARGET_KINDS = {
    "linear": "numeric",
    "poisson": "count",
    "logistic": "binary",
    "softmax": "multiclass",
}


def audit(
    estimator: Any,
    X: Any,
    y: Any,
    *,
    noise: float | Gaussian | None = None,
    target_eta: float | None = None,
    sensitive: Sequence[str] = (),
    groups: Mapping[str, Any] | Sequence[str] | None = None,
    categorical: Sequence[str] = (),
    sample_weight: Any = None,
    source: str = "the given table",
    target: str | None = None,
    seed: int = 0,
) -> Audit:
    """Audit a fitted linear model, or a pipeline that ends in one, about the columns of ``X``.

    Through the steps before the model (scalers, one-hot encoders, column transformers, principal
    components: anything that maps each row by itself and affinely, ``x = B z + c``) the leakage is
    about the raw columns: the Jacobian of the release by ``z`` is the one by ``x`` times ``B``.
    What those steps learnt from the data (means, deviations, components) counts as public.

    Parameters
    ----------
    estimator
        A fitted model that :func:`seepage.leakage` takes, or a scikit-learn ``Pipeline`` of
        transformers and such a model.
    X, y
        The raw table and the labels it was fitted on.
    noise
        The standard deviation of the Gaussian noise on every released number; by default the least
        that meets ``target_eta``.
    target_eta
        The leakage that no record should exceed; 1 by default: one standard deviation.
    sensitive
        Columns of ``X`` for which the error on every record is reported.
    groups
        Columns of ``X``, or names with the group of every record, to compare the leakage of.
    categorical
        Columns whose numbers are codes of categories.
    sample_weight
        The weights the model was fitted with.
    source, target
        What the table and the labels are called in the report.
    seed
        Of the held-out rows and the noise in the privacy–utility curve.

    Examples
    --------
    >>> import seepage as sp
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.linear_model import Ridge
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> X, y = load_diabetes(return_X_y=True, as_frame=True, scaled=False)
    >>> model = make_pipeline(StandardScaler(), Ridge(1.0)).fit(X, y)
    >>> found = sp.audit(model, X, y, sensitive=["bmi"])
    >>> found.cell_errors["bmi"].shape
    (442,)
    """
    frame, named = raw_frame(X)
    steps: list[str] = []
    if type(estimator).__name__ == "Pipeline":
        final, before = estimator[-1], estimator[:-1]
        transform = before.transform if len(before) else (lambda rows: rows)
        if len(before):
            steps.append(
                "Leakage is about the raw columns, through the Jacobian of the preprocessing; what "
                "its steps learnt from the data (means, deviations, components) counts as public."
            )
    else:
        final, transform = estimator, (lambda rows: rows)
    features = _transformed(transform, X)
    labels = as_numpy(y)
    labels = labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
    name = target or str(getattr(y, "name", None) or "label")
    if name in frame.columns:
        name = f"{name} (label)"
    weights = None if sample_weight is None else np.asarray(as_numpy(sample_weight), dtype=float)
    recipe, fit = read_recipe(final, features, labels, weights)
    kind = _TARGET_KINDS[recipe.model]
    steps.append(
        f"The given {recipe.model} model (L2 penalty λ = {recipe.l2:.4g}) was checked to be the "
        f"minimiser of its objective on these {features.shape[0]:,} records."
    )
    subject = Subject(
        model=as_ours(final, recipe, fit, labels),
        X=features,
        y=labels,
        attributes=raw_attributes(frame, named, transform, categorical),
        target=name,
        target_kind=kind,
        label_spread=label_step(labels, kind),
        row_index=np.arange(features.shape[0]),
        groups=_groups(groups, frame),
        sample_weight=weights_of(fit),
        source=source,
        steps=tuple(steps),
    )
    return examine(
        subject, recipe, sigma=_sigma(noise), target_eta=target_eta, sensitive=sensitive, seed=seed
    )


def _transformed(transform: Any, X: Any) -> np.ndarray:
    try:
        return dense(transform(X))
    except (TypeError, ValueError) as problem:
        raise InputError(
            f"X cannot be turned into the model's features: {problem}; pass the raw table the "
            "model or pipeline was fitted on."
        ) from problem


def _sigma(noise: float | Gaussian | None) -> float | None:
    if noise is None:
        return None
    value = noise.sigma if isinstance(noise, Gaussian) else noise
    if np.ndim(value) != 0 or isinstance(value, bool):
        raise InputError(
            "An audit takes one standard deviation for all released numbers; measure other noise "
            "with sp.leakage."
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
        found = {str(name): as_numpy(labels) for name, labels in groups.items()}
    else:
        wanted = [groups] if isinstance(groups, str) else list(groups)
        for name in wanted:
            if name not in frame.columns:
                raise InputError(f"There is no column {name!r}{nearest(name, frame.columns)}.")
        found = {name: frame[name].to_numpy() for name in wanted}
    for name, labels in found.items():
        if labels.shape != (len(frame),):
            raise InputError(
                f"The groups {name!r} must be one label for each of the {len(frame)} records, not "
                f"of shape {labels.shape}."
            )
    return found
