"""Measures the leakage of a network's noisy gradient about each record of its batch.

The release is ``Σ_i g̃_i + N(0, (σC)² I)``. The information about a record's unknowns ``z`` is
``I = J̃ᵀJ̃/(σC)²`` with ``J̃ = ∂g̃/∂z`` (Guo et al. 2022, section 6), which gives

    FIL    η = √λ_max(I)               the largest leakage in any direction of the unknowns
    dFIL   η̄ = √(Tr(I)/d)              the root mean square over the d unknowns
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from seepage.core.jacobian import Attributes, Unknowns
from seepage.core.leakage import Columns, Leakage
from seepage.core.noise import Gaussian
from seepage.core.result import Result
from seepage.errors import InputError, accepts_other_names
from seepage.nn.gradients.network_checks import FallbackWarning, without_dropout
from seepage.nn.gradients.per_record_gradients import at_least_single
from seepage.nn.jacobian.engine import Engine
from seepage.nn.jacobian.finite_changes import condition_of_steps, over_steps
from seepage.nn.measures.estimate import Estimate
from seepage.nn.measures.gradient_jacobian import GradientJacobian, GradientRelease
from seepage.nn.measures.information_matrices import (
    InformationSketch,
    LargestEigenvalues,
    Trace,
    check_probes,
    exact,
    exact_diagonal,
    hutchpp,
    lanczos,
    nystrom,
    rademacher,
)
from seepage.nn.problem.arrays import as_tensors
from seepage.nn.problem.clipping import Clip, NoClip, choose_clip
from seepage.nn.problem.own_loss import labels_of
from seepage.nn.problem.problem import Loss
from seepage.nn.problem.views import Input, Inputs, View, batch_size, check_labels
from seepage.support.number_check import check_choice, check_positive
from seepage.tables.source import MemorySource, Table

CONDITIONS = ("Only one gradient is released, summed over the batch, with the stated noise.",)
_FROM_ABOVE = (
    "Changes along a record's own gradient count in full, as if the clip did not reduce them, so "
    "the numbers estimate an upper bound on the leakage."
)


@accepts_other_names
def leakage(
    net: nn.Module,
    loss: str | nn.Module | Loss | Mapping[str, Tensor],
    x: Inputs = None,
    y: Tensor | None = None,
    *,
    noise_multiplier: float,
    max_grad_norm: float | None = None,
    clip: str | Clip = "hard",
    view: View | None = None,
    attributes: Mapping[str, Sequence[str | int]] | None = None,
    clip_derivative: str = "exact",
    method: str = "auto",
    scale: float | None = None,
    chunk_size: int | str = "auto",
    seed: int = 0,
) -> GradientLeakage:
    """Measure the leakage of a batch's noisy gradient about its records.

    Parameters
    ----------
    net, loss
        The network and its loss: ``"cross_entropy"``, ``"mse"``, a torch loss module, or a function
        of output and target that returns one loss per record. Dropout is switched off for the
        measurement, and a warning states this. For a model that computes its own loss (as Hugging
        Face models do), pass the data collator's batch instead: ``sp.nn.leakage(model, batch,
        noise_multiplier=…)``.
    x, y
        The batch, with records along the first axis. Tables may be data frames, whose column names
        are then used. Several inputs are given as a dict, with the argument names of ``forward()``
        as keys, or as a tuple.
    noise_multiplier
        The noise multiplier ``σ``. The noise on the sum of the gradients has the standard deviation
        ``σC``, or ``σ`` without clipping.
    max_grad_norm
        The clipping threshold ``C``; ``None`` for no clipping.
    clip
        ``"hard"``, ``"smooth"`` (the GELU clip of Guo et al. 2022), or a :mod:`seepage.nn` clip
        with its own threshold, without ``max_grad_norm``.
    view
        The unknowns of a record: ``sp.nn.Input()`` (the default), ``sp.nn.Label()`` or
        ``sp.nn.Embedding("module")``. In ``sp.nn.Input``, ``mask=`` selects a part of the input,
        and ``key=`` selects one of several inputs by its name or position. For a Hugging Face
        model, the default is the model's main input: the pixels or the token embeddings.
    attributes
        Named groups of columns that belong together, such as the one-hot columns of a category.
        Columns are given by their positions in a record or their names, which are ``"x0"``,
        ``"x1"`` and so on unless ``x`` is a data frame.
    clip_derivative
        ``"exact"``, or the faster ``"conservative"``. With ``"conservative"``, results from random
        signs (records, cells and parts) estimate upper bounds, and their kind is ``bound``. All
        other results use the exact clip.
    method
        ``"derivative"`` uses derivatives. ``"finite"`` uses plain training passes to measure the
        change of the clipped gradient over a step of a stated size; it works for any network that
        can be trained. ``"auto"`` measures dFIL over finite steps if the network has kinks (ReLU,
        max pooling), because derivatives then understate finite changes. ``"auto"`` also uses
        finite steps if the network cannot be differentiated twice or detaches part of the
        computation (``.detach()``). For all other networks, ``"auto"`` uses derivatives. The result
        states the step size.
    scale
        The size ``h`` of a finite step. The leakage is then computed from
        ``E‖g̃(z + hv) − g̃(z)‖²/h²``, where ``v`` contains a random sign for each unknown. The
        default is a hundredth of the root mean square of the unknowns in the batch, rounded to one
        digit (for thin steps, see :class:`~seepage.nn.Engine`).
    chunk_size
        The number of records to process at once; ``"auto"`` chooses a number that fits in memory.
    seed
        The seed for the probes.

    Examples
    --------
    >>> import torch, seepage as sp
    >>> _ = torch.manual_seed(0)
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    >>> x, y = torch.randn(10, 4), torch.randint(0, 2, (10,))
    >>> leak = sp.nn.leakage(net, "cross_entropy", x, y, noise_multiplier=1.0, max_grad_norm=1.0)
    >>> leak.records("dfil", method="exact").shape
    (10,)
    >>> leak.cells(probes=16).shape
    (10, 4)
    """
    check_positive(noise_multiplier, "noise_multiplier")
    check_view(view)
    if isinstance(loss, Mapping):
        x, y, loss = dict(loss), labels_of(loss), "own"
    if x is None or y is None:
        raise InputError(
            "Give the network, loss, inputs and targets, or a Hugging Face model and a batch with "
            "labels: sp.nn.leakage(model, batch, noise_multiplier=…)."
        )
    chosen = choose_clip(clip, max_grad_norm)
    measured, dropout_off = without_dropout(net)
    if dropout_off:
        warnings.warn(dropout_off, FallbackWarning, stacklevel=3)
    engine = Engine(
        measured,
        loss,
        clip=chosen,
        view=view,
        clip_derivative=clip_derivative,
        method=method,
        scale=scale,
        chunk_size=chunk_size,
        seed=seed,
    )
    x, y, table = as_tensors(engine.net, x, y)
    noise = noise_multiplier * chosen.max_grad_norm
    conditions = (dropout_off,) if dropout_off else ()
    return GradientLeakage(engine, x, y, noise, attributes, conditions, table)


def check_view(view: Any) -> None:
    """Raise an error unless the argument is a view or ``None``."""
    if view is not None and not isinstance(view, View):
        raise InputError(
            f"view must be sp.nn.Input(), sp.nn.Label() or sp.nn.Embedding('module'), not {view!r}."
        )


def check_batch(x: Inputs, y: Tensor) -> None:
    """Raise an error unless there is at least one record and every record has one label."""
    check_labels(x, y)
    if not len(y):
        raise InputError("The batch contains no records; give at least one.")


class GradientLeakage(Leakage):
    """The leakage of one noisy gradient about the records of its batch.

    This class has all methods of a table's leakage (``columns``, ``groups``, ``subset``,
    ``dataset``, ``information``), so bounds, calibration and guarantees work as for any other
    leakage. A record's columns are the unknown entries of the view's variable, in order;
    ``label=True`` adds the label. Results from these methods are exact and require at least one
    pass per unknown. :meth:`records`, :meth:`cells` and :meth:`parts` can be estimated from a few
    probes instead.

    Parameters
    ----------
    engine
        The engine that measures the Jacobian.
    x, y
        The batch.
    noise
        The standard deviation of the noise on the sum of the clipped gradients.
    attributes
        Named groups of columns that belong together, such as the one-hot columns of a category.
    conditions
        Assumptions to state with estimated results, in words.
    table
        The data frame that contained the inputs, with the names of its columns and rows.
    """

    jacobian: GradientJacobian

    def __init__(
        self,
        engine: Engine,
        x: Inputs,
        y: Tensor,
        noise: float,
        attributes: Mapping[str, Sequence[str | int]] | None = None,
        conditions: tuple[str, ...] = (),
        table: Table | None = None,
    ) -> None:
        check_batch(x, y)
        self.engine, self.x, self.y = engine, x, y
        self.conditions = (*CONDITIONS, *conditions)
        jacobian = GradientJacobian(engine, x, y, noise)
        self.entry_names = tuple(f"x{j}" for j in range(jacobian.variable_size))
        if table is not None and isinstance(engine.view, Input):  # whose variable is its row
            self.entry_names = table.names
        names = tuple(self.entry_names[j] for j in jacobian.entries.tolist())
        index, library = (table.index, table.library) if table is not None else (None, "torch")
        source = MemorySource(Table(jacobian.X, names, index, library), y)
        super().__init__(
            GradientRelease(jacobian), source, (Gaussian(noise),), Attributes(source, attributes)
        )

    def unknowns(
        self, columns: Columns, label: bool | None = None, simplex: bool = False
    ) -> tuple[Unknowns, str]:
        """Return the unknowns in these columns as directions of a record, and their description."""
        unknowns, about = super().unknowns(columns, bool(label), simplex)
        if columns is None:
            about = self.engine.view.describe() + (" and the label" if label else "")
        if self.engine.method == "finite":
            return unknowns, over_steps(about, self.engine.step_size(self.x, self.y))
        return unknowns, self._as_derivative(about)

    def plot(self, ax: Any = None, measure: str = "dfil") -> Any:
        """Plot the leakage about every record in descending order, with 95 % intervals.

        The call is equivalent to ``leak.records(measure).plot(ax)`` and returns the matplotlib
        axes.
        """
        return self.records(measure).plot(ax)

    def records(  # type: ignore[override]  # the measure first, as everywhere for networks
        self,
        measure: str = "fil",
        method: str | None = None,
        probes: int = 32,
        *,
        columns: Columns = None,
        label: bool | None = None,
        simplex: bool = False,
    ) -> Estimate:
        """Return the leakage about each record; ``rows()`` is the same method.

        Parameters
        ----------
        measure
            ``"dfil"``, the root mean square over a record's unknowns, or ``"fil"``, the largest
            leakage in any direction of the unknowns. dFIL takes one pass per probe; FIL takes up to
            100 iterations over the batch. If the iteration stops before it converges, the kind is
            ``estimate``. The value is then a lower bound, and its stated error is the gap to the
            upper bound.
        method
            For the dFIL: ``"rademacher"`` (random signs, the default), ``"hutch++"``, or
            ``"exact"`` (with finite steps, only for up to 10 unknowns).
        probes
            The number of probes, at least 2.
        columns, label, simplex
            The unknowns, as for a table's leakage. If any of these is given, the result is exact.
        """
        if columns is not None or label is not None or simplex:
            if method not in (None, "exact"):
                raise InputError(
                    "Results for named columns or the label are exact; leave out "
                    f"method={method!r}."
                )
            return _exact(super().records(columns, label, measure, simplex))
        check_choice(measure, "measure", ("fil", "dfil"))
        if measure == "fil":
            return self._fil()
        method = "rademacher" if method is None else method
        trace, spread, degrees = self._trace(method, probes)
        unknowns = self.engine.unknowns_each(self.x, self.y).to(trace)
        finite = self._finite()
        exactly_clipped = {"exact": "exact", "hutch++": "estimate"}
        kind = exactly_clipped.get(method) or ("estimate" if finite else self._probed_kind())
        return self._rooted(
            self._whitened(trace / unknowns),
            self._whitened(spread / unknowns),
            "dfil",
            kind,
            degrees=degrees,
            finite=finite,
        )

    rows = records  # type: ignore[assignment]

    def cells(  # type: ignore[override]
        self, probes: int = 64, method: str = "rademacher", *, columns: Columns = None
    ) -> Estimate:
        """Return the leakage about each entry of each record, with all other entries known.

        The result has one row per record and one column per entry of the flattened variable
        (pixels, features), with zeros at entries that are known in the view. Every probe estimates
        all entries at once. For named columns, the result is exact. With ``method="finite"`` in
        ``sp.nn.leakage``, or if the network has no derivatives, the unknowns are shifted one by
        one.
        """
        if columns is not None:
            return _exact(super().cells(columns))
        check_choice(method, "method", ("rademacher", "exact"))
        differentiable = self.engine.method != "finite" and self.engine.has_derivatives(
            self.x, self.y
        )
        if method == "exact" or not differentiable:
            squared = self._whitened(exact_diagonal(self.engine, self.x, self.y).flatten(1))
            none, finite = torch.zeros_like(squared), self._finite()
            return self._rooted(squared, none, "fil", "exact", "cells", finite=finite)
        squares = self._whitened(self._pulls(probes).flatten(2).square())
        return self._averaged(squares, "fil", "cells")

    def by_scale(self, scales: Sequence[float] | None = None, probes: int = 64) -> Estimate:
        """Return the dFIL about each record over finite steps of several sizes.

        As steps become smaller, the dFIL converges for a smooth network, but may grow near a kink.
        A value measured over steps of size ``h`` therefore applies to an attacker whose uncertainty
        about the unknowns is about ``h``.

        Parameters
        ----------
        scales
            The sizes ``h``, in the units of the unknowns. The default is the size used by
            :meth:`records`, and a tenth, a third, 3 and 10 times that size.
        probes
            The number of probes, at least 2. All sizes use the same random directions.

        Returns
        -------
        Estimate
            One row per record and one column per size, with standard errors.

        Examples
        --------
        >>> import torch, seepage as sp
        >>> _ = torch.manual_seed(0)
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
        >>> batch = torch.randn(3, 4), torch.tensor([0, 1, 0])
        >>> leak = sp.nn.leakage(net, "cross_entropy", *batch, noise_multiplier=1.0)
        >>> found = leak.by_scale([0.001, 0.01])
        >>> found.shape, found.names
        ((3, 2), ('h = 0.001', 'h = 0.01'))
        """
        check_probes(probes)
        if scales is None:
            engine = self.engine if self._finite() else self.engine.over_steps_of(None)
            own = engine.step_size(self.x, self.y)
            scales = [own * factor for factor in (0.1, 1 / 3, 1, 3, 10)]
        found = []
        for scale in scales:
            engine = self.engine.over_steps_of(scale)
            other = GradientLeakage(engine, self.x, self.y, self.jacobian.noise)
            found.append(other.records("dfil", probes=probes))
        if not found:
            raise InputError("scales is empty; give at least one size, such as scales=[0.01].")
        last = found[-1]
        return replace(
            last,
            index=self.source.index,
            library=self.source.library,
            values=torch.stack([one.values for one in found], 1),
            standard_errors=torch.stack([one.standard_errors for one in found], 1),
            view="scales",
            about=f"{self.engine.view.describe()}, over steps of several sizes",
            names=tuple(f"h = {scale:.3g}" for scale in scales),
            conditions=self.conditions,
        )

    def parts(self, masks: Mapping[str, Any], probes: int = 64) -> dict[str, Estimate]:
        """Return the dFIL about named parts of each record, from one set of probes.

        Parameters
        ----------
        masks
            For each part, a boolean array in the shape of one record's variable. Entries that are
            known in the view are ignored; a part without unknowns raises an error.
        probes
            The number of probes, at least 2.
        """
        pulls = self._pulls(probes)
        out = {}
        unknown = self.engine.view.mask_for(pulls[:, 0])
        for name, mask in masks.items():
            part = Input(mask).mask_for(pulls[:, 0])
            assert part is not None  # noqa: S101 - a mask was given
            part = part if unknown is None else part & unknown
            if not bool(part.any()):
                raise InputError(
                    f"The part {name!r} contains none of the view's unknowns; leave it out."
                )
            squares = (pulls * part).flatten(2).square().sum(2) / int(part.sum())
            out[name] = self._averaged(self._whitened(squares), "dfil", "rows", name)
        return out

    def spectrum(self, tolerance: float = 1e-4, max_steps: int = 100) -> LargestEigenvalues:
        """Return lower and upper bounds on ``λ_max(I)``, the square of ``η``, for every record."""
        count, like = batch_size(self.x), self.engine.variable(self.x, self.y)
        shape = (count, *like.shape[1:])
        # Independent of the data, uniform over all directions, and the same on every device.
        generator = torch.Generator().manual_seed(self.engine.seed)
        kind = at_least_single(like)
        start = torch.randn(like.shape, generator=generator, dtype=kind).to(like.device)
        start = self.engine.masked(start.expand(shape))

        def apply(v: Tensor) -> Tensor:
            along = v.reshape(shape).to(like.dtype)
            product = self.engine.information_product(self.x, self.y, along)
            return self._whitened(product.flatten(1))

        return lanczos(apply, start.flatten(1), tolerance, max_steps)

    def sketch(self, rank: int = 8) -> InformationSketch:
        """Return a low-rank sketch of every record's information matrix.

        Up to rounding, the sketch never exceeds the matrix. Sketch and matrix are equal if ``rank``
        is at least the number of unknowns.
        """
        unwhitened = nystrom(self.engine, self.x, self.y, rank)
        return InformationSketch(unwhitened.factor / self.jacobian.noise, unwhitened.shape)

    def norms(self) -> Tensor:
        """Return the norm of every record's gradient before clipping."""
        return self.engine.norms(self.x, self.y)

    def _fil(self) -> Estimate:
        largest = self.spectrum()
        none = torch.zeros_like(largest.lower)
        about = self._as_derivative(self.engine.view.describe())
        result = self._rooted(largest.lower, none, "fil", "exact", about=about)
        if bool(largest.settled.all()):
            return result
        gap = largest.upper.sqrt() - largest.lower.sqrt()
        return replace(
            result,
            kind="estimate",
            standard_errors=torch.where(largest.settled, 0.0, gap),
            conditions=(*result.conditions, largest.remark()),
        )

    def _trace(self, method: str, probes: int) -> Trace:
        check_choice(method, "method", ("rademacher", "hutch++", "exact"))
        if method == "rademacher":
            return rademacher(self.engine, self.x, self.y, probes)
        if method == "hutch++":
            if self._finite():
                raise InputError(
                    "'hutch++' needs products with the information matrix, which finite steps do "
                    "not define; choose 'rademacher' or 'exact', or pass method='derivative' to "
                    "sp.nn.leakage."
                )
            return hutchpp(self.engine, self.x, self.y, probes)
        return exact(self.engine, self.x, self.y)

    def _pulls(self, probes: int) -> Tensor:
        check_probes(probes)
        pulls = self.engine.step(self.x, self.y, probes=probes, key="cells", pulls=True).pulls
        assert pulls is not None  # noqa: S101 - they were asked for
        return pulls

    def _finite(self) -> bool:
        return self.engine.takes_finite_steps(self.x, self.y)

    def _as_derivative(self, about: str) -> str:
        """Return ``about``, marked as a derivative if other results use finite steps."""
        return f"{about}, as a derivative" if self._finite() else about

    def _probed_kind(self) -> str:
        """Return the kind of estimates from random signs."""
        safe = self.engine.clip_derivative == "conservative" and not isinstance(
            self.engine.clip, NoClip
        )
        return "bound" if safe else "estimate"

    def _averaged(
        self, squares: Tensor, measure: str, view: str, about: str | None = None
    ) -> Estimate:
        """Return the square roots of the mean over probes, given squares ``(B, probes, …)``."""
        probes = squares.shape[1]
        about = self._as_derivative(about or self.engine.view.describe())
        spread = squares.std(1, correction=1) / probes**0.5
        kind = self._probed_kind()
        return self._rooted(squares.mean(1), spread, measure, kind, view, about, probes - 1)

    def _whitened(self, squares: Tensor) -> Tensor:
        """Return squared changes of the gradient, divided by the variance of the noise.

        Results have at least float32 precision, even if the network's precision is lower.
        """
        return squares.to(at_least_single(squares)) / self.jacobian.noise**2

    def _rooted(
        self,
        information: Tensor,
        errors: Tensor,
        measure: str,
        kind: str,
        view: str = "rows",
        about: str | None = None,
        degrees: float = math.inf,
        finite: bool = False,
    ) -> Estimate:
        """Return the square roots of information, with first-order standard errors."""
        values = information.clamp(min=0).sqrt()
        spread = torch.where(values > 0, errors / (2 * torch.where(values > 0, values, 1.0)), 0.0)
        names = self.entry_names if view == "cells" else None
        about = about or self.engine.view.describe()
        conditions = self.conditions
        if kind == "bound":
            conditions = (*conditions, _FROM_ABOVE)
        if kind != "exact" and not finite and self.engine.parameter_step is not None:
            conditions = (*conditions, condition_of_steps(0.0, self.engine.parameter_step.doubt))
        if finite:
            h = self.engine.step_size(self.x, self.y)
            about = over_steps(about, h)
            conditions = (*conditions, condition_of_steps(h, self.engine.doubt))
        return Estimate(
            values,
            view,
            measure,
            kind=kind,
            about=about,
            index=self.source.index,
            names=names,
            library=self.source.library,
            noise=self.noise,
            standard_errors=spread,
            conditions=conditions,
            degrees=degrees,
        )


def _exact(result: Result) -> Estimate:
    """Return an exact result as an estimate with standard errors of zero."""
    return Estimate(**vars(result), standard_errors=torch.zeros_like(result.values))
