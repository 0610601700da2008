"""``sp.leakage``: the leakage of a linear model, or of a network's gradient."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, overload

from seepage.core.leakage import Leakage
from seepage.core.noise import Attacker, Noise, as_noise
from seepage.core.record_stream import RecordStream
from seepage.errors import InputError, accepts_other_names, check_options
from seepage.glm.leakage import leakage as linear_leakage
from seepage.glm.outsider.leakage import OutsiderLeakage
from seepage.glm.outsider.predictions import Parameters, Predictions
from seepage.support.library_classes import is_network
from seepage.tables.source import RowSource


@overload
def leakage(
    model: Any,
    X: RowSource,
    y: None = None,
    *,
    noise: Noise | float,
    sample_weight: None = None,
    attributes: Mapping[str, Sequence[str | int]] | None = None,
    on_mismatch: str = "raise",
    dtype: None = None,
    preprocessing: str = "frozen",
    categorical: Sequence[str] = (),
    person: Any = None,
) -> Leakage[RecordStream]: ...


@overload
def leakage(
    model: Any,
    X: Any,
    y: Any = None,
    *,
    noise: Noise | float | None = None,
    sample_weight: Any = None,
    attributes: Mapping[str, Sequence[str | int]] | None = None,
    on_mismatch: str = "raise",
    dtype: str | None = None,
    preprocessing: str = "frozen",
    categorical: Sequence[str] = (),
    person: Any = None,
    attacker: Attacker,
    release: Predictions | Parameters | None = None,
) -> OutsiderLeakage: ...


@overload
def leakage(
    model: Any,
    X: Any,
    y: Any = None,
    *,
    noise: Noise | float | None = None,
    attributes: Mapping[str, Sequence[str | int]] | None = None,
    loss: Any = None,
    noise_multiplier: float | None = None,
    max_grad_norm: float | None = None,
    **network: Any,
) -> Leakage: ...


@accepts_other_names
def leakage(
    model: Any,
    X: Any,
    y: Any = None,
    *,
    noise: Noise | float | None = None,
    sample_weight: Any = None,
    attributes: Mapping[str, Sequence[str | int]] | None = None,
    on_mismatch: str = "raise",
    dtype: str | None = None,
    preprocessing: str = "frozen",
    categorical: Sequence[str] = (),
    person: Any = None,
    attacker: Attacker | None = None,
    release: Predictions | Parameters | None = None,
    loss: Any = None,
    noise_multiplier: float | None = None,
    max_grad_norm: float | None = None,
    **network: Any,
) -> Leakage[Any] | OutsiderLeakage:
    """Measure how much of its training data a model leaks when it is released with noise.

    Parameters
    ----------
    model
        A fitted linear model of ``sp.glm``, scikit-learn, statsmodels, glum or skglm (listed in the
        how-to *Supported models*), a ``Pipeline`` that ends in one, or a hyperparameter search over
        one. Alternatively, a torch or Hugging Face network; the release is then the gradient of a
        batch.
    X, y
        The data that the model was fitted on: a NumPy array, a pandas, polars or Arrow table, or a
        torch tensor (the computation then runs on its device). For a pipeline or a formula, pass
        the raw table; the leakage is then about its columns. For data larger than memory, pass
        :func:`seepage.parquet` data without ``y``; or a Parquet file, a folder of them or a
        ``pyarrow`` data set, with column names for ``y`` and ``sample_weight``. Rows are then read
        in chunks, and each record's leakage is computed as it is read. For a network, the batch:
        inputs and targets, or the mapping that a Hugging Face data collator returns.
    noise
        The noise to add to the parameters: :class:`Gaussian` or :class:`Laplace`, or a number, the
        standard deviation of Gaussian noise. The noise may be omitted only for an attacker who does
        not know all other records. For a network: the noise added to the sum of the gradients.
    sample_weight
        The weights that the model was fitted with.
    attributes
        Columns that belong together, such as the one-hot columns of a category, by a common name.
    on_mismatch
        What to do if the coefficients do not minimise the model's objective on these data:
        ``"raise"`` (other data, another penalty and lack of convergence all make the numbers wrong)
        or ``"warn"``.
    dtype
        ``"float64"`` (the default) or ``"float32"``.
    preprocessing
        For a pipeline: whether the values that its steps learnt from the data count as public
        (``"frozen"``), or are learnt again when a record changes (``"refitted"``).
    categorical
        For a pipeline: columns whose numbers are category codes.
    person
        The person of every record, if people may have several records: an identity per record, or
        the name of a column of the data that is not a feature. ``leak.people()`` then measures all
        records of a person together. ``leak.membership()`` removes all of a person's records
        together, and values that they share are guessed together.
    attacker
        What the attacker knows: all other records, unless :class:`Attacker` states less. Records
        that the attacker does not know protect the other records. The result is then an estimate,
        of class :class:`~seepage.glm.outsider.leakage.OutsiderLeakage`.
    release
        The published quantity, if not the exact parameters: :class:`Predictions`, or
        :class:`Parameters` rounded to printed digits. For an attacker who knows all other records,
        the noise is added to the margins of the predictions. Rounding after the noise does not
        reduce the measured leakage.
    loss
        For a network: ``"cross_entropy"`` (the default for whole-number targets), ``"mse"`` (the
        default for other targets), a torch loss module, or a function of output and target.
    noise_multiplier, max_grad_norm
        For a network: σ and the clipping norm C of private SGD; the noise is then σC.
    network
        Further options of :func:`seepage.nn.leakage`, such as ``view`` and ``clip``.

    Examples
    --------
    >>> import numpy as np, seepage as sp
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((100, 3))
    >>> y = X @ [1.0, -2.0, 0.5] + rng.standard_normal(100)
    >>> model = sp.glm.LinearRegression().fit(X, y)
    >>> leak = sp.leakage(model, X, y, noise=sp.Gaussian(0.1))
    >>> leak.records().shape
    (100,)

    The gradient of a network's batch:

    >>> import torch
    >>> net = torch.nn.Linear(3, 2)
    >>> batch, labels = torch.tensor(X[:10]).float(), torch.tensor(y[:10] > 0).long()
    >>> leak = sp.leakage(net, batch, labels, noise_multiplier=1.0, max_grad_norm=1.0)
    >>> leak.records("dfil").shape
    (10,)
    """
    if is_network(model):
        only_linear = {
            "sample_weight": sample_weight,
            "on_mismatch": None if on_mismatch == "raise" else on_mismatch,
            "dtype": dtype,
            "preprocessing": None if preprocessing == "frozen" else preprocessing,
            "categorical": categorical or None,
            "person": person,
            "attacker": attacker,
            "release": release,
        }
        for name, value in only_linear.items():
            if value is not None:
                raise InputError(
                    f"{name}= applies only to linear models; leave it out for a network."
                )
        from seepage.auditing.entry.gradients import leakage_of_batch

        return leakage_of_batch(
            model,
            X,
            y,
            loss=loss,
            noise=as_noise(noise),
            noise_multiplier=noise_multiplier,
            max_grad_norm=max_grad_norm,
            attributes=attributes,
            **network,
        )
    if network:
        known = [name for name in inspect.signature(leakage).parameters if name != "network"]
        check_options(network, known, "leakage")
    given = {"loss": loss, "noise_multiplier": noise_multiplier, "max_grad_norm": max_grad_norm}
    for name, value in given.items():
        if value is not None:
            raise InputError(
                f"{name}= applies only to networks; leave it out for {type(model).__name__}, and "
                "pass the noise on its parameters: noise=sp.Gaussian(sigma)."
            )
    measure: Any = linear_leakage  # of an attacker or none: its overloads tell them apart
    found: Leakage[Any] | OutsiderLeakage = measure(
        model,
        X,
        y,
        noise=as_noise(noise),
        sample_weight=sample_weight,
        attributes=attributes,
        on_mismatch=on_mismatch,
        dtype=dtype,
        preprocessing=preprocessing,
        categorical=categorical,
        person=person,
        attacker=attacker,
        release=release,
    )
    return found
