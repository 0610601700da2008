"""Compute the leakage of a release from a fitted model, its data and the noise (``sp.leakage``).

One pass over the data computes the Hessian and checks that the model minimises its objective on
these data. The leakage of a row then depends only on the model, the Hessian and the row itself.
Sums over the rows are computed in float64, whatever the data type of the table; the Jacobian has
the table's data type.
"""

from __future__ import annotations

import inspect
import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, cast, overload

import numpy as np
from array_api_compat import array_namespace

from seepage.core.finite_changes import FiniteChanges
from seepage.core.jacobian import Attributes, MeasuredRelease, Refits, Unknowns
from seepage.core.leakage import Leakage, LeakageInputs
from seepage.core.noise import Attacker, Gaussian, Noise, check_noise_kind
from seepage.core.people import Identities, is_a_feature
from seepage.core.result import CLASS_WEIGHTS, PENALTY, RecordStream, joined
from seepage.errors import InputError, accepts_other_names, check_options
from seepage.glm.adapters.registry import (
    Unwrapped,
    best_of,
    check_columns,
    describe,
    kind_inside,
    kind_of,
    takes_frame,
    unwrap,
)
from seepage.glm.changes.changed_records import ChangedRecords, RecordRefits
from seepage.glm.changes.local_model import LargestShifts, LocalModel
from seepage.glm.changes.rebalanced import RebalancedRecords
from seepage.glm.fitting.balance import FEW_KEYS
from seepage.glm.fitting.objective import FittedGLM, Objective, PenalisedLoss, far_centre
from seepage.glm.inputs import streamed_source
from seepage.glm.jacobian.operator import (
    PlainJacobians,
    TermsJacobian,
    jacobian_at,
    merged,
)
from seepage.glm.jacobian.optimum import (
    Optimum,
    about,
    optimum,
    optimum_sums,
    plain_optimum,
    whitener_of,
)
from seepage.glm.losses import Categorical
from seepage.glm.outsider.leakage import OutsiderLeakage
from seepage.glm.outsider.predictions import (
    ANSWERS,
    AnswerNoise,
    Parameters,
    Predictions,
    check_queries,
)
from seepage.glm.outsider.refusals import checked_attacker
from seepage.glm.outsider.seen import SeenRelease
from seepage.glm.preprocessing.chain import Chain
from seepage.glm.preprocessing.jacobian import RawJacobian, RawRelease
from seepage.glm.preprocessing.raw_columns import (
    PREPROCESSING,
    REFITTED,
    FollowedColumns,
    RawTable,
    read_frame,
)
from seepage.glm.preprocessing.steps import dense
from seepage.glm.procedure import (
    RerunRelease,
    UnknownJacobian,
    WholeProcedure,
    can_rerun,
    learnt_words,
)
from seepage.glm.refusals import NoDerivativeError
from seepage.support.lazy import offered
from seepage.support.library_classes import is_network, is_pipeline, is_search, library_of
from seepage.tables.source import (
    Array,
    Chunk,
    MemorySource,
    RowSource,
    Table,
    as_numpy,
    check_column,
    column_names,
    is_streamed,
    read_table,
)

_NARROW = 100.0  # the loss of digits up to which single precision is precise enough
_SMALLEST = 1e-6  # its fourth power is 1e-24: far within the range of single precision


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
        ``"raise"`` or ``"warn"``. Other data, another penalty and a lack of convergence all make
        the numbers wrong.
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
        together, and a value that these records share is guessed in all of them together.
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
    if isinstance(noise, numbers.Real) and not isinstance(noise, bool):
        noise = Gaussian(float(noise))
    added = cast(Noise | None, noise)
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
        network |= {"noise_multiplier": noise_multiplier, "max_grad_norm": max_grad_norm}
        network |= {"loss": loss, "noise": added, "attributes": attributes}
        of_batch: Leakage = offered("leakage of a batch")(model, X, y, **network)
        return of_batch
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
    fixed = (sample_weight, attributes, on_mismatch, dtype, preprocessing, categorical, person)
    informed = _Question(model, X, y, *fixed).answer
    if attacker is None and release is None and added is not None:
        check_noise_kind(added)
        return informed(added)
    return _to_the_outsider(informed, model, X, added, attacker, release, person)


def _to_the_outsider(
    informed: Callable[[Noise], Leakage[Any]],
    model: Any,
    X: Any,
    noise: Noise | None,
    attacker: Attacker | None,
    release: Predictions | Parameters | None,
    person: Any,
) -> Leakage[Any] | OutsiderLeakage:
    """Return the leakage to an attacker who may not know all other records."""
    if noise is None:
        kind_inside(model)  # what to do about a model of another kind is no question of noise
    known = checked_attacker(attacker, noise, release)
    queries = release.queries if isinstance(release, Predictions) else None
    if queries is not None:
        if np.shape(queries)[:1] == (0,):
            raise InputError(
                "The queries are empty; pass at least one query, or use sp.Predictions() for "
                "each record's own prediction."
            )
        if not is_streamed(X):
            queries = _queries_of(model, X, queries, person)
    added = cast(Gaussian | None, noise)
    if isinstance(release, Predictions) and added is not None:
        added = AnswerNoise(added.sigma)  # of which queries is said below
        found = informed(Gaussian(1.0))
        if queries is not None:
            added = _noise_of_answers(found, queries, added)
            found = informed(added)
            found.notes = (*found.notes, ANSWERS)
    else:
        if noise is not None:
            check_noise_kind(noise)
        found = informed(Gaussian(1.0) if noise is None else noise)
    if known.knows_all:
        return found
    if queries is not None and is_streamed(X):
        check_columns(model, queries, "the queries", found.source.names)
    fits = found.release.fits_in_chunks() if isinstance(found.release, GLMRelease) else None
    return OutsiderLeakage(SeenRelease(found, added, known, release, queries, informed, fits))


def _queries_of(model: Any, X: Any, queries: Any, person: Any) -> Any:
    """Return the queries as features of the final model, after checking their columns."""
    if isinstance(person, str):
        X, _ = identities_in(X, person, model)
    if not takes_frame(model, X):
        check_columns(model, queries, "the queries", column_names(X))
    check_columns(model, X)
    steps = unwrap(model, X).steps
    return dense(Chain(steps).transform(queries)) if steps else queries


def _noise_of_answers(leak: Leakage[Any], queries: Any, noise: AnswerNoise) -> AnswerNoise:
    """Return the noise added to the answers to these queries."""
    release = leak.release.inner if isinstance(leak.release, RawRelease) else leak.release
    if not isinstance(release, GLMRelease) or release.problem is not None:
        raise InputError(
            "Noise on predictions is supported only for linear models on tables in memory; "
            "measure the parameters instead, which leak at least as much."
        )
    template = release.template
    X = as_numpy(template.X if template.fitted_on is None else template.fitted_on)
    A = np.asarray(as_numpy(read_table(queries).values), dtype=float)
    check_queries(A, X.shape[1])
    if release.fit.intercept is not None:
        A, X = (np.column_stack([table, np.ones(len(table))]) for table in (A, X))
    sizes = np.sqrt(np.mean(X**2, axis=0))
    sizes = np.where(sizes > 0, sizes, 1.0)
    if isinstance(release.fit.family, Categorical):  # a margin for each class
        every = np.eye(release.fit.family.outputs)
        A, sizes = np.kron(A, every), np.repeat(sizes, len(every))
    return replace(noise, queries=A, sizes=sizes)


@dataclass(frozen=True, eq=False)
class _Question:
    """What is asked about a linear model: the arguments of :func:`leakage` except the noise."""

    model: Any
    X: Any
    y: Any
    sample_weight: Any
    attributes: Mapping[str, Sequence[str | int]] | None
    on_mismatch: str
    dtype: str | None
    preprocessing: str
    categorical: Sequence[str]
    person: Any

    def answer(self, noise: Noise) -> Leakage[Any]:
        """Return the leakage to an attacker who knows all other records."""
        X, person, beside = self.X, self.person, None
        if self.preprocessing not in PREPROCESSING:
            raise InputError(
                f"preprocessing must be {' or '.join(map(repr, PREPROCESSING))}, not "
                f"{self.preprocessing!r}."
            )
        if is_streamed(X):
            beside = person if isinstance(person, str) else None
            source = streamed_source(X, self.y, self.sample_weight, self.dtype, beside)
            found = self._of_columns(Unwrapped(self.model), source, noise)
        else:
            if isinstance(person, str):
                X, person = identities_in(X, self.person, self.model)
                beside = self.person if self.person in (column_names(X) or ()) else None
            found = self._of_table(X, beside, noise)
            names = ("sample_weight", "attributes", "preprocessing", "categorical", "person")
            options = {name: getattr(self, name) for name in names}
            found.inputs = LeakageInputs(self.model, self.X, self.y, options)
        found.attributes = Attributes(found.source, self.attributes)
        found.person = None if person is None else Identities(person, found.source)
        return found

    def _of_table(self, X: Any, beside: str | None, noise: Noise) -> Leakage[Any]:
        """Return the leakage about a table in memory; ``beside`` names the column of people."""
        try:
            opened, followed = unwrap(self.model, X), None
            if opened.steps:
                chain = Chain(opened.steps)
                followed = FollowedColumns(X, chain, self.categorical, beside=beside)
        except NoDerivativeError as problem:
            if not can_rerun(self.model):
                raise
            return self._by_reruns(RawTable(X, self.categorical, beside=beside), noise, problem.why)
        if followed is not None:
            return self._through_steps(opened, followed, noise)
        table = read_table(X, dtype=self.dtype)
        if self.dtype == "float32":
            # Kept in float64 where rounding would change the numbers, so that columns can be
            # shifted near zero before rounding
            exact, xp = read_table(X, check=False), array_namespace(table.values)
            same = xp.astype(table.values, xp.float64) == exact.values
            table = table if bool(xp.all(same)) else exact
        source = MemorySource(table, self.y, self.sample_weight)
        found = self._of_columns(opened, source, noise)
        if opened.held and can_rerun(self.model):
            raw = RawTable(X, quantities=source.names)
            found.procedure = self._procedure(raw, self.y, noise, opened.held)
        return found

    def _of_columns(self, opened: Unwrapped, source: RowSource, noise: Noise) -> Leakage[Any]:
        """Return the leakage about the model's own columns."""
        single = self.dtype == "float32"
        release = release_of(opened.model, source, noise, self.on_mismatch, single=single)
        every = Attributes(source)
        return Leakage(release, source, (noise,), every, opened.notes, held=opened.held)

    def _by_reruns(self, raw: RawTable, noise: Noise, why: str) -> Leakage[Any]:
        """Return the leakage of a non-differentiable procedure, measured by refits."""
        table = raw.table()
        source = MemorySource(table, self.y, self.sample_weight)
        source.attributes = raw.attributes(table.names)
        held = learnt_words(self.model)
        procedure = self._procedure(raw, self.y, noise, held)
        size, values = len(procedure.here.parameters), np.asarray(table.values)
        release = RerunRelease(UnknownJacobian(values, procedure.target, size, why))
        every = Attributes(source)
        return Leakage(release, source, (noise,), every, held=held, procedure=procedure)

    def _through_steps(
        self, opened: Unwrapped, followed: FollowedColumns, noise: Noise
    ) -> Leakage[Any]:
        """Return the leakage about the raw columns, through the preprocessing before the model."""
        y, refitted = self.y, self.preprocessing == "refitted"
        if y is None and getattr(opened.model, "model", None) is not None:
            y = opened.model.model.endog  # the formula took it from the data frame
        inner = MemorySource(read_table(followed.features), y, self.sample_weight)
        release = release_of(opened.model, inner, noise, self.on_mismatch)
        raw = followed.table()
        jacobian = RawJacobian(release.template, followed, raw.values, refitted)
        source = MemorySource(raw, y, self.sample_weight)
        source.attributes = followed.attributes(raw.names)
        learnt = joined(opened.held, followed.steps.held)
        held, notes = learnt, opened.notes
        if refitted and followed.steps.held:
            held, notes = joined(opened.held, followed.steps.choices), (*notes, REFITTED)
        procedure = None
        if learnt and can_rerun(self.model):
            procedure = self._procedure(followed, y, noise, learnt)
        whole = RawRelease(release, jacobian, refitted, (noise,))
        every = Attributes(source)
        return Leakage(whole, source, (noise,), every, notes, held=held, procedure=procedure)

    def _procedure(
        self, raw: RawTable, y: Any, noise: Noise, learnt: tuple[str, ...]
    ) -> WholeProcedure:
        """Return the training procedure, rerun for the questions that need refits."""
        polish = partial(_polished, noise=noise)
        return WholeProcedure(self.model, raw, y, self.sample_weight, noise, learnt, polish)


def identities_in(X: Any, name: str, model: Any) -> tuple[Any, Any]:
    """Return the table in the form the model uses, and the column that identifies people.

    The table keeps this column for a formula, or for a pipeline fitted with it. For other models,
    the column is removed.
    """
    frame, named = read_frame(X)
    if not named:
        raise InputError(
            f"person={name!r} names a column, but X is an array without column names; pass one "
            "identity per record."
        )
    check_column(name, frame.columns)
    column = frame[name].to_numpy()
    inside = best_of(model) if is_search(model) else model
    fitted = getattr(inside, "feature_names_in_", ())
    if is_pipeline(inside):
        others = len(frame.columns) - 1
        unnamed = not len(fitted) and getattr(inside, "n_features_in_", None) != others
        if name in fitted or unnamed:
            return X, column
    elif takes_frame(model, X):
        return X, column
    elif name in fitted:
        raise InputError(is_a_feature(name))
    return frame.drop(name).to_native(), column


def _polished(
    model: Any, features: np.ndarray, y: np.ndarray, weight: np.ndarray | None, noise: Noise
) -> FittedGLM:
    """Return a copy of a fitted model, moved to the minimiser of its objective."""
    source = MemorySource(read_table(features), y, weight)
    return release_of(model, source, noise, "warn").fit


@dataclass(frozen=True)
class GLMRelease(MeasuredRelease):
    """The release of a fitted GLM's parameters with added noise."""

    # The model, with the target and weights of a table in memory, or without any rows.
    fit: FittedGLM
    # How the labels of a chunk are read; ``None`` for a table in memory: ``fit`` has its labels
    problem: PenalisedLoss | None
    # The Jacobian about all rows of a table in memory, or about one made-up row: it keeps what all
    # rows have in common, for the Jacobians of the chunks
    template: TermsJacobian
    # On the parameters; several where these were released several times
    noise: tuple[Noise, ...]
    optimum: Optimum
    single: bool = False
    anew: tuple[str, ...] = ()  # class weights, where few fits serve all records
    kept: tuple[str, ...] = ()  # nλ, where it is stated per record

    @property
    def model(self) -> FittedGLM:
        """The fitted model."""
        return self.fit

    def jacobian(self, chunk: Chunk) -> TermsJacobian:
        """Return the Jacobian for the rows of a chunk, exact for each row."""
        if self.problem is None:
            return self.template
        fit, shared = about(self.fit, self.problem, chunk), self.template.terms
        return jacobian_at(self.optimum, fit, chunk.X, shared.map, kept=shared.kept)

    def merged(self, other: MeasuredRelease) -> GLMRelease | None:
        """Return both releases as one, if they have the same model and differ only in the noise."""
        if not isinstance(other, GLMRelease) or other.fit.family != self.fit.family:
            return None
        template = merged(self.template, other.template)
        if template is None:
            return None
        return replace(self, template=template, noise=self.noise + other.noise)

    def refits(self) -> Refits:
        """Return refits of the model with one record changed, in NumPy."""
        if self.problem is not None or len(self.noise) != 1:
            return super().refits()
        fitted_on = self.template.fitted_on
        table = self.template.X if fitted_on is None else fitted_on
        return RecordRefits(self.optimum, table, jacobian_of_replaced)

    def finite_changes(self) -> FiniteChanges:
        """Return how much the parameters change when a record is left out or replaced."""
        if self.problem is not None:
            raise InputError(
                "Refitting the model without a record requires all records in memory, but the "
                "data are read in chunks; load the rows of the fit into memory first."
            )
        if self.fit.tilt is not None:
            raise InputError(
                "The columns that an L1 penalty would select without a record are unknown; pass "
                "refit= to membership(), or fit with an L2 penalty only."
            )
        return self._changes

    @cached_property
    def _changes(self) -> FiniteChanges:
        fitted_on = self.template.fitted_on
        X = self.template.X if fitted_on is None else fitted_on
        balance = self.fit.balance
        if balance is not None and self.anew:
            return RebalancedRecords(self.optimum, X, self.noise, balance)
        return ChangedRecords(LocalModel(self.optimum, X, self.noise))

    def fits_in_chunks(self) -> Callable[..., ChangedRecords] | None:
        """Return a function that computes a chunk's changes, or ``None`` for a table in memory."""
        if self.problem is None:
            return None
        return partial(_changes_of_chunk, release=self, problem=self.problem)

    def changes_in_chunks(self, source: RowSource) -> Callable[[Chunk], ChangedRecords]:
        """Return a function that bounds the changes in a chunk, after one pass over all rows."""
        ask = self.fits_in_chunks()
        if ask is None or len(self.noise) != 1:
            raise InputError(
                "Combined risks of several releases are not supported for data read in chunks; "
                "measure each release separately."
            )
        if self.fit.family.self_concordance is None:
            raise InputError(
                "Leaving a record out of this model requires refits, which need all records in "
                "memory; load the rows into memory first."
            )
        shifts = source.total(partial(_shifts_of_chunk, ask=ask), "norms")
        return partial(ask, shifts=shifts)


def release_of(
    model: Any, source: RowSource, noise: Noise, on_mismatch: str, *, single: bool = False
) -> GLMRelease:
    """Describe a fitted model, and check in one pass that it minimises its objective.

    ``on_mismatch`` is the action to take for a model that does not: ``"raise"`` or ``"warn"``.
    ``single`` allows single precision in the passes over the rows if it is precise enough; columns
    far from zero are shifted before rounding.
    """
    fit, problem = describe_on(model, source)
    X = None if problem is not None else source.whole("all records").values
    objective = Objective.of(fit, X) if problem is None else Objective.over(source, problem)
    found = optimum(fit, objective, noise, on_mismatch)
    whitener = whitener_of(found, noise)
    if X is not None:
        xp = array_namespace(X)
        loss = found.condition * whitener.amplified
        largest = float(xp.max(xp.abs(whitener.matrix)))
        # Fourth powers of extreme numbers leave the range of single precision
        lossy = loss > _NARROW or not _SMALLEST < largest < 1 / _SMALLEST
        kind = xp.float32 if single and not lossy else xp.float64
        if kind == xp.float32:
            rounding = 4 * float(xp.finfo(kind).eps) * loss
            whitener = replace(whitener, accuracy=whitener.accuracy + rounding)
        template = jacobian_at(found, found.fit, X, whitener, kind)
        if kind != X.dtype:
            template.fitted_on = X
    else:
        row = np.zeros((1, len(source.names)))
        target = np.zeros((1, *found.fit.coef.shape[1:]))
        one = replace(found.fit, target=target, sample_weight=None)
        template = jacobian_at(found, one, row, whitener)
    stated = kind_of(model).penalty is not None and found.fit.ridge > 0
    kept = (PENALTY,) if stated else ()
    balance = found.fit.balance
    anew = (CLASS_WEIGHTS,) if balance is not None and balance.keys <= FEW_KEYS else ()
    return GLMRelease(found.fit, problem, template, (noise,), found, single, anew, kept)


def describe_on(model: Any, source: RowSource) -> tuple[FittedGLM, PenalisedLoss | None]:
    """Return a model's description and, for data read in chunks, its objective.

    For a table in memory, the description includes the labels and weights. Otherwise it has no
    rows, and the objective reads the labels of each chunk.
    """
    if isinstance(source, MemorySource):  # its labels are coded once, not chunk by chunk
        return describe(model, source.table, source.y, source.sample_weight), None
    if getattr(model, "class_weight", None) is not None:
        raise InputError(
            f"A {type(model).__name__} with class_weight is not supported for data read in "
            "chunks; fit it with sample weights from a column of the data instead."
        )
    if library_of(type(model)) == "statsmodels":
        raise InputError(
            "statsmodels results keep their whole table in memory; pass that table instead of "
            "data read in chunks."
        )
    if source.weighted != getattr(model, "weighted_", source.weighted):
        raise InputError(
            "This model was fitted "
            + ("without sample weights" if source.weighted else "with sample weights")
            + "; open the data with the same weight= as for the fit."
        )
    classes = getattr(model, "classes_", None)
    labels = np.ones(1) if classes is None else np.asarray(classes)
    zero = np.broadcast_to(np.zeros((1, 1)), (len(labels), len(source.names)))
    table = Table(zero, source.names, None, "pyarrow")
    weights = np.full(len(labels), 2.0) if source.weighted else None
    fit = describe(model, table, labels, weights)
    if fit.label_unit is not None or fit.tilt is not None:
        raise InputError(
            f"A {type(model).__name__} is not supported for data read in chunks; load the rows it "
            "was fitted on into memory."
        )
    penalty = kind_of(model).penalty
    if penalty is not None:  # stated per record or weight, but the description has made-up rows
        weight = source.total(_weight, "weights") if source.weighted else float(len(source))
        fit = replace(fit, ridge=penalty(model, len(source), weight))
    fit = replace(fit, sample_weight=None, target=fit.target[:0, ...])
    known = None if classes is None else np.asarray(classes)
    intercept = fit.intercept is not None
    return fit, PenalisedLoss(fit.family, known, fit.ridge, intercept, len(source.names))


def _weight(chunk: Chunk) -> float:
    return float(np.sum(np.asarray(chunk.weight)))


def jacobian_of_replaced(
    fit: FittedGLM, X: np.ndarray, row: int, features: np.ndarray, label: Any, noise: Noise
) -> TermsJacobian:
    """Return the Jacobian with respect to a record that replaces a row of ``X``.

    The model must minimise its objective on the table with the replacement. The computation uses
    ordinary floating-point arithmetic. It copies the table only if the columns are far from zero;
    otherwise, the replaced record gets weight zero, and the curvature of the new record is added.
    """
    weight = np.ones(len(X)) if fit.sample_weight is None else np.array(fit.sample_weight)
    x, here = features[None, :], slice(row, row + 1)
    comes = replace(
        fit,
        target=np.asarray(label, dtype=float)[None, ...],
        sample_weight=weight[here].copy(),
        label_unit=None if fit.label_unit is None else fit.label_unit[here],
    )
    weight[row] = 0.0
    rest = replace(fit, sample_weight=weight)
    sums = optimum_sums(rest, X)
    sums = replace(sums, hessian=sums.hessian + optimum_sums(comes, x).hessian)
    if sums.extent is not None and far_centre(sums.extent.least, sums.extent.most) is not None:
        X, target = X.copy(), np.array(fit.target)
        X[row], target[row] = features, label
        return PlainJacobians(replace(fit, target=target), X, noise)(here)
    found = plain_optimum(rest, X, sums)
    return jacobian_at(found, comes, x, whitener_of(found, noise))


def largest_leakage(
    model: Any,
    source: RowSource,
    unknowns: Unknowns,
    label_step: float,
    allowed: Array,
    blocks: Sequence[np.ndarray] | np.ndarray | None = None,
) -> float:
    """Return the largest ``η/allowed`` over all records at σ = 1, for a newly fitted model.

    If blocks are given, return the largest ratio of any block of records as a whole. The trace of
    the information bounds its largest eigenvalue, so only the largest traces need eigenvalues. The
    function uses ordinary floating-point arithmetic, since it is called for hundreds of tables.
    """
    about = plain_jacobians(model, source)
    traces = np.asarray(about(slice(None)).with_label_step(label_step).row_traces(unknowns))
    if blocks is not None and len(blocks) < len(traces):
        traces = np.asarray([traces[rows].sum() for rows in blocks])
    else:
        blocks = None
    bounds = np.sqrt(np.maximum(traces, 0.0)) / allowed
    return about.largest_ratio(unknowns, label_step, np.asarray(allowed), bounds, blocks)


def plain_jacobians(model: Any, source: RowSource) -> PlainJacobians:
    """Return the Jacobians of a newly fitted model at σ = 1, in ordinary arithmetic."""
    fit, _ = describe_on(model, source)
    table = source.whole("the leakage in ordinary arithmetic")
    return PlainJacobians(fit, table.values, Gaussian(1.0))


def _changes_of_chunk(
    chunk: Chunk,
    release: GLMRelease,
    problem: PenalisedLoss,
    shifts: LargestShifts | None = None,
) -> ChangedRecords:
    """Return certified bounds on a chunk's parameter changes, or refits if all rows are in memory.

    ``shifts`` are the largest margin shifts over all records; without them, no bound is certified.
    """
    fit = about(release.optimum.near, problem, chunk)
    if chunk.gathered:
        return ChangedRecords(LocalModel(release.optimum, chunk.X, release.noise, fit))
    shared = LargestShifts() if shifts is None else shifts
    model = LocalModel(release.optimum, chunk.X, release.noise, fit, shared)
    changes = ChangedRecords(model)
    changes.work = math.inf  # a refit takes all records
    return changes


def _shifts_of_chunk(chunk: Chunk, ask: Callable[..., ChangedRecords]) -> LargestShifts:
    return ask(chunk).model.shifts_here()
