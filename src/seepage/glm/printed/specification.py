"""One specification of a regression table: its numbers, for any weights of the records.

Every number measured here is a smooth function of sums over the records (stacked estimating
equations; Stefanski and Boos 2002). The coefficients solve ``Σ ω_j ψ_j(θ) = 0``. The standard
errors follow from ``A = Σ ω_j a_j x_j x_jᵀ``, the meat ``B`` and, for least squares, ``σ²``::

    classical    σ²A⁻¹ (least squares), A⁻¹ (logistic)
    HC0 … HC3    A⁻¹BA⁻¹,  B = Σ ω_j f_j r_j² x_j x_jᵀ,  f = 1, n/(n − d), 1/(1 − h), 1/(1 − h)²
    cluster      A⁻¹BA⁻¹,  B = Σ_g s_g s_gᵀ,  s_g the sum of r_j x_j in a cluster

A weight of zero excludes a record, and a weight of two counts it twice. Survey weights in weighted
least squares are part of the records: the rows and labels are multiplied by the square roots of
these weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from seepage.errors import InputError
from seepage.glm.preprocessing.formula import learns_from_data
from seepage.support.chunks import row_slices
from seepage.support.library_classes import own_name

_ROBUST = ("HC0", "HC1", "HC2", "HC3")


@dataclass(frozen=True, eq=False)
class Specification:
    """One column (specification) of a regression table.

    Parameters
    ----------
    X, y
        The design matrix, including its column of ones, and the labels. Both are multiplied by
        ``scale``.
    names
        The names of the columns.
    logistic
        Whether the model is logistic rather than least squares.
    errors
        ``"nonrobust"``, ``"HC0"`` to ``"HC3"`` or ``"cluster"``.
    constant
        Whether the columns span a constant; if so, R² is relative to the mean of the labels.
    clusters
        The cluster of every record, numbered from 0, if standard errors are clustered.
    corrected
        Whether clustered standard errors are corrected for few clusters.
    scale
        The square roots of survey weights.
    likelihood
        Whether the log-likelihood is printed.
    learnt
        Whether the formula learns values from the data, as ``standardize`` does. These values are
        held fixed.
    """

    X: np.ndarray
    y: np.ndarray
    names: tuple[str, ...]
    logistic: bool
    errors: str
    constant: bool
    clusters: np.ndarray | None = None
    corrected: bool = True
    scale: np.ndarray | None = None
    likelihood: bool = True
    learnt: bool = False

    @classmethod
    def of(cls, results: Any, likelihood: bool = True) -> Specification:
        """Read statsmodels' OLS, WLS or Logit results; check coefficients and standard errors."""
        model: Any = getattr(results, "model", None)
        kind = None if model is None else own_name(model, "statsmodels")
        if kind not in ("OLS", "WLS", "Logit") or not hasattr(results, "bse"):
            instead = f"a value of type {type(results).__name__}"
            if hasattr(results, "bse") and model is not None:
                instead = f"results of {type(model).__name__}"
            raise InputError(
                "A regression table requires results of statsmodels' OLS, WLS or Logit, such as "
                f"sm.OLS(y, X).fit(), not {instead}."
            )
        errors = str(results.cov_type)
        if errors not in ("nonrobust", "cluster", *_ROBUST):
            raise InputError(
                f"Standard errors of cov_type={errors!r} are not supported; use nonrobust, HC0 to "
                "HC3 or cluster."
            )
        clusters, corrected = None, True
        if errors == "cluster":
            groups = np.asarray(results.cov_kwds["groups"])
            if groups.ndim != 1:
                raise InputError(
                    "Standard errors with two-way clustering are not supported; use one cluster "
                    "variable."
                )
            clusters = np.unique(groups, return_inverse=True)[1]
            corrected = bool(results.cov_kwds.get("use_correction", True))
        scale = np.sqrt(np.asarray(model.weights, dtype=float)) if kind == "WLS" else None
        X, y = np.asarray(model.exog, dtype=float), np.asarray(model.endog, dtype=float)
        formula = getattr(model.data, "model_spec", getattr(model.data, "design_info", None))
        one = cls(
            X if scale is None else X * scale[:, None],
            y if scale is None else y * scale,
            tuple(map(str, model.exog_names)),
            kind == "Logit",
            errors,
            bool(model.k_constant),
            clusters,
            corrected,
            scale,
            likelihood,
            formula is not None and learns_from_data(formula),
        )
        one.check(np.concatenate([results.params, results.bse]))
        return one

    def check(self, printed: np.ndarray) -> None:
        """Raise an error unless coefficients and standard errors agree with seepage's results."""
        n, d = self.X.shape
        sizes = np.linalg.norm(self.X, axis=0)  # units are no dependence
        if n <= d or np.linalg.matrix_rank(self.X / np.where(sizes > 0, sizes, 1.0)) < d:
            raise InputError(
                "The columns of a specification are linearly dependent, or there are too few "
                "records for the columns; drop a column."
            )
        if self.errors in ("HC2", "HC3") and np.any(self.design_leverage > 1 - 1e-9):
            raise InputError(
                f"A single record determines its own fitted value, so {self.errors} divides by "
                "zero. Drop that record, or the column that only this record determines (such as a "
                "category with one record), or use HC1."
            )
        if not self.logistic:
            left = np.linalg.lstsq(self.X, self.y, rcond=None)[0] @ self.X.T - self.y
            if np.linalg.norm(left) <= 1e-10 * np.linalg.norm(self.y):
                raise InputError(
                    "A specification fits its labels without error, so every person's label can "
                    "be computed from the person's columns and the table; seepage cannot measure "
                    "this leakage. Do not publish the specification."
                )
        here = self.numbers(np.ones((1, len(self.X))))[0, : len(printed)]
        if not np.allclose(here, printed, rtol=1e-4, atol=1e-7 * np.abs(printed).max()):
            raise InputError(
                "The coefficients or standard errors of a specification do not match a converged "
                "fit on its own data; refit it with a smaller tolerance."
            )

    @property
    def labels(self) -> tuple[str, ...]:
        """The name of each printed number."""
        fit = ("pseudo-R²" if self.logistic else "R²", *("log-likelihood",) * self.likelihood)
        coefs, errors = (tuple(f"{w} {n}" for n in self.names) for w in ("coef", "std err"))
        return (*coefs, *errors, *fit)

    @cached_property
    def _basis(self) -> tuple[np.ndarray, np.ndarray]:
        """``Q``, with orthonormal columns, and ``R⁻¹`` for the design matrix ``X = QR``."""
        Q, R = np.linalg.qr(self.X)
        return Q, np.linalg.inv(R)

    @cached_property
    def design_leverage(self) -> np.ndarray:
        """The leverages ``x_jᵀ(XᵀX)⁻¹x_j``, (n,): at least 1/m in a fitted cell of m records."""
        return np.asarray(np.sum(self._basis[0] ** 2, axis=1))

    @cached_property
    def _start(self) -> np.ndarray:
        """The coefficients fitted on all records, in the basis Q."""
        start = self._minimisers(np.ones((1, len(self.y))))
        return np.asarray(start[0])

    @cached_property
    def leverage(self) -> np.ndarray:
        """``ℓ``, each record's share of the Hessian, of shape (n,)."""
        Q, a = self._basis[0], np.ones(len(self.y))
        if self.logistic:
            p = _share(Q @ self._start)
            a = p * (1 - p)
        inverse = np.linalg.inv((Q.T * a) @ Q)
        return np.asarray(a * np.sum((Q @ inverse) * Q, axis=1))

    def numbers(self, weights: np.ndarray) -> np.ndarray:
        """Return the printed numbers for each row of weights, (B, n) → (B, K).

        The numbers are NaN if the objective has no unique minimiser.
        """
        size = self.X.size * (2 if self.clusters is None else 3)
        pieces = [self._numbers(weights[piece]) for piece in row_slices(len(weights), size)]
        return np.concatenate([np.empty((0, len(self.labels))), *pieces])

    def _numbers(self, W: np.ndarray) -> np.ndarray:
        Q, back = self._basis
        n, d = W.sum(axis=1), Q.shape[1]
        # A record that alone carries a direction leaves it without curvature.
        least = np.linalg.eigvalsh((Q.T * W[:, None, :]) @ Q)[:, 0]
        decided = (least > 1e-9) & (n > d)
        W = np.where(decided[:, None], W, 1.0)
        n = W.sum(axis=1)
        with np.errstate(all="ignore"):  # where there is no minimiser
            beta = self._minimisers(W, self._start) if self.logistic else self._minimisers(W)
            margins = beta @ Q.T
            if self.logistic:
                p = _share(margins)
                r, a = self.y - p, p * (1 - p)
                chance = (W @ self.y / n)[:, None]
                fit, null = (
                    np.sum(W * (self.y * np.log(q) + (1 - self.y) * np.log1p(-q)), axis=1)
                    for q in (p, chance)
                )
                said = [1 - fit / null, fit]
            else:
                r, a = self.y - margins, np.ones_like(margins)
                rss = np.sum(W * r**2, axis=1)
                one = np.ones(len(self.y)) if self.scale is None else self.scale
                mean = (W @ (one * self.y) / (W @ one**2))[:, None] * self.constant
                said = [1 - rss / np.sum(W * (self.y - one * mean) ** 2, axis=1)]
                # What rounding leaves of a perfect fit has no logarithm to speak of.
                floor = 1e-28 * (W @ self.y**2) + np.finfo(float).tiny
                known = W @ np.log(np.where(one > 0, one, 1.0))
                said.append(known - n / 2 * (np.log(2 * np.pi * np.maximum(rss, floor) / n) + 1))
            bread = _inverses((Q.T * (W * a)[:, None, :]) @ Q)
            if self.errors == "nonrobust":
                covariance = bread
                if not self.logistic:
                    covariance = bread * (rss / (n - d))[:, None, None]
            else:
                covariance = bread @ self._meat(W, r, bread, n) @ bread
            spread = np.einsum("ij,bjk,ik->bi", back, covariance, back)
            found = np.column_stack([beta @ back.T, np.sqrt(spread), *said[: 1 + self.likelihood]])
        return np.where(decided[:, None] & np.isfinite(found).all(axis=1)[:, None], found, np.nan)

    def _meat(self, W: np.ndarray, r: np.ndarray, bread: np.ndarray, n: np.ndarray) -> np.ndarray:
        """Return ``B`` with its small-sample correction, of shape (B, d, d)."""
        Q = self._basis[0]
        d = Q.shape[1]
        if self.clusters is not None:
            sums = self._cluster_sums(W * r, self.clusters)
            weight = np.stack([np.bincount(self.clusters, w) for w in W])
            shares = weight / np.bincount(self.clusters)
            if _whole(
                W, self.clusters
            ):  # all records of a cluster come together, each time as a new one
                sums = sums / np.sqrt(np.where(shares > 0, shares, 1.0))[:, :, None]
                count = shares.sum(axis=1)
            else:
                count = (shares > 0).sum(axis=1)
            few = count / (count - 1) * (n - 1) / (n - d) if self.corrected else np.ones(len(n))
            return np.asarray(np.swapaxes(sums, 1, 2) @ sums * few[:, None, None])
        factor = np.ones_like(r)
        if not self.logistic:  # statsmodels' Logit takes HC0 whatever it is asked for
            h = np.sum((Q @ bread) * Q, axis=2)
            kinds = {"HC2": 1 / (1 - h), "HC3": 1 / (1 - h) ** 2}
            factor = kinds.get(self.errors, factor)
            if self.errors == "HC1":
                factor = factor * (n / (n - d))[:, None]
        return np.asarray((Q.T * (W * factor * r**2)[:, None, :]) @ Q)

    def _cluster_sums(self, pull: np.ndarray, clusters: np.ndarray) -> np.ndarray:
        """Return the sum of the scores in every cluster, of shape (B, clusters, d)."""
        order = np.argsort(clusters, kind="stable")
        starts = np.concatenate([[0], np.cumsum(np.bincount(clusters))[:-1]])
        scores = (pull[:, :, None] * self._basis[0])[:, order]
        return np.asarray(np.add.reduceat(scores, starts, axis=1))

    def _minimisers(self, W: np.ndarray, start: np.ndarray | None = None) -> np.ndarray:
        """Return the coefficients in the basis Q, (B, d), or NaN where Newton's method fails."""
        Q = self._basis[0]
        if not self.logistic:
            H = (Q.T * W[:, None, :]) @ Q
            return np.asarray(np.linalg.solve(H, ((W * self.y) @ Q)[:, :, None])[:, :, 0])
        beta = np.tile(np.zeros(Q.shape[1]) if start is None else start, (len(W), 1))
        settled = np.zeros(len(W), dtype=bool)
        for _ in range(50):  # from the fit as it is, five are usual
            p = _share(beta @ Q.T)
            gradient = (W * (self.y - p)) @ Q
            H = (Q.T * (W * p * (1 - p))[:, None, :]) @ Q
            step = (_inverses(H) @ gradient[:, :, None])[:, :, 0]
            shift = np.abs(step @ Q.T).max(axis=1)
            beta = beta + step * np.minimum(1, 2 / np.maximum(shift, 2))[:, None]
            settled = shift < 1e-9
            if np.all(settled | ~np.isfinite(shift)):
                break
        return np.where(settled[:, None], beta, np.nan)


def _whole(W: np.ndarray, clusters: np.ndarray) -> bool:
    """Return whether the records of each cluster all have the same weight."""
    first = np.unique(clusters, return_index=True)[1]
    return bool(np.array_equal(W[:, first][:, clusters], W))


def _share(margins: np.ndarray) -> np.ndarray:
    return np.asarray(1 / (1 + np.exp(-np.clip(margins, -40, 40))))


def _inverses(matrices: np.ndarray) -> np.ndarray:
    """Return the inverses, or NaN where a matrix has no inverse."""
    good = np.isfinite(matrices).all(axis=(1, 2))
    safe = np.where(good[:, None, None], matrices, np.eye(matrices.shape[1]))
    good &= np.linalg.cond(safe) < 1e12
    safe = np.where(good[:, None, None], safe, np.eye(matrices.shape[1]))
    return np.where(good[:, None, None], np.linalg.inv(safe), np.nan)
