"""Lower bounds on an adversary's mean squared error, from leakage and privacy guarantees.

Each kind of bound has its own file (``van_trees`` also contains the priors); ``guarantees``
tabulates all bounds for one release. Each bound on the error is, or contains, a
:class:`~seepage.core.result.Result` of kind ``bound``, which states its assumptions in words. With
FIL η, dFIL η̄ and the Fisher information ``I`` about a record's d unknowns, an unbiased adversary's
mean squared error per unknown is at least each of these, from the loosest to the tightest (Guo et
al. 2022, section 5)::

    1/η²  ≤  1/η̄² = d/Tr(I)  ≤  Tr(I⁻¹)/d

The first two bounds are ``leak.records().mse_bound()`` and
``leak.records(measure="dfil").mse_bound()``. This package contains the third, exact bound, bounds
for other adversaries, and bounds derived from privacy guarantees.
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
