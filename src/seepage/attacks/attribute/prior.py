"""The adversary who knows only how common each level is: what any other has to beat."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from seepage.attacks.attribute.attribute_inversion import AttributeInversion, log_frequencies


class Prior(AttributeInversion):
    """Guesses the most frequent level for everybody: ``argmax_k p(k)`` (paper 001, section 6.4).

    Parameters
    ----------
    attribute
        What is guessed.

    Examples
    --------
    >>> import numpy as np, seepage as sp
    >>> X = np.array([[1.0, 0.0], [0.0, 0.0], [1.0, 0.0]])
    >>> allele = sp.attacks.NominalAttribute.from_table(X, [0], "allele")
    >>> sp.attacks.Prior(allele).fit(X, np.zeros(3)).attack(X, np.zeros(3)).accuracy
    0.6666666666666666
    """

    name = "prior"

    def fit(self, X: Any, y: Any) -> Self:
        """Count the levels in a table ``X`` that shows the attribute."""
        _, _, levels = self._read_known(X, y)
        self.log_prior_ = log_frequencies(levels, len(self.attribute))
        return self

    def _prepare(self, release: Any) -> tuple[Any, int]:
        return None, 1

    def _scores(self, X: np.ndarray, y: np.ndarray, rows: slice, release: Any) -> np.ndarray:
        return np.broadcast_to(self.log_prior_, (1, len(X), len(self.attribute)))
