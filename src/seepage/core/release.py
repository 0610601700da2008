"""A copy of a fitted model with noise on every released number."""

from __future__ import annotations

import warnings
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from seepage.core.noise import Noise, check_noise_kind
from seepage.errors import InputError, accepts_other_names
from seepage.support.library_classes import is_pipeline, library_of, own_name
from seepage.tables.source import as_numpy

# What a released model keeps besides its noisy coefficients, because it needs it to predict.
_HARMLESS = ("classes_", "feature_names_in_", "n_features_in_", "_base_loss")


@dataclass(frozen=True)
class ReleaseRecord:
    """Describes how a released model was made.

    Parameters
    ----------
    noise
        The noise that was added to the model.
    seeded
        Whether the noise came from a fixed seed; if so, use the model only in experiments.
    public
        The steps of a pipeline before the model, whose learnt values are released without noise.
    """

    noise: Noise
    seeded: bool
    public: tuple[str, ...] = ()


@accepts_other_names
def release(model: Any, noise: Noise, *, seed: int | None = None) -> Any:
    """Return a copy of a fitted model with noise added to its coefficients and its intercept.

    Every number is rounded to a grid whose step is at most 1/4096 of the noise's standard
    deviation, since further digits would leak the noiseless value. The copy has the attribute
    ``release_`` (a :class:`ReleaseRecord`) and predicts with the noisy coefficients; otherwise it
    behaves like the original. Of the other fitted attributes, the copy keeps only those that
    predictions need, such as the names of columns and classes. The other attributes may leak:
    scikit-learn's ``LinearRegression``, for example, stores the singular values of the training
    table. Do not share the original.

    Parameters
    ----------
    model
        A fitted model with ``coef_`` (and ``intercept_``, if it has one), a pipeline that ends in
        such a model, or a search, whose best model is released. The values learnt by the steps
        before the model (means, standard deviations, levels) are released without noise: the
        leakage with ``preprocessing="frozen"`` counts them as public.
    noise
        :class:`Gaussian` or :class:`Laplace` noise, for example from :func:`calibrate`.
    seed
        For experiments only: anybody who knows the seed can subtract the noise.
    """
    check_noise_kind(noise)
    if library_of(type(model)) == "statsmodels":
        raise InputError(
            "statsmodels results cannot be released, because they contain the training data; "
            "publish only noise.rounded(results.params + noise.draw(len(results.params)))."
        )
    if hasattr(model, "best_estimator_"):
        return release(model.best_estimator_, noise, seed=seed)
    if is_pipeline(model):
        return _released_pipeline(model, noise, seed)
    if not hasattr(model, "coef_"):
        raise InputError("Only a fitted model with coef_ can be released; fit it first.")
    if hasattr(model, "release_"):
        raise InputError(
            "This model has already been released; to release it again, pass the original, and "
            "account for both releases with sp.compose."
        )
    if seed is not None:
        warnings.warn(
            "The noise comes from a fixed seed: use this copy for experiments only.", stacklevel=3
        )
    from sklearn.base import clone

    released = clone(model)
    for name in _HARMLESS:
        if hasattr(model, name):
            setattr(released, name, getattr(model, name))
    coef = as_numpy(model.coef_)
    free = getattr(model, "fit_intercept", True) and hasattr(model, "intercept_")
    intercept = as_numpy(model.intercept_) if free else None
    # Released numbers are ordered by feature, then by output; scikit-learn stores (outputs, d).
    outputs = coef.shape[0] if coef.ndim == 2 else 1
    by_feature = coef.reshape(outputs, -1).T
    if intercept is not None:
        by_feature = np.concatenate([by_feature, intercept.reshape(1, outputs)])
    exact = by_feature.reshape(-1)
    if not np.all(np.isfinite(exact)):
        raise InputError(
            "Some of the model's coefficients are not finite, so it cannot be released; fit it "
            "again with a larger penalty or fewer columns."
        )
    noisy = noise.rounded(exact + noise.draw(exact.size, seed)).reshape(by_feature.shape)
    features = coef.shape[-1]
    released.coef_ = _like(model.coef_, noisy[:features].T.reshape(coef.shape))
    if intercept is None:
        released.intercept_ = getattr(model, "intercept_", 0.0)  # zero, by construction
    else:
        released.intercept_ = _like(model.intercept_, noisy[features:].reshape(intercept.shape))
    released.release_ = ReleaseRecord(noise, seed is not None)
    return released


def _released_pipeline(pipeline: Any, noise: Noise, seed: int | None) -> Any:
    """Return a copy of a pipeline that ends in a released model."""
    if hasattr(pipeline, "release_"):
        raise InputError(
            "This pipeline has already been released; to release it again, pass the original, and "
            "account for both releases with sp.compose."
        )
    before = [(name, _without_counts(step)) for name, step in pipeline.steps[:-1]]
    last, final = pipeline.steps[-1]
    released = copy(pipeline)
    released.steps = [*before, (last, release(final, noise, seed=seed))]
    names = (type(step).__name__ for _, step in before if hasattr(step, "transform"))
    released.release_ = ReleaseRecord(noise, seed is not None, tuple(names))
    return released


def _without_counts(step: Any) -> Any:
    """Return a scikit-learn transformer without its record counts, which predictions do not need.

    Other classes, and subclasses that override a method, may need the counts, so theirs are kept.
    """
    if own_name(step, "sklearn") is None or not hasattr(step, "n_samples_seen_"):
        return step
    other = copy(step)
    del other.n_samples_seen_
    return other


def _like(original: Any, values: np.ndarray) -> Any:
    """Return numbers with the type and on the device of the model's coefficients."""
    if np.ndim(original) == 0:
        return float(values)
    xp = array_namespace(original)
    return xp.asarray(values, dtype=original.dtype, device=original.device)
