"""Lower bounds on an adversary's mean squared error that leakage and privacy guarantees imply.

One file for each kind of bound (``van_trees`` also holds the priors), and ``guarantees``, a table
of all bounds on one release. Each bound is a :class:`~seepage.core.result.Result` of kind
``bound`` that carries its assumptions in words. From the loosest to the tightest, for an unbiased
adversary who wants a whole record of d unknowns (Guo et al. 2022, section 5; the last step is
exact)::

    1/η²  ≤  1/η̄² = d/Tr(I)  ≤  Tr(I⁻¹)/d

The first two are ``leak.records().mse_bound()`` and ``leak.records(measure="dfil").mse_bound()``;
this package holds the exact one, and the bounds for other adversaries and privacy guarantees.
"""

from seepage.bounds.cramer_rao import (
    biased,
    biased_leakage,
    cramer_rao,
    cramer_rao_cells,
    cramer_rao_rows,
)
from seepage.bounds.from_privacy import from_privacy, from_renyi, membership_advantage, two_point
from seepage.bounds.hammersley import FiniteChangeBound, hammersley_chapman_robbins
from seepage.bounds.van_trees import (
    BoundedPrior,
    Domain,
    EmpiricalPrior,
    GaussianPrior,
    van_trees,
    van_trees_rows,
)

__all__ = [
    "BoundedPrior",
    "Domain",
    "EmpiricalPrior",
    "FiniteChangeBound",
    "GaussianPrior",
    "biased",
    "biased_leakage",
    "cramer_rao",
    "cramer_rao_cells",
    "cramer_rao_rows",
    "from_privacy",
    "from_renyi",
    "hammersley_chapman_robbins",
    "membership_advantage",
    "two_point",
    "van_trees",
    "van_trees_rows",
]
