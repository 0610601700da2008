"""The limits a caller sets: is the release within them, and if not, which records are over."""

from __future__ import annotations

import math

from seepage.auditing.findings import Audit, Gate
from seepage.errors import InputError

_NAMED = 10
_ROUNDING = 1e-9  # noise calibrated to a limit meets it


def check(
    audit: Audit,
    *,
    max_eta: float | None = None,
    min_mse: float | None = None,
    max_group_ratio: float | None = None,
) -> tuple[Gate, ...]:
    """Return one gate per limit, with offenders named by their row and never by their values.

    Parameters
    ----------
    audit
        What was found.
    max_eta
        The most that any record may leak.
    min_mse
        The least mean squared error, in squared standard deviations of the columns, that an
        unbiased attack on a number of any record must have: ``1/η²``.
    max_group_ratio
        The most by which the mean leakage of one group may exceed that of another.
    """
    check_limits(max_eta, min_mse, max_group_ratio, bool(audit.groupings))
    gates = []
    if max_eta is not None:
        gates.append(_max_eta(audit, max_eta))
    if min_mse is not None:
        gates.append(_min_mse(audit, min_mse))
    if max_group_ratio is not None:
        gates.append(_group_ratio(audit, max_group_ratio))
    return tuple(gates)


def check_limits(
    max_eta: float | None, min_mse: float | None, max_group_ratio: float | None, grouped: bool
) -> float | None:
    """Refuse limits that mean nothing, and return the leakage of a record that meets the others.

    Called before any work is done; ``grouped`` says whether there are groups to compare.
    """
    etas = []
    if max_eta is not None:
        etas.append(_positive(max_eta, "--max-eta"))
    if min_mse is not None:
        etas.append(_positive(min_mse, "--min-mse") ** -0.5)
    if max_group_ratio is not None:
        if not (math.isfinite(max_group_ratio) and max_group_ratio >= 1):
            raise InputError(
                f"--max-group-ratio must be a number of at least 1, not {max_group_ratio:g}."
            )
        if not grouped:
            raise InputError("--max-group-ratio compares groups: name a column with --group.")
    return min(etas) if etas else None


def _max_eta(audit: Audit, limit: float) -> Gate:
    measured = audit.records.largest("eta")
    over = audit.records.over(limit * (1 + _ROUNDING))
    if not over:
        text = f"The most leaked record has η = {measured:.4g}, within the limit of {limit:g}."
    else:
        text = (
            f"{_records(audit, over)} more than η = {limit:g} (the worst {measured:.4g}); "
            f"σ = {audit.sigma * measured / limit:.4g} would be enough."
        )
    return Gate("--max-eta", limit, measured, not over, text)


def _min_mse(audit: Audit, limit: float) -> Gate:
    worst = audit.records.largest("eta")
    measured = worst**-2.0 if worst > 0 else math.inf
    over = audit.records.over(math.sqrt((1 + _ROUNDING) / limit))
    if not over:
        text = (
            f"No unbiased attack has a mean squared error below {measured:.4g} on any record, "
            f"within the limit of {limit:g}."
        )
    else:
        text = (
            f"{_records(audit, over)} so much that the mean squared error of an attack may be below"
            f" {limit:g} (as low as {measured:.4g}); "
            f"σ = {audit.sigma * math.sqrt(limit / measured):.4g} would be enough."
        )
    return Gate("--min-mse", limit, measured, not over, text)


def _group_ratio(audit: Audit, limit: float) -> Gate:
    worst = max(audit.groupings, key=lambda grouping: grouping.ratio)
    passed = worst.ratio <= limit * (1 + _ROUNDING)
    text = (
        f"Between the groups of column {worst.column!r} the mean leakage differs by a factor of "
        f"{worst.ratio:.4g}, {'within' if passed else 'over'} the limit of {limit:g}."
    )
    return Gate("--max-group-ratio", limit, worst.ratio, passed, text)


def _records(audit: Audit, count: int) -> str:
    rows = ", ".join(str(int(row)) for row in audit.records.most(min(count, _NAMED)).row)
    more = f" and {count - _NAMED:,} more" if count > _NAMED else ""
    if count == 1:
        return f"1 record (row {rows}) leaks"
    return f"{count:,} records (rows {rows}{more}) leak"


def _positive(limit: float, name: str) -> float:
    if not (math.isfinite(limit) and limit > 0):
        raise InputError(f"{name} must be a finite number above zero, not {limit:g}.")
    return limit
