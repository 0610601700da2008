"""The van Trees bound: the least error of any estimate, biased or not, given what is known before.

On average over the prior (Gill and Levit 1995)::

    MSE per unknown  ≥  Tr[(E I + I_prior)⁻¹]/d  ≥  d/Tr(E I + I_prior)

The expectation is over the prior: the information at draws from it, each with the release made
again as if the record had been that draw. The information at the true record alone would be a
different number, and no bound.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from seepage.bounds.cramer_rao import square
from seepage.bounds.priors import BoundedPrior, EmpiricalPrior, GaussianPrior
from seepage.core.leakage import Columns, Leakage
from seepage.core.result import UNBIASED, Result
from seepage.errors import InputError
from seepage.support.chunks import progress
from seepage.tables.frames import as_numpy

Prior = GaussianPrior | BoundedPrior


def van_trees(information: Any, prior: Prior) -> Result:
    """Return the van Trees bound, which holds for every estimate, biased or not.

    ``Tr[(E I + I_prior)⁻¹]/d``, on average over the prior.

    Parameters
    ----------
    information
        The information matrices at draws from the prior, ``(draws, d, d)``, of which the mean is
        taken; or their expectation ``(d, d)``. The information at the true record alone is not
        enough, unless it does not depend on the record.
    prior
        What is known of the unknowns before the release.
    """
    _check_prior(prior)
    matrices = as_numpy(information).astype(float)
    expected = square(matrices.mean(axis=0) if matrices.ndim == 3 else matrices, "information")
    inverse = _inverse(expected, prior)
    value = np.asarray(np.trace(inverse) / expected.shape[0])
    assumptions = _assumptions(prior)
    return Result(value, "subset", "mse", kind="bound", assumptions=assumptions)


def van_trees_rows(
    leak: Leakage,
    prior: Prior,
    rows: Any,
    columns: Columns = None,
    *,
    draws: int = 128,
    seed: int = 0,
) -> Result:
    """Return the van Trees bound on some records, its expectation taken by refitting.

    For each row, records are drawn from the prior in its place, the model is refitted with each of
    them, and the information each refit would give is averaged. The label is known, and so are the
    other columns where some are named.

    Parameters
    ----------
    leak
        The leakage of one release.
    prior
        What is known of the row's unknown columns before the release.
    rows
        Positions, or a mask. Each costs ``draws`` refits.
    columns
        The unknown columns; all where not given.
    draws
        How many records are drawn. What their number leaves uncertain is told in the assumptions.
    seed
        Of the draws; the same ones are used for every row.

    Examples
    --------
    >>> import numpy as np, seepage as sp
    >>> rng = np.random.default_rng(0)
    >>> X, y = rng.standard_normal((50, 2)), rng.standard_normal(50)
    >>> model = sp.glm.LinearRegression(l2=0.1).fit(X, y)
    >>> leak = sp.leakage(model, X, y, noise=sp.Gaussian(0.01))
    >>> bound = sp.bounds.van_trees_rows(leak, sp.bounds.GaussianPrior(std=1.0), rows=[0])
    >>> bool(0 < bound[0] < 1)
    True
    """
    _check_prior(prior)
    if draws < 2:
        raise InputError(f"At least two draws are needed to average over a prior, not {draws}.")
    refits, noise = leak.refits(), leak.noise[0]
    unknowns, about = leak.unknowns(columns, False)
    everything = range(len(leak.source.names))
    which = list(everything if unknowns.columns is None else unknowns.columns)
    size = len(which)
    drawn = prior.draw(draws, size, np.random.default_rng(seed))
    positions = as_numpy(leak.row_positions(rows))
    values, errors, means = [], [], []
    for row in progress(positions.tolist(), "averaging over the prior"):
        features = np.repeat(refits.X[row][None, :], draws, axis=0)
        features[:, which] = drawn
        theta = refits.parameters(row, features)
        if not np.all(np.isfinite(theta)):
            raise InputError(
                f"The model has no minimiser for some records that the prior allows in row {row}; "
                "set a penalty, or take a narrower prior."
            )
        label = refits.target[row, ...]
        each = (
            refits.jacobian(row, z, label, w, noise) for z, w in zip(features, theta, strict=True)
        )
        information = np.stack(
            [as_numpy(at.row_information(unknowns)(slice(0, 1))[0]).astype(float) for at in each]
        )
        means.append(information.mean(axis=0))
        inverse = _inverse(means[-1], prior)
        values.append(np.trace(inverse) / size)
        # To first order, what each draw moves the bound by.
        pulls = np.einsum("ij,kjl,li->k", inverse, information, inverse) / size
        errors.append(pulls.std(ddof=1) / np.sqrt(draws))
    off = max(error / value for error, value in zip(errors, values, strict=True))
    sampled = (
        f"The expectation over the prior was taken over {draws} draws, each refitted; they leave "
        f"the bound uncertain by {off:.1%} (one standard error)."
    )
    index = None if leak.source.index is None else leak.source.index[positions]
    result = Result(
        np.asarray(values),
        "rows",
        "mse",
        kind="bound",
        about=about,
        index=positions if index is None else index,
        assumptions=(*_assumptions(prior), sampled),
        library=leak.source.library,
        noise=leak.noise,
    )

    def rescaled(factor: float) -> Result:
        """Return the bound with more noise: it divides the information, but not the prior's."""
        traces = [np.trace(_inverse(mean / factor**2, prior)) / size for mean in means]
        return replace(result, values=np.asarray(traces))

    return replace(result, rescaled=rescaled)


def _check_prior(prior: Any) -> None:
    if isinstance(prior, EmpiricalPrior):
        raise InputError(
            "An empirical prior has no density, and so no van Trees bound; describe what is known "
            "by a GaussianPrior or a BoundedPrior."
        )
    if not isinstance(prior, GaussianPrior | BoundedPrior):
        raise InputError("prior must be a GaussianPrior or a BoundedPrior.")


def _inverse(expected: np.ndarray, prior: Prior) -> np.ndarray:
    known = prior.information(expected.shape[0])
    return np.asarray(np.linalg.inv(expected + (known if known.ndim == 2 else np.diag(known))))


def _assumptions(prior: Prior) -> tuple[str, ...]:
    return (
        prior.words,
        "The error is averaged over that prior.",
        *UNBIASED[1:],
    )
