"""Every bound that applies to a release, in one table: what each says, for whom, and if what holds.

The table is about one record, by default the most exposed one, so that its lines can be compared:
what an adversary who knows everything else can find out about it, as a mean squared error per
number. Lines are grouped by the adversaries they hold for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from seepage.bounds import (
    BoundedPrior,
    Domain,
    GaussianPrior,
    cramer_rao_rows,
    from_privacy,
    hammersley_chapman_robbins,
    membership_advantage,
    two_point,
    van_trees_rows,
)
from seepage.bounds.guarantee_table import Guarantee, Guarantees
from seepage.core.leakage import Columns, Leakage
from seepage.core.result import UNBIASED, Result
from seepage.errors import InputError
from seepage.privacy import PrivacyStatement, output_perturbation, renyi_of_event
from seepage.tables.frames import as_numpy

UNBIASED_ADVERSARY = "an unbiased adversary"
EVERY_ADVERSARY = "every adversary"
ONE_CELL = "an unbiased adversary, one cell"
MEMBERSHIP = "membership inference"

_FROM_DATA = "The prior has the mean and the standard deviation of every column in the data."
_REGULAR = "The bound is that of small changes of the record, at the data as they are."


def guarantees(
    leak: Leakage,
    *,
    domain: Any = None,
    dp: Any = None,
    prior: GaussianPrior | BoundedPrior | None = None,
    row: int | None = None,
    columns: Columns = None,
    draws: int = 128,
    seed: int = 0,
) -> Guarantees:
    """Return every bound on the reconstruction of a record, with what each assumes.

    Parameters
    ----------
    leak
        The leakage of one release.
    domain
        Where records may lie: ``(lower, upper)``, each one number or one per column, or a mapping
        from column names to such pairs. Where not given, the columns' ranges in the data; what
        follows from those is an indication, not a guarantee, and says so.
    dp
        What the release promises: a statement of :mod:`seepage.privacy`, or a ``dp_accounting``
        event. Where not given, what output perturbation gives, if anything.
    prior
        What adversaries know of the record beforehand, for the bound that holds for all of them.
        Where not given, that its columns are spread as those of the other records are, and, where
        a domain is stated, that they lie within it.
    row
        The record; the one with the largest dFIL where not given.
    columns
        What is sought of it; all columns where not given. The label is known.
    draws, seed
        For the average over the prior, each draw of which is refitted.

    Examples
    --------
    >>> import seepage as sp
    >>> wine = sp.data.load_bundled("wine")
    >>> X, y = wine.X / wine.X.max(axis=0), wine.y == 0
    >>> model = sp.glm.LogisticRegression(l2=0.1).fit(X, y)
    >>> table = sp.guarantees(sp.leakage(model, X, y, noise=sp.Gaussian(0.1)), domain=(0, 1))
    >>> table.tightest("an unbiased adversary").name
    'Cramér–Rao'
    """
    unknowns, about = leak.unknowns(columns, False)
    which = list(range(leak.jacobian.features)) if unknowns.columns is None else unknowns.columns
    diagonal = leak.rows(columns=columns, label=False, measure="dfil")
    position = int(np.argmax(np.asarray(diagonal))) if row is None else _position(leak, row)
    limits = Domain.of(domain, leak.table)
    promise, no_promise = _promise(leak, limits, dp)
    rows = [
        *_unbiased(leak, columns, position, diagonal),
        _from_promise(promise, no_promise, limits, list(which)),
        *_van_trees(leak, prior, limits, list(which), position, {"draws": draws, "seed": seed}),
        _two_point(promise, no_promise, limits, list(which)),
        *_cell(leak, limits, list(which), position),
        _membership(promise, no_promise),
    ]
    values = as_numpy(leak.table.values)[:, list(which)]
    return Guarantees(
        rows=tuple(rows),
        row=position,
        label=str(diagonal.labels()[position]),
        chosen=row is not None,
        records=len(leak.table),
        about=about,
        numbers=len(which),
        guessing=float(np.mean(values.var(axis=0))),
    )


def _position(leak: Leakage, row: int) -> int:
    return int(leak.row_positions([row])[0])


def _unbiased(
    leak: Leakage, columns: Columns, position: int, diagonal: Result
) -> Iterator[Guarantee]:
    bounds = {
        "FIL, 1/η²": leak.rows(columns=columns, label=False).mse_bound(),
        "dFIL, 1/η̄²": diagonal.mse_bound(),
        "Cramér–Rao": cramer_rao_rows(leak, columns=columns),
    }
    for name, bound in bounds.items():
        value = float(np.asarray(bound)[position])
        yield Guarantee(name, value, UNBIASED_ADVERSARY, (*UNBIASED, _REGULAR))


def _promise(leak: Leakage, limits: Domain, dp: Any) -> tuple[PrivacyStatement | None, str]:
    """Return what the release promises, or why nothing is known."""
    if isinstance(dp, PrivacyStatement):
        return dp, ""
    if dp is not None:
        return renyi_of_event(dp), ""
    try:
        norm = limits.row_norm if limits.stated else None
        return output_perturbation(leak, row_norm=norm), ""
    except InputError as error:
        return None, str(error)


def _from_promise(
    promise: PrivacyStatement | None, reason: str, limits: Domain, which: list[int]
) -> Guarantee:
    def bound(promise: PrivacyStatement) -> tuple[float, Result]:
        found = from_privacy(promise, limits.diameters[which])
        return float(found), found

    return _promised(
        "Rényi differential privacy", UNBIASED_ADVERSARY, promise, reason, limits, bound
    )


def _two_point(
    promise: PrivacyStatement | None, reason: str, limits: Domain, which: list[int]
) -> Guarantee:
    def bound(promise: PrivacyStatement) -> tuple[float, Result]:
        found = two_point(promise, limits.diameters[which])
        return float(found), found

    return _promised("two points", EVERY_ADVERSARY, promise, reason, limits, bound)


def _promised(
    name: str,
    adversary: str,
    promise: PrivacyStatement | None,
    reason: str,
    limits: Domain,
    bound: Callable[[PrivacyStatement], tuple[float, Result]],
) -> Guarantee:
    """Return the line of a bound that follows from a promise and the domain."""
    if promise is None:
        return Guarantee(name, None, adversary, (), reason=reason)
    try:
        value, found = bound(promise)
    except InputError as error:
        return Guarantee(name, None, adversary, (), reason=str(error))
    assumptions = (*found.assumptions[:2], limits.words, *_about(promise))
    safe = promise.guarantee and limits.stated
    return Guarantee(name, value, adversary, assumptions, guarantee=safe)


def _about(promise: PrivacyStatement) -> tuple[str, ...]:
    return (f"The release is protected by {promise.words}.", *promise.assumptions)


def _van_trees(
    leak: Leakage,
    prior: GaussianPrior | BoundedPrior | None,
    limits: Domain,
    which: list[int],
    position: int,
    sampling: dict[str, int],
) -> Iterator[Guarantee]:
    if prior is not None:
        yield _averaged("van Trees", leak, prior, which, position, 1.0, sampling)
        return
    values = as_numpy(leak.table.values)
    # A column that cannot vary is known, and cannot be missed.
    spread = values.std(axis=0)
    sought = [j for j in which if spread[j] > 0]
    share = len(sought) / len(which)
    gaussian = GaussianPrior(spread[sought], values.mean(axis=0)[sought])
    name = "van Trees, spread as the data"
    found = _averaged(name, leak, gaussian, sought, position, share, sampling)
    yield replace(found, assumptions=(*found.assumptions, _FROM_DATA), guarantee=False)
    if not limits.stated:
        # Over the ranges of the data records would be spread far more widely than they are.
        return
    sought = [j for j in which if limits.diameters[j] > 0]
    share = len(sought) / len(which)
    bounded = BoundedPrior(limits.lower[sought], limits.upper[sought])
    name = "van Trees, within the domain"
    found = _averaged(name, leak, bounded, sought, position, share, sampling)
    yield replace(found, assumptions=(*found.assumptions, limits.words))


def _averaged(
    name: str,
    leak: Leakage,
    prior: GaussianPrior | BoundedPrior,
    sought: list[int],
    position: int,
    share: float,
    sampling: dict[str, int],
) -> Guarantee:
    """Return the line of a van Trees bound; ``share`` of the record's numbers are sought."""
    if not sought:
        reason = "No column varies, so there is nothing to find out."
        return Guarantee(name, None, EVERY_ADVERSARY, (), reason=reason)
    try:
        found = van_trees_rows(leak, prior, [position], sought, **sampling)
    except InputError as error:
        return Guarantee(name, None, EVERY_ADVERSARY, (), reason=str(error))
    value = share * float(np.asarray(found)[0])
    return Guarantee(name, value, EVERY_ADVERSARY, found.assumptions)


def _cell(leak: Leakage, limits: Domain, which: list[int], position: int) -> Iterator[Guarantee]:
    cells = np.asarray(leak.cells(columns=which).mse_bound())[position]
    j = which[int(np.argmin(cells))]
    column = leak.table.names[j]
    at = f"Cramér–Rao, {column}"
    yield Guarantee(at, float(cells.min()), ONE_CELL, (*UNBIASED, _REGULAR))
    name = f"Hammersley–Chapman–Robbins, {column}"
    try:
        found = hammersley_chapman_robbins(leak, position, j, domain=limits)
    except InputError as error:
        yield Guarantee(name, None, ONE_CELL, (), reason=str(error))
        return
    assumptions = found.bound.assumptions
    yield Guarantee(name, float(found), ONE_CELL, assumptions, guarantee=limits.stated)


def _membership(promise: PrivacyStatement | None, reason: str) -> Guarantee:
    name = "advantage, at most"
    if promise is None:
        return Guarantee(name, None, MEMBERSHIP, (), reason=reason, unit="advantage")
    return Guarantee(
        name,
        membership_advantage(promise),
        MEMBERSHIP,
        _about(promise),
        guarantee=promise.guarantee,
        unit="advantage",
    )
