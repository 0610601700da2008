"""Canaries in one run of any training function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from seepage.attacks.canaries.coins import Canaries, CanaryAudit
from seepage.errors import accepts_other_names


@accepts_other_names
def audit_training(
    train: Callable[[list[Any]], Any],
    score: Callable[[Any, Any], float],
    canaries: Sequence[Any],
    *,
    delta: float,
    records: Iterable[Any] = (),
    guesses: int | None = None,
    confidence: float = 0.95,
    promised: float | None = None,
    seed: int | None = None,
) -> CanaryAudit:
    """Return a lower bound on the ε of any training function, from one run with canaries.

    Parameters
    ----------
    train
        A function that trains a model on a list of records and returns the model.
    score
        A function that scores a canary with the model, for example by the negative loss. A higher
        score means that the canary is more likely to have been included.
    canaries
        The canaries, at least ten and preferably a thousand: atypical records in the same format as
        the other records. An independent fair coin flip decides whether each canary is included.
    delta
        The δ of the bound.
    records
        All other training records.
    guesses, seed
        As for :class:`Canaries`.
    confidence
        The confidence level of the bound.
    promised
        The ε guaranteed at this δ for adding or removing one record; it is printed with the bound.

    Examples
    --------
    A function that publishes whether each canary is included, flipping each answer with probability
    1/(1 + e²), has ε = 2:

    >>> import numpy as np, seepage as sp
    >>> rng = np.random.default_rng(0)
    >>> def published(records):
    ...     is_in = np.isin(np.arange(1000), records)
    ...     return is_in ^ (rng.random(1000) < 1 / (1 + np.exp(2)))
    >>> print(
    ...     sp.attacks.audit_training(
    ...         published, lambda model, k: model[k], range(1000), delta=0, promised=2.0, seed=0
    ...     )
    ... )
    promised: ε at most 2; a run with 1,000 canaries shows ε ≥ 1.8 (95 % confidence, δ = 0)
    """
    coins = Canaries(len(canaries), guesses=guesses, seed=seed)
    model = train([*records, *coins.chosen(canaries)])
    scores = np.array([float(score(model, canary)) for canary in canaries])
    return coins.audit(scores, delta=delta, confidence=confidence, promised=promised)
