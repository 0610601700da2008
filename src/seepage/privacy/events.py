"""Read a ``dp_accounting`` event, the description of what a private mechanism did."""

from __future__ import annotations

import math
from typing import Any

from seepage.errors import InputError
from seepage.privacy.statements import HOELDER, NEIGHBOURS, RenyiDP


def renyi_of_event(event: Any, neighbours: str = "add-or-remove") -> RenyiDP:
    """Return the Rényi differential privacy of a ``dp_accounting`` event.

    Parameters
    ----------
    event
        Any event that ``dp_accounting``'s RDP accountant supports: Gaussian, Laplace, Poisson
        sampling, compositions, and so on.
    neighbours
        What the event's noise multiplier is relative to: how far ``"add-or-remove"`` one record
        (as for private SGD) or ``"replace"`` one can move the sum. Sampling without replacement is
        about replacing, Poisson sampling about adding or removing; the accountant refuses the
        other.

    Examples
    --------
    >>> import dp_accounting
    >>> from seepage.privacy import renyi_of_event
    >>> round(renyi_of_event(dp_accounting.GaussianDpEvent(2.0)).renyi(), 6)
    1.0
    """
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    if not isinstance(event, dp_accounting.DpEvent):
        raise InputError(
            f"dp must be a dp_accounting event or a statement of seepage.privacy, not a "
            f"{type(event).__name__}."
        )
    if neighbours not in NEIGHBOURS:
        raise InputError(f"neighbours must be 'replace' or 'add-or-remove', not {neighbours!r}.")
    relation = dp_accounting.NeighboringRelation
    accountant = RdpAccountant(
        _orders(neighbours),
        relation.REPLACE_ONE if neighbours == "replace" else relation.ADD_OR_REMOVE_ONE,
    )
    try:
        accountant.compose(event)
    except dp_accounting.UnsupportedEventError as error:
        raise InputError(f"The accountant does not support this event: {error}") from None
    pairs = zip(accountant.orders.tolist(), accountant.rdp.tolist(), strict=True)
    curve = [(order, epsilon) for order, epsilon in pairs if math.isfinite(epsilon)]
    if not curve:
        raise InputError("The event has no finite Rényi divergence: it does not protect anything.")
    return RenyiDP(curve, neighbours, (f"The mechanism did what its event says: {event!r}.",))


def _orders(neighbours: str) -> list[float]:
    """Return the orders that :meth:`RenyiDP.renyi` asks for."""
    if neighbours == "replace":
        return [2.0]
    pairs = [(2 * p, (2 - 1 / p) * p / (p - 1)) for p in HOELDER]
    return sorted({round(order, 9) for pair in pairs for order in pair})
