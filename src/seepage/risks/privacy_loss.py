"""The privacy loss of records or people, and its composition.

The loss has four components. **η** is the Fisher information loss. **μ** is the distance between
releases with the record and without it, in standard deviations of Gaussian noise (Gaussian
differential privacy, Dong, Roth and Su 2022). **ε** and **δ** are the differential-privacy
parameters of the releases that μ does not cover. An unknown η, μ or ε is infinite, and so counts as
full disclosure.

*Independent releases*: ``η² ≤ Σ η_k²``, since Fisher information is additive; ``μ² = Σ μ_k²``, ``ε
≤ Σ ε_k`` and ``δ ≤ Σ δ_k``. The sums are used.

*Several records of one person*, with a known loss and a whitened Jacobian ``J_i`` each: ``‖[J₁ …
J_m]‖² ≤ Σ‖J_i‖²``, so ``η² ≤ Σ η_i²``. Group privacy, with the records removed one after the other,
gives ``ε ≤ Σ ε_i`` and ``δ ≤ Σ_i δ_i exp(Σ_{j≠i} ε_j)``. The distances for each record alone do not
bound the distance for all records together, so μ of more than one record is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from seepage.errors import InputError
from seepage.risks.guessing import accuracy_beside


@dataclass(frozen=True, eq=False)
class PrivacyLoss:
    """The privacy loss of records or people: one value of η, μ, ε and δ for each.

    Examples
    --------
    >>> from seepage.risks.privacy_loss import PrivacyLoss
    >>> once = PrivacyLoss.of(2, eta=[0.6, 0.8], mu=[0.3, 1.2], epsilon=0.45)
    >>> twice = once + once
    >>> twice.eta.round(3).tolist(), twice.epsilon.tolist()
    ([0.849, 1.131], [0.9, 0.9])
    >>> once.membership().round(3).tolist(), twice.membership().round(3).tolist()
    ([0.615, 0.739], [0.712, 0.832])
    """

    eta: np.ndarray
    mu: np.ndarray
    epsilon: np.ndarray
    delta: np.ndarray

    @classmethod
    def of(
        cls, count: int, *, eta: Any = 0.0, mu: Any = 0.0, epsilon: Any = 0.0, delta: Any = 0.0
    ) -> PrivacyLoss:
        """Return the loss of ``count`` records; a single number applies to all of them."""
        columns = {}
        for name, given in (("eta", eta), ("mu", mu), ("epsilon", epsilon), ("delta", delta)):
            try:
                values = np.asarray(given, dtype=float)
            except (TypeError, ValueError):
                values = np.zeros((0, 0))
            if values.shape not in ((), (count,)):
                raise InputError(f"{name} must be one number, or one per row ({count:,} in all).")
            column = np.array(np.broadcast_to(values, (count,)))
            if not np.all(column >= 0):  # nan is not
                unknown = "1" if name == "delta" else "np.inf"
                raise InputError(f"{name} must be at least 0; use {unknown} if it is not known.")
            columns[name] = column
        if np.any(columns["delta"] > 1):
            raise InputError("delta must be a probability between 0 and 1.")
        return cls(**columns)

    def __len__(self) -> int:
        return len(self.eta)

    @property
    def columns(self) -> Mapping[str, np.ndarray]:
        """The components by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def at(self, rows: np.ndarray) -> PrivacyLoss:
        """Return the loss of the given rows."""
        return PrivacyLoss(**{name: values[rows] for name, values in self.columns.items()})

    def where(self, mask: np.ndarray) -> PrivacyLoss:
        """Return the loss of the rows in a mask, with zero loss for all other rows."""
        return PrivacyLoss(
            **{name: np.where(mask, values, 0.0) for name, values in self.columns.items()}
        )

    def __add__(self, other: PrivacyLoss) -> PrivacyLoss:
        """Return the joint loss of two independent releases."""
        return PrivacyLoss(
            np.hypot(self.eta, other.eta),
            np.hypot(self.mu, other.mu),
            self.epsilon + other.epsilon,
            np.minimum(self.delta + other.delta, 1.0),
        )

    def or_larger(self, other: PrivacyLoss) -> PrivacyLoss:
        """Return the elementwise maximum of two losses."""
        return PrivacyLoss(
            **{n: np.maximum(values, other.columns[n]) for n, values in self.columns.items()}
        )

    def largest(self, group: np.ndarray, groups: int) -> PrivacyLoss:
        """Return each group's largest value of every component, a bound for each record in it."""
        most = {}
        for name, values in self.columns.items():
            most[name] = np.zeros(groups)
            np.maximum.at(most[name], group, values)
        return PrivacyLoss(**most)

    def together(self, group: np.ndarray, groups: int) -> PrivacyLoss:
        """Return the joint loss of each group, where a group is all records of one person."""
        each = self.largest(group, groups)
        several = np.bincount(group, minlength=groups) > 1
        epsilon = np.bincount(group, self.epsilon, groups)
        with np.errstate(invalid="ignore", over="ignore"):  # of an unknown ε, δ is certain
            others = np.exp(epsilon[group] - self.epsilon)
            delta = np.nan_to_num(np.where(self.delta > 0, self.delta * others, 0.0), nan=1.0)
        return PrivacyLoss(
            np.sqrt(np.bincount(group, self.eta**2, groups)),
            np.where(several & (each.mu > 0), np.inf, each.mu),
            epsilon,
            np.minimum(np.bincount(group, delta, groups), 1.0),
        )

    def membership(self) -> np.ndarray:
        """Return the largest success rate of membership inference by an informed attacker.

        Releases with ε and δ are included by :func:`~seepage.risks.guessing.accuracy_beside`.
        """
        return accuracy_beside(self.mu, 0.5, self.epsilon, self.delta)
