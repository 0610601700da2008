"""Bayesian reconstruction of a record from the linearised release and a prior.

Near the prior mean ``z₀``, the release ``h`` is approximately linear in the unknowns ``z``: ``h ≈
w*(z₀) + J (z − z₀) + noise``, with ``w*`` and ``J`` from a refit with ``z₀`` in the record's place.
Under Gaussian noise, whitened to unit variance (``J̃``, ``h̃``):

* for a Gaussian prior with mean ``z₀`` and covariance C, the posterior mean, which is also the most
  probable record, is ``z₀ + (J̃ᵀJ̃ + C⁻¹)⁻¹ J̃ᵀ (h̃ − w̃*)``;
* for an empirical prior of records ``z_k`` with probabilities ``p_k``, the posterior probabilities
  are proportional to ``p_k exp(−½‖h̃ − w̃* − J̃(z_k − z₀)‖²)``, with ``z₀`` the mean of the
  records;
* without a prior the estimate is ``z₀ + (J̃ᵀJ̃)⁻¹J̃ᵀ(h̃ − w̃*)``. If the release is linear in the
  unknowns, as for the label in a linear regression, this last estimate is unbiased and attains the
  Cramér–Rao bound.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from scipy.special import softmax

from seepage.attacks.noisy_releases import parameters_of
from seepage.bounds.van_trees import EmpiricalPrior, GaussianPrior
from seepage.core.leakage import Columns, Leakage
from seepage.core.noise import Gaussian
from seepage.errors import InputError
from seepage.support.chunks import CHUNK, row_slices
from seepage.support.number_check import check_choice


class LinearisedAdversary:
    """Reconstructs unknown columns or the label of one record from releases and a prior.

    The adversary knows the other records, the record's other columns, the training procedure and
    the noise.

    Parameters
    ----------
    prior
        The prior distribution of the unknowns: a :class:`~seepage.bounds.GaussianPrior` or an
        :class:`~seepage.bounds.EmpiricalPrior`; by default, no prior.
    guess
        ``"mean"``, the posterior mean, which has the lowest mean squared error; or ``"map"``, the
        most probable record.

    Examples
    --------
    >>> import numpy as np, seepage as sp
    >>> from seepage.attacks import LinearisedAdversary
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((40, 2))
    >>> y = X @ [1.0, -1.0] + rng.standard_normal(40)
    >>> model = sp.glm.LinearRegression(l2=0.1).fit(X, y)
    >>> leak = sp.leakage(model, X, y, noise=sp.Gaussian(1e-3))
    >>> adversary = LinearisedAdversary(sp.bounds.GaussianPrior(std=1.0)).fit(leak, row=3)
    >>> adversary.reconstruct(sp.release(model, sp.Gaussian(1e-3))).shape
    (1, 2)
    """

    def __init__(
        self, prior: GaussianPrior | EmpiricalPrior | None = None, *, guess: str = "mean"
    ) -> None:
        if prior is not None and not isinstance(prior, GaussianPrior | EmpiricalPrior):
            raise InputError("prior must be a GaussianPrior, an EmpiricalPrior or None.")
        check_choice(guess, "guess", ("mean", "map"))
        self.prior, self.guess = prior, guess

    def fit(self, leak: Leakage, row: int, columns: Columns = None, *, label: bool = False) -> Self:
        """Store all data except the unknown columns of one row.

        Parameters
        ----------
        leak
            The leakage of a single release with Gaussian noise.
        row
            The attacked row.
        columns
            The unknown columns; by default, all columns. ``[]`` with ``label=True`` reconstructs
            only the label.
        label
            Whether to reconstruct the label too, as the last unknown (only for models with one
            output).
        """
        refits, noise = leak.refits(), leak.noise[0]
        if not isinstance(noise, Gaussian):
            raise InputError(
                "This adversary needs a release with Gaussian noise "
                f"(noise=sp.Gaussian(sigma)), not {noise!r}."
            )
        if leak.release.model is None:
            raise InputError(
                "This adversary inverts the release of a fitted linear model; for gradients of a "
                "network, use sp.attacks.GradientInversion."
            )
        if label and refits.theta.ndim > 1:
            raise InputError(
                "The label of a softmax model is not a single number; reconstruct only the columns "
                "(label=False)."
            )
        unknowns, _ = leak.unknowns(columns, label)
        which = list(range(refits.X.shape[1])) if unknowns.columns is None else unknowns.columns
        position = int(leak.row_positions([row])[0])
        size = len(which) + label
        self.centre_ = self._centre(refits.X, refits.target, position, list(which), label, size)
        features, target = refits.X[position].copy(), refits.target[position, ...]
        features[list(which)] = self.centre_[: len(which)]
        if label:
            target = self.centre_[-1]
        theta = refits.parameters(position, features, np.asarray(target)[None, ...])[0]
        if not np.all(np.isfinite(theta)):
            raise InputError(
                "If the record is replaced by the prior mean, the model has no minimiser; set a "
                "penalty (l2 above 0)."
            )
        jacobian = refits.jacobian(position, features, target, theta, noise)
        # The package's Jacobian is H⁻¹G, without the sign of −H⁻¹G.
        self._J = -np.stack(
            [jacobian.forward(unit[None, :], unknowns, np.arange(1)) for unit in np.eye(size)],
            axis=1,
        )
        self._root = _root(noise, theta.size)
        self._base = theta.reshape(-1)
        return self

    def reconstruct(self, release: Any) -> np.ndarray:
        """Return the estimates, (T, q): the unknown columns in order, then the label, if unknown.

        ``release`` is a released model, the result of :func:`seepage.attacks.draw_releases`, or an
        array of parameters, (P,) or (T, P).
        """
        if not hasattr(self, "_J"):
            raise InputError("This adversary has not been fitted; call fit(leak, row) first.")
        seen = (parameters_of(release, self._base.size) - self._base) @ self._root.T
        if isinstance(self.prior, EmpiricalPrior):
            return self._among_records(seen)
        information = self._J.T @ self._J
        if self.prior is not None:
            information += np.linalg.inv(self.prior.covariance(len(information)))
        try:
            gain = np.linalg.solve(information, self._J.T)
        except np.linalg.LinAlgError:
            raise InputError(
                "The release does not determine the unknowns; give a prior, or reconstruct fewer "
                "columns."
            ) from None
        return np.asarray(self.centre_ + seen @ gain.T)

    def _among_records(self, seen: np.ndarray) -> np.ndarray:
        assert isinstance(self.prior, EmpiricalPrior)  # noqa: S101 - told to the type checker
        records, probabilities = self.prior.records(self._J.shape[1])
        expected = (records - self.centre_) @ self._J.T
        with np.errstate(divide="ignore"):
            offset = np.log(probabilities) - 0.5 * np.sum(expected**2, axis=1)
        out = np.empty((len(seen), records.shape[1]))
        for piece in row_slices(len(seen), len(records), chunk=8 * CHUNK):
            logarithms = seen[piece] @ expected.T + offset
            if self.guess == "map":
                out[piece] = records[np.argmax(logarithms, axis=1)]
            else:
                out[piece] = softmax(logarithms, axis=1) @ records
        return out

    def _centre(
        self, X: np.ndarray, y: np.ndarray, row: int, which: list[int], label: bool, size: int
    ) -> np.ndarray:
        """Return the prior mean of the unknowns, or the mean of the other records."""
        if isinstance(self.prior, GaussianPrior):
            return np.array(self.prior.centre(size))
        if isinstance(self.prior, EmpiricalPrior):
            records, probabilities = self.prior.records(size)
            return np.asarray(probabilities @ records)
        others = np.arange(len(X)) != row
        if not others.any():
            raise InputError(
                "The table has a single record, so there are no other records to average; give a "
                "prior."
            )
        mean = X[others][:, which].mean(axis=0)
        return np.append(mean, y[others].mean()) if label else mean


def _root(noise: Gaussian, size: int) -> np.ndarray:
    """Return the square root of the noise's Fisher information, which whitens the Jacobian."""
    root = noise.root(size)
    return root if root.ndim == 2 else np.diag(np.broadcast_to(root, size))
