"""``sp.leakage``: which Jacobian a fitted model and its data have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, overload

from seepage.core.leakage import Leakage
from seepage.core.noise import Noise
from seepage.core.record_stream import RecordStream
from seepage.core.unknowns import Attributes
from seepage.errors import InputError
from seepage.glm.jacobian.release import release_of
from seepage.streams.dispatch import as_source
from seepage.tables.source import RowSource


@overload
def leakage(
    model: Any,
    X: RowSource,
    y: None = None,
    *,
    noise: Noise,
    sample_weight: None = None,
    attributes: Mapping[str, Sequence[str | int]] | None = None,
    on_mismatch: str = "raise",
    dtype: None = None,
) -> Leakage[RecordStream]: ...


@overload
def leakage(
    model: Any,
    X: Any,
    y: Any,
    *,
    noise: Noise,
    sample_weight: Any = None,
    attributes: Mapping[str, Sequence[str | int]] | None = None,
    on_mismatch: str = "raise",
    dtype: str | None = None,
) -> Leakage: ...


def leakage(
    model: Any,
    X: Any,
    y: Any = None,
    *,
    noise: Noise,
    sample_weight: Any = None,
    attributes: Mapping[str, Sequence[str | int]] | None = None,
    on_mismatch: str = "raise",
    dtype: str | None = None,
) -> Leakage[Any]:
    """Measure what releasing a fitted linear model with noise tells about its training data.

    Parameters
    ----------
    model
        A fitted model of :mod:`seepage.glm`; scikit-learn's ``LinearRegression``, ``Ridge``,
        ``LogisticRegression`` or ``PoissonRegressor``; or the results of a statsmodels ``GLM``.
    X, y
        The data it was fitted on: a NumPy array, a pandas, polars or Arrow table, or a torch
        tensor (the work is then done where the tensor lives). For data larger than memory,
        :func:`seepage.parquet` data without ``y``, or a Parquet file, a folder of them or a
        ``pyarrow`` data set with the names of columns for ``y`` and ``sample_weight``: rows are
        then read in chunks, and what there is of every record is computed when it is read.
    noise
        What will be added to the parameters: :class:`Gaussian` or :class:`Laplace`.
    sample_weight
        The weights the model was fitted with.
    attributes
        Columns that belong together, such as the one-hot columns of a category, under a name.
    on_mismatch
        What to do when the coefficients do not minimise the model's objective on these data:
        ``"raise"`` (other data, another penalty and lack of convergence all make the numbers
        wrong) or ``"warn"``.
    dtype
        ``"float64"`` (the default) or ``"float32"``.

    Examples
    --------
    >>> import numpy as np, seepage as sp
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((100, 3))
    >>> y = X @ [1.0, -2.0, 0.5] + rng.standard_normal(100)
    >>> model = sp.glm.LinearRegression().fit(X, y)
    >>> leak = sp.leakage(model, X, y, noise=sp.Gaussian(0.1))
    >>> leak.rows().shape
    (100,)
    """
    if not isinstance(noise, Noise):
        raise InputError("noise must say what is added: sp.Gaussian(sigma) or sp.Laplace(scale).")
    source = as_source(X, y, sample_weight, dtype)
    release = release_of(model, source, noise, on_mismatch)
    return Leakage(release, source, (noise,), Attributes(source, attributes))
