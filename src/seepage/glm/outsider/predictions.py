"""A release of predictions alone: a linear map of the parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, eq=False)
class Predictions:
    """Answers of the model to queries, in place of its parameters.

    They are margins (of least squares the predictions themselves) or unrounded probabilities, which
    say the same: ``Aθ̂`` with the queries as the rows of A. As many different queries as there are
    parameters tell as much as those. Rounded probabilities, or labels alone, tell less.

    Parameters
    ----------
    queries
        The records that the model was asked about, with the columns it was fitted on. Without any,
        each record's own prediction is the only answer: what a membership attack such as LiRA looks
        at.
    """

    queries: Any = None
