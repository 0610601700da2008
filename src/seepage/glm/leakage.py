"""Compute the leakage of a release from a fitted model, its data and the noise (``sp.leakage``).

One pass over the data computes the Hessian and checks that the model minimises its objective on
these data. The leakage of a row then depends only on the model, the Hessian and the row itself.
Sums over the rows are computed in float64, whatever the data type of the table; the Jacobian has
the table's data type.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, cast, overload

import numpy as np
from array_api_compat import array_namespace

from seepage.core.information import block_norms
from seepage.core.jacobian import FiniteChanges, MeasuredRelease, Refits
from seepage.core.leakage import Leakage, LeakageInputs
from seepage.core.noise import Attacker, Gaussian, Noise, check_noise_kind
from seepage.core.people import Identities, is_a_feature
from seepage.core.record_stream import RecordStream
from seepage.core.result import CLASS_WEIGHTS, PENALTY, joined
from seepage.core.unknowns import Attributes, Unknowns
from seepage.errors import InputError
from seepage.glm.adapters.kinds import NoDerivativeError
from seepage.glm.adapters.registry import (
    Unwrapped,
    best_of,
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
from seepage.glm.fitting.objective import FittedGLM, PenalisedLoss, wide
from seepage.glm.inputs import as_source, check_columns, is_streamed
from seepage.glm.jacobian.operator import GLMJacobian, PairedJacobian, TermsJacobian, merged
from seepage.glm.jacobian.optimum import (
    FittedRecords,
    Optimum,
    Whitener,
    about,
    optimum,
    optimum_sums,
    plain_optimum,
    whitener_of,
)
from seepage.glm.jacobian.single_output import SingleOutputJacobian
from seepage.glm.jacobian.terms import JacobianTerms
from seepage.glm.jacobian.twice_precise import precise_curvature
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
from seepage.support.double_double import Double
from seepage.support.library_classes import is_pipeline, is_search, library_of
from seepage.tables.source import (
    Array,
    Chunk,
    MemorySource,
    RowSource,
    Table,
    as_numpy,
    check_column,
    column_names,
    read_table,
)

_NARROW = 100.0  # the loss of digits up to which single precision is precise enough
_SMALLEST = 1e-6  # its fourth power is 1e-24: far within the range of single precision
_FIRST = 32  # records whose largest eigenvalues are taken at first


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
    preprocessing: str = "frozen",
    categorical: Sequence[str] = (),
    person: Any = None,
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
    preprocessing: str = "frozen",
    categorical: Sequence[str] = (),
    person: Any = None,
) -> Leakage: ...


@overload
def leakage(
    model: Any,
    X: Any,
    y: Any = None,
    *,
    noise: Noise | None = None,
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


def leakage(
    model: Any,
    X: Any,
    y: Any = None,
    *,
    noise: Noise | None = None,
    sample_weight: Any = None,
    attributes: Mapping[str, Sequence[str | int]] | None = None,
    on_mismatch: str = "raise",
    dtype: str | None = None,
    preprocessing: str = "frozen",
    categorical: Sequence[str] = (),
    person: Any = None,
    attacker: Attacker | None = None,
    release: Predictions | Parameters | None = None,
) -> Leakage[Any] | OutsiderLeakage:
    """Measure how much a linear model released with noise leaks about its training data.

    ``sp.leakage`` calls this function for linear models and pipelines; its options are documented
    there.
    """
    informed = partial(
        _to_the_informed,
        model,
        X,
        y,
        sample_weight=sample_weight,
        attributes=attributes,
        on_mismatch=on_mismatch,
        dtype=dtype,
        preprocessing=preprocessing,
        categorical=categorical,
        person=person,
    )
    if attacker is None and release is None and noise is not None:
        check_noise_kind(noise)
        return informed(noise)
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


def _to_the_informed(
    model: Any,
    X: Any,
    y: Any,
    noise: Noise,
    *,
    sample_weight: Any,
    attributes: Mapping[str, Sequence[str | int]] | None,
    on_mismatch: str,
    dtype: str | None,
    preprocessing: str,
    categorical: Sequence[str],
    person: Any,
) -> Leakage[Any]:
    """Return the leakage to an attacker who knows all other records."""
    inputs = None
    if not is_streamed(X):
        options = {
            "sample_weight": sample_weight,
            "attributes": attributes,
            "preprocessing": preprocessing,
            "categorical": categorical,
            "person": person,
        }
        inputs = LeakageInputs(model, X, y, options)
    if preprocessing not in PREPROCESSING:
        raise InputError(
            f"preprocessing must be {' or '.join(map(repr, PREPROCESSING))}, not {preprocessing!r}."
        )
    beside: str | None = None
    if not is_streamed(X):
        if isinstance(person, str):
            name = person
            X, person = identities_in(X, name, model)
            beside = name if name in (column_names(X) or ()) else None
        check_columns(model, X)
    try:
        opened = Unwrapped(model) if is_streamed(X) else unwrap(model, X)
        followed = None
        if opened.steps:
            followed = FollowedColumns(X, Chain(opened.steps), categorical, beside=beside)
    except NoDerivativeError as problem:
        if not can_rerun(model):
            raise
        raw = RawTable(X, categorical, beside=beside)
        found = _by_reruns(model, raw, y, noise, sample_weight, problem.why)
        found.attributes = Attributes(found.source, attributes)
        found.person = None if person is None else Identities(person, found.source)
        found.inputs = inputs
        return found
    if followed is not None:
        refitted = preprocessing == "refitted"
        found = _through_steps(
            model, opened, followed, y, noise, sample_weight, on_mismatch, refitted
        )
        found.attributes = Attributes(found.source, attributes)
    else:
        source = as_source(X, y, sample_weight, dtype, person if isinstance(person, str) else None)
        release = release_of(opened.model, source, noise, on_mismatch, single=dtype == "float32")
        every = Attributes(source, attributes)
        found = Leakage(release, source, (noise,), every, opened.notes, held=opened.held)
        if opened.held and can_rerun(model):
            raw = RawTable(X, quantities=source.names)
            found.procedure = _procedure(model, raw, y, sample_weight, noise, opened.held)
    if person is not None:
        found.person = Identities(person, found.source)
    found.inputs = inputs
    return found


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


def _by_reruns(
    model: Any, raw: RawTable, y: Any, noise: Noise, sample_weight: Any, why: str
) -> Leakage[Any]:
    """Return the leakage of a non-differentiable procedure, measured by refits."""
    table = raw.table()
    source = MemorySource(table, y, sample_weight)
    source.attributes = raw.attributes(table.names)
    held = learnt_words(model)
    procedure = _procedure(model, raw, y, sample_weight, noise, held)
    size = len(procedure.here.parameters)
    release = RerunRelease(UnknownJacobian(np.asarray(table.values), procedure.target, size, why))
    every = Attributes(source)
    return Leakage(release, source, (noise,), every, held=held, procedure=procedure)


def _procedure(
    model: Any, raw: RawTable, y: Any, weight: Any, noise: Noise, learnt: tuple[str, ...]
) -> WholeProcedure:
    polish = partial(_polished, noise=noise)
    return WholeProcedure(model, raw, y, weight, noise, learnt, polish)


def _polished(
    model: Any, features: np.ndarray, y: np.ndarray, weight: np.ndarray | None, noise: Noise
) -> FittedGLM:
    """Return a copy of a fitted model, moved to the minimiser of its objective."""
    source = MemorySource(read_table(features), y, weight)
    return release_of(model, source, noise, "warn").fit


def _through_steps(
    model: Any,
    opened: Unwrapped,
    followed: FollowedColumns,
    y: Any,
    noise: Noise,
    sample_weight: Any,
    on_mismatch: str,
    refitted: bool,
) -> Leakage[Any]:
    """Return the leakage about the raw columns, through the preprocessing before the model."""
    if y is None and getattr(opened.model, "model", None) is not None:
        y = opened.model.model.endog  # the formula took it from the data frame
    inner = MemorySource(read_table(followed.features), y, sample_weight)
    release = release_of(opened.model, inner, noise, on_mismatch)
    raw = followed.table()
    jacobian = RawJacobian(release.template, followed, raw.values, refitted)
    source = MemorySource(raw, y, sample_weight)
    source.attributes = followed.attributes(raw.names)
    learnt = joined(opened.held, followed.steps.held)
    held, notes = learnt, opened.notes
    if refitted and followed.steps.held:
        held, notes = joined(opened.held, followed.steps.choices), (*notes, REFITTED)
    procedure = None
    if learnt and can_rerun(model):
        procedure = _procedure(model, followed, y, sample_weight, noise, learnt)
    whole = RawRelease(release, jacobian, refitted, (noise,))
    every = Attributes(source)
    return Leakage(whole, source, (noise,), every, notes, held=held, procedure=procedure)


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
        fit, near = about(self.fit, self.problem, chunk), self.optimum.shifted(chunk.X)
        whitener, kept = self.template.terms.map, self.template.terms.kept
        if isinstance(fit.family, Categorical):
            return _categorical(fit, chunk.X, self.optimum.margins(near), whitener, near)
        derivatives = self.optimum.derivatives(fit, near, every=False)
        return _single_output(fit, chunk.X, derivatives, whitener, near, kept)

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
    found = optimum(fit, FittedRecords(source, problem), noise, on_mismatch)
    whitener = whitener_of(found, noise)
    if problem is None:
        X = source.whole("all records").values
        xp = array_namespace(X)
        loss = found.condition * whitener.amplified
        lossy = loss > _NARROW or _extreme(whitener.matrix)
        kind = xp.float32 if single and not lossy else xp.float64
        template = _jacobian_at(found, found.fit, X, found.shifted(X), whitener, kind)
        if kind != X.dtype:
            template.fitted_on = X
    else:
        row = np.zeros((1, len(source.names)))
        target = np.zeros((1, *found.fit.coef.shape[1:]))
        one = replace(found.fit, target=target, sample_weight=None)
        template = _jacobian_at(found, one, row, row, whitener)
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
        fit = describe(model, source.table, source.y, source.sample_weight)
        return _in_float64(fit), None
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
    if sums.far_from_zero is not None:
        X, target = X.copy(), np.array(fit.target)
        X[row], target[row] = features, label
        return _plain_jacobians(replace(fit, target=target), X, noise)(here)
    found = plain_optimum(rest, FittedRecords.in_memory(X), sums)
    return _jacobian_at(found, comes, x, found.shifted(x), whitener_of(found, noise))


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
    the information bounds its largest eigenvalue. So records are processed in decreasing order of
    trace until no remaining trace exceeds the largest eigenvalue found. The function uses ordinary
    floating-point arithmetic, since it is called for hundreds of tables.
    """
    fit, _ = describe_on(model, source)
    table = source.whole("the largest leakage in ordinary arithmetic")
    about = _plain_jacobians(fit, table.values, Gaussian(1.0))
    traces = np.asarray(about(slice(None)).with_label_step(label_step).row_traces(unknowns))
    several = blocks is not None and len(blocks) < len(traces)
    if blocks is not None and several:
        traces = np.asarray([traces[rows].sum() for rows in blocks])
    traces = traces / allowed**2
    order = np.argsort(-traces, kind="stable")
    largest, begin, count = 0.0, 0, _FIRST // 8 if several else _FIRST  # a block takes longer
    while begin < len(order) and traces[order[begin]] > largest:
        some = order[begin : begin + count]
        if blocks is not None and several:
            together = [blocks[k] for k in some]
            here = about(np.concatenate(together)).with_label_step(label_step)
            ends = np.cumsum([len(rows) for rows in together])[:-1]
            norms = np.asarray(block_norms(here, unknowns, np.split(np.arange(here.rows), ends)))
        else:
            norms = np.asarray(about(some).with_label_step(label_step).row_norms(unknowns))
        largest = max(largest, float(np.max(norms / allowed[some] ** 2)))
        begin, count = begin + count, 4 * count
    return math.sqrt(largest)


def leakage_of_others(
    model: Any,
    source: RowSource,
    unknowns: Unknowns,
    label_step: float,
    rows: np.ndarray,
    features: np.ndarray,
    blocks: Sequence[np.ndarray],
) -> np.ndarray:
    """Return η at σ = 1 for each block of records whose features are replaced.

    ``features`` replace those of ``rows``, which keep their labels. The model and its curvature
    stay the same, so this function can rank candidate replacements before any refit.
    """
    fit, _ = describe_on(model, source)
    table = source.whole("the leakage of other records")
    about = _plain_jacobians(fit, table.values, Gaussian(1.0))
    norms = block_norms(about(rows, features).with_label_step(label_step), unknowns, blocks)
    return np.asarray(np.sqrt(np.asarray(norms)))


def _plain_jacobians(fit: FittedGLM, X: Array, noise: Noise) -> Callable[..., TermsJacobian]:
    """Return a function that computes the Jacobian of some rows in ordinary arithmetic.

    The function also accepts replaced features for these rows.
    """
    found = plain_optimum(fit, FittedRecords.in_memory(X))
    whitener = whitener_of(found, noise)

    def about_rows(rows: slice | Array, features: Array | None = None) -> TermsJacobian:
        weight, unit = (None if v is None else v[rows] for v in (fit.sample_weight, fit.label_unit))
        some = replace(
            found.fit, sample_weight=weight, label_unit=unit, target=fit.target[rows, ...]
        )
        x = X[rows, :] if features is None else features
        return _jacobian_at(found, some, x, found.shifted(x), whitener)

    return about_rows


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


def _jacobian_at(
    found: Optimum, fit: FittedGLM, X: Array, near: Array, whitener: Whitener, kind: Any = None
) -> TermsJacobian:
    """Return the Jacobian for rows at an optimum; ``fit`` has their labels and weights.

    ``near`` contains the rows, shifted as for the optimum. Their derivatives are computed before
    rounding to ``kind``.
    """
    several = isinstance(fit.family, Categorical)
    margins: Any = found.margins(near) if several else None
    slopes: Any = None if several else found.derivatives(fit, near, fit is found.fit)
    if kind is not None:
        xp = array_namespace(X)
        X, near = xp.astype(X, kind, copy=False), xp.astype(near, kind, copy=False)
    lost = 0.0
    if not whitener.precise:  # what ordinary products ``A x̃`` lose
        rounding = float(array_namespace(X).finfo(X.dtype).eps)
        lost = 4 * rounding * found.condition * whitener.amplified
    narrow = replace(
        whitener, matrix=_narrow(whitener.matrix, X), accuracy=whitener.accuracy + lost
    )
    if several:
        return _categorical(fit, X, margins, narrow, near)
    return _single_output(fit, X, slopes, narrow, near)


def _single_output(
    fit: FittedGLM,
    X: Array,
    derivatives: tuple[Array, ...],
    whitener: Whitener,
    near: Array,
    kept: dict[str, Any] | None = None,
) -> SingleOutputJacobian:
    r, a, b, error = (_narrow(v, X) for v in derivatives)
    terms = JacobianTerms(
        X,
        _narrow(fit.coef, X)[:, None],
        intercept=fit.intercept is not None,
        derivatives=lambda rows: (r[rows, None], a[rows, None, None], b[rows, None, None]),
        whitener=whitener,
        target=fit.target,
        label_size=1,
        near=near,
        slope_error=error,
        kept=kept,
    )
    return SingleOutputJacobian(terms)


def _extreme(A: Array) -> bool:
    """Return whether fourth powers of these numbers may leave the range of single precision."""
    xp = array_namespace(A)
    return not _SMALLEST < float(xp.max(xp.abs(A))) < 1 / _SMALLEST


def _categorical(
    fit: FittedGLM, X: Array, margins: Array | Double, whitener: Whitener, near: Array
) -> TermsJacobian:
    family, y, weight = fit.family, fit.target, fit.sample_weight
    exact = margins if isinstance(margins, Double) else None
    plain = margins.high if isinstance(margins, Double) else margins

    def derivatives(rows: slice | Array) -> tuple[Array, Array, Array]:
        M, Y = plain[rows, :], y[rows, :]
        r, a, b = family.slope(M, Y), family.curvature(M, Y), family.label_slope(M, Y)
        if exact is not None:
            a = precise_curvature(family, exact[rows, :], Y)
            r = r + (a @ exact.low[rows, :, None])[:, :, 0]
        if weight is not None:
            w = weight[rows]
            r, a, b = w[:, None] * r, w[:, None, None] * a, w[:, None, None] * b
        return _narrow(r, X), _narrow(a, X), _narrow(b, X)

    terms = JacobianTerms(
        X,
        _narrow(fit.coef, X),
        intercept=fit.intercept is not None,
        derivatives=derivatives,
        whitener=whitener,
        target=y,
        label_size=plain.shape[1] - 1,
        near=near,
    )
    return PairedJacobian(terms) if whitener.precise else GLMJacobian(terms)


def _in_float64(fit: FittedGLM) -> FittedGLM:
    return replace(
        fit,
        coef=wide(fit.coef),
        intercept=None if fit.intercept is None else wide(fit.intercept),
        sample_weight=None if fit.sample_weight is None else wide(fit.sample_weight),
        target=wide(fit.target),
    )


def _narrow(values: Array, like: Array) -> Array:
    return array_namespace(values).astype(values, like.dtype, copy=False)
