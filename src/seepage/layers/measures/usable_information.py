"""V-information: how much a given kind of adversary can read about a property off each layer.

For a family V of predictors (paper 003, equation 1, after Xu et al. 2020)::

    I_V(G_l → p) = inf_f mean(−log f[∅](p)) − inf_f mean(−log f[g_l](p))

The first term is the entropy of the property. The second is estimated on records that the predictor
has not seen: cross-fitting over folds, with probabilities recalibrated on other folds. The paper
takes both infima on the training set; that number comes along as ``training_set_estimate``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from seepage.errors import InputError
from seepage.layers.federated.gradients import WIDTH, LayerGradients
from seepage.layers.measures.families import family_name, find_family
from seepage.layers.measures.per_layer import PerLayer
from seepage.layers.measures.property_task import PropertyTask
from seepage.support.chunks import progress

_UNITS = {"nats": 1.0, "bits": math.log(2)}
_BELOW = (
    "An estimate on records the predictor has not seen can come out below zero where there is "
    "nothing to find."
)


def v_information(
    gradients: LayerGradients | Mapping[str, Any] | Any,
    property: Any,
    *,
    family: Any = "random_forest",
    groups: Any = None,
    folds: int = 5,
    unit: str = "nats",
    resamples: int = 1000,
    permutations: int = 999,
    width: int = WIDTH,
    seed: int = 0,
) -> PerLayer:
    """Return the V-information about a property that each layer's gradients carry.

    The intervals are percentile intervals over resampled records (or groups) with the predictors
    held as they are, widened about the estimate by ``√(G/(G−1)) · t/z`` for ``G`` groups (or
    records), with ``t`` and ``z`` the 97.5 % points of Student's law with ``G − 1`` degrees of
    freedom and of the normal law: a bootstrap of few groups falls short of their spread by the
    first factor and does not know that the spread is estimated, which is the second. With five
    groups they cover the mean of the estimate about 92 times in 100, and far less often where there
    is nothing to find, since estimates are skewed there: ask the test.

    The column ``p_value`` tests that a layer carries nothing: labels are permuted within each fold,
    the predictors being those of the other folds. With groups, those whose gradients all have one
    label exchange it as a whole, and the others shuffle theirs within the group, so that likeness
    within a group is not taken for information.

    Parameters
    ----------
    gradients
        Recorded gradients (:func:`record_gradients`), a mapping of layer names to arrays
        ``(n, size)``, or one array; lists will do for arrays.
    property
        The property of every gradient, ``(n,)``: two or more classes.
    family
        ``"logistic"``, ``"random_forest"``, ``"gradient_boosting"``, ``"mlp"``, or any classifier
        of scikit-learn with ``predict_proba``.
    groups
        Gradients of the same group (client, person, pool of records) stay in one fold, ``(n,)``.
        Without this, gradients that share records are told apart by these records.
    folds
        Of the cross-fitting.
    unit
        ``"nats"`` or ``"bits"``.
    resamples, permutations
        For the interval and the test.
    width
        Arrays with more columns are projected to this many at random, which the result says.
    seed
        Of folds, projections, predictors, resamples and permutations.

    Examples
    --------
    >>> import numpy as np, seepage.layers as layers
    >>> draw = np.random.default_rng(0)
    >>> p = np.arange(400) % 2
    >>> seen = {"fc1": draw.standard_normal((400, 3)) + 2 * p[:, None], "fc2": np.ones((400, 2))}
    >>> found = layers.v_information(seen, p, family="logistic")
    >>> found.ranking()
    ['fc1', 'fc2']
    >>> 0.5 < found["fc1"] < 0.694
    True
    """
    if unit not in _UNITS:
        raise InputError(f"unit must be 'nats' or 'bits', not {unit!r}.")
    if resamples < 1 or permutations < 1:
        raise InputError("resamples and permutations must be at least 1.")
    if not isinstance(gradients, LayerGradients | Mapping):
        gradients = {"gradient": gradients}
    seen = LayerGradients.of(gradients, width=width, seed=seed)
    classifier = find_family(family, seed)
    task = PropertyTask.read(property, groups, len(seen), folds, seed)
    scores, trained = [], []
    for layer in progress(seen.layers, "V-information"):
        scores.append(task.held_out(classifier, seen[layer]))
        trained.append(task.entropy() - task.training_loss(classifier, seen[layer]))
    logs = np.stack(scores)  # (layers, n, classes)
    losses = -logs[:, np.arange(len(seen)), task.labels]
    values = task.entropy() - losses.mean(axis=1)
    low, high = task.interval(losses, resamples)
    scale = _UNITS[unit]
    notes = [_BELOW]
    notes += [
        f"The gradients of {layer} were projected at random from {seen.sizes[layer]:,} to "
        f"{seen[layer].shape[1]:,} numbers."
        for layer in seen.projected
    ]
    return PerLayer(
        f"V-information, {family_name(family)}",
        seen.layers,
        values / scale,
        low / scale,
        high / scale,
        tuple(seen.sizes.values()),
        "estimate",
        unit,
        columns={
            "p_value": task.permuted(logs, losses.mean(axis=1), permutations),
            "training_set_estimate": np.array(trained) / scale,
            "entropy": np.full(len(seen.layers), task.entropy() / scale),
            "columns": [seen[layer].shape[1] for layer in seen.layers],
        },
        notes=tuple(notes),
    )
