"""Fair leakage: refit with sample weights until every record leaks the same (IRFIL)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from sklearn.base import clone

from seepage.core.noise import Gaussian, Noise
from seepage.core.unknowns import Attributes
from seepage.errors import InputError
from seepage.glm.estimators.base import LinearModel
from seepage.glm.estimators.inputs import read_weights
from seepage.glm.jacobian.release import release_of
from seepage.glm.reweighting.result import Reweighting, Round, Setting
from seepage.glm.reweighting.rule import ReweightRule, Step, read_rule
from seepage.tables.frames import MemorySource, as_numpy, read_table

Columns = str | int | Sequence[str | int] | None


def reweight(
    model: Any,
    X: Any,
    y: Any,
    *,
    rounds: int = 15,
    target: Any = None,
    columns: Columns = None,
    label: bool | None = None,
    simplex: bool = False,
    attributes: Mapping[str, Sequence[str | int]] | None = None,
    by: Any = None,
    clamp: tuple[float, float] | None = None,
    tolerance: float = 1e-6,
    noise: Noise | None = None,
    sample_weight: Any = None,
    X_test: Any = None,
    y_test: Any = None,
    scoring: Callable[[Any, Any, Any], float] | None = None,
) -> Reweighting:
    """Fit a model with weights that make every record leak the same (IRFIL).

    Each round fits the model, measures the leakage η of every row and sets the weights to
    ``ω ← n (ω/η) / Σ(ω/η)`` (paper 001, algorithm 1). Rows that leak much come to weigh little.

    The weights depend on the data. The η that is made equal takes them as constants, as the paper
    does; :meth:`Reweighting.whole_procedure` gives the leakage with the choice of the weights
    included, which is not equal, and can be larger than that of a fit without weights.

    Parameters
    ----------
    model
        A model of :mod:`seepage.glm`; it need not be fitted, and is left as it is.
    X, y
        The data: anything :func:`seepage.leakage` takes.
    rounds
        How many times to set new weights and refit, at most.
    target
        The leakage wanted of each row, relative to the others: one number above zero per row; with
        ``by``, a mapping from each group to its number. All the same where none is given.
    columns, label, simplex, attributes
        What the leakage is about, as for :meth:`seepage.Leakage.rows`: the whole record with its
        label, or the named columns.
    by
        The group of every row, or ``"class"`` for its label: one weight for each group, so that
        the *mean* leakages of the groups become equal.
    clamp
        The least and the largest weight, such as ``(0.1, 10)``; weights are one on average. Rows at
        a limit leak more (or less) than the others.
    tolerance
        Stop when the weights would change by less than this, relative, root mean square. Without
        limits that is the standard deviation of η over its mean.
    noise
        The noise of the release; only the ratios of its variances matter here. The same for every
        parameter, of standard deviation one, where none is given.
    sample_weight
        Weights to begin with: row i weighs ``ω⁰ᵢ`` times the weight that is found for it, and the
        sum stays ``Σω⁰``. Rows of weight zero stay out.
    X_test, y_test
        Data to score the model of every round on; the training data where none are given.
    scoring
        ``scoring(model, X, y)``; the model's own ``score`` where none is given.

    Returns
    -------
    Reweighting
        The fitted model, the weights, the leakage and how it went.

    Examples
    --------
    >>> import seepage as sp
    >>> data = sp.data.load_bundled("diabetes")
    >>> fair = sp.glm.reweight(sp.glm.LinearRegression(l2=1e-3), data.X, data.y - data.y.mean())
    >>> first, last = fair.trajectory[0], fair.trajectory[-1]
    >>> bool(first.spread > 0.4 * first.mean), bool(last.spread < 1e-4 * last.mean)
    (True, True)
    """
    if not isinstance(model, LinearModel):
        raise InputError(
            f"Reweighting refits the model many times and needs one of seepage.glm, not a "
            f"{type(model).__name__}."
        )
    if not isinstance(rounds, int | np.integer) or isinstance(rounds, bool) or rounds < 0:
        raise InputError(f"rounds must be a whole number, at least 0, not {rounds!r}.")
    if not 0 <= tolerance < 1:
        raise InputError(f"tolerance must lie between 0 and 1, not {tolerance!r}.")
    if (X_test is None) != (y_test is None):
        raise InputError("X_test and y_test belong together: give both or neither.")
    noise = Gaussian(1.0) if noise is None else noise
    if not isinstance(noise, Noise):
        raise InputError("noise must say what is added: sp.Gaussian(sigma) or sp.Laplace(scale).")
    table = read_table(X)
    read_weights(sample_weight, table)
    rule, groups = read_rule(
        table, y, by=by, target=target, clamp=clamp, sample_weight=sample_weight
    )
    unknowns, about = Attributes(MemorySource(table), attributes).unknowns(
        columns, columns is None if label is None else bool(label), simplex
    )
    fitted = clone(model)

    def leakage_with(weights: np.ndarray) -> np.ndarray:
        fitted.fit(X, y, sample_weight=weights)
        fitted._start = fitted._parameters()
        source = MemorySource(table, y, weights)
        jacobian = release_of(fitted, source, noise, "raise").template
        return np.asarray(np.sqrt(np.maximum(as_numpy(jacobian.row_norms(unknowns)), 0.0)))

    score = scoring or (lambda chosen, *data: chosen.score(*data))
    tested = (X, y) if X_test is None else (X_test, y_test)
    steps = rule.run(leakage_with, int(rounds), tolerance)
    last = next(steps)
    trajectory = [_round(0, last, rule, float(score(fitted, *tested)))]
    for last in steps:
        trajectory.append(_round(len(trajectory), last, rule, float(score(fitted, *tested))))
    fitted._start = None
    return Reweighting(
        model=fitted,
        weights=last.weights,
        eta=last.eta,
        trajectory=tuple(trajectory),
        groups=_group_means(rule, groups, last.eta),
        noise=noise,
        about=about,
        _setting=Setting(X, y, table, unknowns, dict(attributes or {}), rule, last),
    )


def _round(number: int, step: Step, rule: ReweightRule, score: float) -> Round:
    eta = step.eta[rule.start > 0]
    return Round(number, float(eta.mean()), float(eta.std()), float(eta.max()), step.change, score)


def _group_means(
    rule: ReweightRule, groups: np.ndarray | None, eta: np.ndarray
) -> dict[Any, float] | None:
    if groups is None:
        return None
    return dict(zip(groups.tolist(), rule.means(eta).tolist(), strict=True))
