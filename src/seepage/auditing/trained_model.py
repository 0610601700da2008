"""The audited object: a fitted model with its settings, records, and the meaning of its columns."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa

from seepage.auditing.findings import ONE_PERSON, ONE_ROW
from seepage.core.jacobian import (
    Attributes,
    MeasuredRelease,
    ReleaseJacobian,
    Unknowns,
)
from seepage.core.leakage import Leakage
from seepage.core.noise import Attacker, Gaussian
from seepage.core.people import Identities
from seepage.core.questions import members
from seepage.core.result import LEVELS, SCALING
from seepage.errors import InputError
from seepage.glm.estimators import (
    GeneralizedLinearRegression,
    LinearRegression,
    LogisticRegression,
    PoissonRegression,
    SoftmaxRegression,
)
from seepage.glm.fitting.objective import FittedGLM
from seepage.glm.leakage import leakage, release_of
from seepage.glm.losses import Categorical, Family, squared_hinge
from seepage.glm.outsider.leakage import OutsiderLeakage
from seepage.glm.outsider.predictions import AnswerNoise, Predictions
from seepage.glm.outsider.seen import SeenRelease
from seepage.glm.preprocessing.jacobian import RawJacobian, RawRelease
from seepage.tables.source import MemorySource, Table, distinct

if TYPE_CHECKING:
    from seepage.glm.leakage import GLMRelease
    from seepage.glm.preprocessing.raw_columns import FollowedColumns
    from seepage.tables.columns import TableEncoding
    from seepage.tables.source import Chunk, RowSource

MODELS = {
    "linear": LinearRegression,
    "logistic": LogisticRegression,
    "poisson": PoissonRegression,
    "softmax": SoftmaxRegression,
}
FEWEST_ROWS = 10  # of an audit or a release; below, no share or quantile means anything
MOST_TAKEN = 10**9  # bytes of a table as numbers, above which it is not taken into memory
# The row number of a record, and the person it is about; no column that is read has such a name
ROW, PERSON = "row\x00", "person\x00"

_BY_FAMILY = {"gaussian": "linear", "bernoulli": "logistic", "poisson": "poisson"}
# What each kind of model is made for, and what else it can predict
TARGET_OF = {
    "linear": "numeric",
    "poisson": "count",
    "logistic": "binary",
    "softmax": "multiclass",
}
_ALSO = {"linear": "count", "softmax": "binary"}
_BY_TARGET = {target: model for model, target in TARGET_OF.items()}
_WORDS = {
    "numeric": "a number",
    "count": "a count",
    "binary": "one of two classes",
    "multiclass": "one of several classes",
}


@dataclass(frozen=True)
class FitSettings:
    """The settings of a fit: the kind of model, the penalty λ, and whether it has an intercept."""

    model: str
    l2: float
    intercept: bool = True
    # The loss, if the model is none of those in MODELS; whether it can be refitted here
    family: Family | None = None
    refits: bool = True

    def fit(self, source: RowSource, start: Any = None) -> Any:
        """Fit on the records of a source, starting from ``start`` if it has the same classes."""
        model = self.estimator()
        if self.model == "softmax" and start is not None:
            start = start if len(start.classes_) == len(source.classes) else None
        model._start = None if start is None else start._parameters()
        return source.train(model)

    def estimator(self) -> Any:
        """Return an unfitted estimator with these settings."""
        if not self.refits:
            raise InputError("seepage cannot fit this model; fit it with its own library.")
        if self.family is not None:
            return GeneralizedLinearRegression(self.family, self.l2, self.intercept)
        return MODELS[self.model](l2=self.l2, fit_intercept=self.intercept)

    @property
    def classifies(self) -> bool:
        """Whether the model predicts classes."""
        return self.model in ("logistic", "softmax", squared_hinge.name)


def choose_model(model: str | None, target_kind: str, target: str) -> str:
    """Return the model kind for a target; raise an error if the requested kind is unsuitable."""
    if model is None:
        return _BY_TARGET[target_kind]
    if model not in MODELS:
        raise InputError(f"There is no model family {model!r}; choose one of {', '.join(MODELS)}.")
    if target_kind not in (TARGET_OF[model], _ALSO.get(model)):
        raise InputError(
            f"The target {target!r} is {_WORDS[target_kind]}, which a {model} model cannot "
            f"predict; use --model {_BY_TARGET[target_kind]}, or leave --model out."
        )
    return model


def settings_of(fit: FittedGLM, rows: int) -> FitSettings:
    """Return the settings with which seepage refits a model that was fitted on ``rows`` rows."""
    penalty, intercept = fit.ridge / rows, fit.intercept is not None
    # Our own estimators know neither an L1 penalty nor transformed labels.
    refits = fit.tilt is None and fit.label_unit is None and fit.family != squared_hinge
    if isinstance(fit.family, Categorical):
        return FitSettings("softmax", penalty, intercept)
    if fit.family.name in _BY_FAMILY:
        return FitSettings(_BY_FAMILY[fit.family.name], penalty, intercept, refits=refits)
    return FitSettings(fit.family.name, penalty, intercept, fit.family, refits)


@dataclass(frozen=True, eq=False)
class Attribute:
    """One column of the caller's table, with the model features that it moves."""

    # As in :class:`~seepage.auditing.findings.AttributeFinding`
    name: str
    kind: str
    columns: tuple[int, ...]  # the positions of the model's features that depend on it
    # ``(len(columns), t)``: how far these features move for one unit of the column (t = 1), or, for
    # a category, when another level replaces the first (one direction per level)
    directions: np.ndarray
    # The standard deviation of the column in its own units (of a category: of its code)
    spread: float

    @property
    def scale(self) -> float:
        """The unit in which a record's leakage measures this column: its spread, or a level."""
        return self.spread if self.kind == "numeric" and self.spread > 0 else 1.0

    @property
    def factor(self) -> float | None:
        """The change of the only feature per unit; ``None`` for several features or directions."""
        return abs(float(self.directions[0, 0])) if self.directions.shape == (1, 1) else None

    def unknowns(self) -> Unknowns:
        """Return the column as unknowns: one feature, or several in steps of the column's scale."""
        if self.factor is not None:
            return Unknowns(self.columns, False)
        return Unknowns(self.columns, False, self.directions * self.scale)


@dataclass(frozen=True)
class LabelFacts:
    """A summary of all labels: mean, spread and maximum of numbers, or counts of classes.

    ``codes`` is the number of different values, if they may be class codes.
    """

    mean: float = 0.0
    spread: float = 0.0
    most: float = 0.0
    counts: Mapping[Any, int] | None = None
    codes: int = 0

    @classmethod
    def of(cls, y: np.ndarray, classes: bool) -> LabelFacts:
        """Return the summary of labels in memory."""
        if classes:
            known, places = distinct(y)
            counts = np.bincount(places).tolist()
            return cls(counts=dict(zip(known.tolist(), counts, strict=True)))
        numbers = np.asarray(y, dtype=float)
        return cls(float(numbers.mean()), float(numbers.std()), float(numbers.max()))

    @property
    def step(self) -> float:
        """The unit of the label: a standard deviation, or a whole class."""
        return self.spread if self.counts is None and self.spread > 0 else 1.0

    def deviation(self, target_kind: str) -> float:
        """Return the standard deviation of the label; for a class, that of its code."""
        if self.counts is None:
            return self.step
        shares = np.asarray([n for _, n in sorted(self.counts.items())], dtype=float)
        shares /= shares.sum()
        if target_kind == "binary":
            return float(np.sqrt(shares[0] * shares[-1]))
        return float(np.sqrt(1 - np.sum(shares**2)))


class RecordsInMemory(MemorySource):
    """Records in memory, each with its row number (:data:`ROW`), groups and person."""

    def __init__(
        self,
        X: np.ndarray,
        names: Sequence[str],
        y: np.ndarray,
        weight: np.ndarray | None,
        beside: Mapping[str, np.ndarray],
    ) -> None:
        super().__init__(Table(X, tuple(names), None, "numpy"), y, weight)
        self.X, self.beside = X, beside

    def train(self, model: Any) -> Any:
        """Fit a model on the records."""
        return model.fit(self.X, self.y, self.sample_weight)

    def parted(self, chosen: np.ndarray) -> tuple[RowSource, RowSource, float]:
        """Return all records, the chosen records, and the fraction of records not chosen.

        In the first result, the chosen records have weight 0, so most of a large table need not be
        copied.
        """
        weight = np.ones(len(self)) if self.sample_weight is None else self.sample_weight
        weight = np.where(np.isin(np.arange(len(self)), chosen), 0.0, weight)
        return self.weighted_by(weight), self.at(chosen), (len(self) - len(chosen)) / len(self)

    def at(self, rows: np.ndarray) -> RecordsInMemory:
        """Return some of the records."""
        weight = None if self.sample_weight is None else self.sample_weight[rows]
        beside = {name: values[rows] for name, values in self.beside.items()}
        return RecordsInMemory(self.X[rows], self.names, self.y[rows], weight, beside)

    def of_people(self, person: np.ndarray) -> RecordsInMemory:
        """Return the records, each with the number of its person."""
        beside = {**self.beside, PERSON: person}
        return RecordsInMemory(self.X, self.names, self.y, self.sample_weight, beside)

    @property
    def owner(self) -> np.ndarray:
        """The number of every record's unit: the record itself, or its person."""
        if PERSON not in self.beside:
            return np.arange(len(self))
        return np.unique(self.beside[PERSON], return_inverse=True)[1].reshape(-1)

    @property
    def firsts(self) -> np.ndarray:
        """The position of the first record of each unit."""
        if PERSON not in self.beside:
            return self.owner
        return np.unique(self.owner, return_index=True)[1]

    @property
    def holders(self) -> list[np.ndarray] | np.ndarray:
        """The positions of the records of each unit: one record, or all records of a person.

        If units are records, the result is one array of shape (n, 1): procedures are rerun on
        hundreds of tables, and as many small arrays would take most of the time.
        """
        if PERSON not in self.beside:
            return self.owner[:, None]
        return list(members(self.owner).values())

    def weighted_by(self, weight: np.ndarray) -> RecordsInMemory:
        """Return the records with other sample weights."""
        return RecordsInMemory(self.X, self.names, self.y, weight, self.beside)


@dataclass(frozen=True, eq=False)
class ThroughPreprocessing:
    """The map from raw columns to features, and whether the steps are refitted."""

    followed: FollowedColumns
    refitted: bool

    @property
    def directions(self) -> int:
        """The number of directions in which a record's raw columns can change."""
        return int(self.followed.moves.shape[2])

    def release(self, inner: GLMRelease) -> RawRelease:
        """Return the release as a function of the raw columns."""
        raw = self.followed.table().values
        return RawRelease(
            inner, RawJacobian(inner.template, self.followed, raw, self.refitted), self.refitted
        )


class InLabelSteps(MeasuredRelease):
    """A release that measures labels in units of ``step``."""

    def __init__(self, inner: MeasuredRelease, step: float) -> None:
        self.inner, self.step = inner, step
        self.template = inner.template.with_label_step(step)

    def jacobian(self, chunk: Chunk) -> ReleaseJacobian:
        """Return the Jacobian with respect to the records of a chunk."""
        return self.inner.jacobian(chunk).with_label_step(self.step)


@dataclass(frozen=True, eq=False)
class EncodedTable:
    """An encoded table, with the meaning of its columns."""

    # The records: features and labels; :data:`ROW` and the groups (text, ``(missing)`` for none)
    # can be read too. Labels are floats for ``numeric`` and ``count``, whole numbers or text for
    # classes; false and true are 0 and 1.
    source: RowSource
    # Every column that is used, with its features. Its spread is the standard deviation in its own
    # units; of a category, the root of the total variance of its one-hot code, ``√(1 − Σ p²)``.
    attributes: tuple[Attribute, ...]
    # The target's name, ``numeric``, ``count``, ``binary`` or ``multiclass``, and its facts
    target: str
    target_kind: str
    labels: LabelFacts
    # The columns to compare groups by, and those to report record by record
    groups: tuple[str, ...] = ()
    sensitive: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()  # what was done to the data, one sentence each
    notices: tuple[str, ...] = ()  # what must be read before any number, one sentence each
    # What says whose row it is, where the unit is the person, and the columns (the target may be
    # one) that are the same in all rows of every person
    person: str | None = None
    same: frozenset[str] = frozenset()
    # The records as they came, with all columns, if they are in memory
    raw: pa.Table | None = None
    coding: TableEncoding | None = None  # how its columns became features
    # Records declared public, encoded in the same way: they may shape the noise
    public: RecordsInMemory | None = None
    # The raw columns, if features are not an affine map of them or are refitted: attributes are
    # then directions of the raw columns, not of the features
    through: ThroughPreprocessing | None = None

    @property
    def learnt(self) -> tuple[str, ...]:
        """A description of the parameters that the encoding learnt from the data."""
        if self.coding is None:
            return ()
        named = any(attribute.kind == "categorical" for attribute in self.attributes)
        return (SCALING, LEVELS) if named else (SCALING,)

    def values(self) -> dict[str, list[str]]:
        """Return the caller's cells as text."""
        if self.raw is None:
            raise InputError(
                "The values of data read in chunks are not stored; audit the table in memory."
            )
        return {
            name: ["" if cell is None else str(cell) for cell in self.raw.column(k).to_pylist()]
            for k, name in enumerate(self.raw.column_names)
        }


@dataclass(frozen=True, eq=False)
class TrainedModel:
    """A fitted seepage model, its settings, and its training table."""

    model: Any
    settings: FitSettings
    table: EncodedTable
    # What the numbers leave out because of how a given model was fitted, one sentence each
    notes: tuple[str, ...] = ()
    # And what the procedure learnt from the data and derivatives hold fixed
    learnt: tuple[str, ...] = ()
    # Whether the penalty was stated per record, so that nλ depends on how many there are
    per_record: bool = True

    @property
    def source(self) -> RowSource:
        """The records that the model was fitted on."""
        return self.table.source

    @property
    def records(self) -> RecordsInMemory:
        """The records, which must be in memory."""
        self.source.whole("the records")
        return cast(RecordsInMemory, self.source)

    @property
    def owner(self) -> np.ndarray | None:
        """The number of every record's person, if the unit is the person."""
        return None if self.table.person is None else self.records.owner

    @property
    def unit(self) -> str:
        """The unit of statements: a row, or a person with all of their rows."""
        return ONE_ROW if self.table.person is None else ONE_PERSON

    def basis(self) -> np.ndarray | None:
        """Return the change of the features per step of each column, ``(D, t)``.

        ``None`` stands for the identity: every feature is its own column in its own step. If raw
        columns are traced through the preprocessing, the D rows stand for directions of the raw
        columns instead of features.
        """
        through = self.table.through
        features = len(self.source.names) if through is None else through.directions
        attributes, steps = self.table.attributes, np.zeros(features)
        for a in attributes:
            scaled = np.diag(np.diag(a.directions))
            if scaled.shape != a.directions.shape or np.any(a.directions != scaled):
                steps[:] = 0.0  # some direction of the column is not one feature, scaled
                break
            steps[list(a.columns)] = np.diag(scaled) * a.scale
        if through is None and np.allclose(steps, 1.0, rtol=1e-9, atol=0):
            return None
        basis = np.zeros((features, sum(a.directions.shape[1] for a in attributes)))
        start = 0
        for a in attributes:
            stop = start + a.directions.shape[1]
            basis[list(a.columns), start:stop] = a.directions * a.scale
            start = stop
        return basis

    def measured(self, noise: Gaussian) -> Leakage[Any]:
        """Return the leakage of the release about its records, with the label in units of its step.

        Queries are about whole records, in the units of :meth:`basis`, or about some attributes.
        """
        leak, through = self.leakage(self.source, noise), self.table.through
        if through is not None:
            leak.release = through.release(cast("GLMRelease", leak.release))
        if self.table.labels.step != 1:
            leak.release = InLabelSteps(leak.release, self.table.labels.step)
        return leak

    @property
    def held(self) -> bool:
        """Whether the preprocessing is held fixed while a record changes."""
        return self.table.through is None or not self.table.through.refitted

    @property
    def work(self) -> float:
        """The number of multiplications in one sum of outer products over the records."""
        return float(len(self.source)) * float(len(self.source.names)) ** 2

    @property
    def refit_work(self) -> float:
        """The cost of a refit, in multiplications; infinite if the records are read in chunks."""
        return math.inf if self.source.lazy else self.work

    def taken(self) -> TrainedModel:
        """Return the model with its records loaded into memory, if this is allowed and they fit.

        Stages with refits then run as for a table in memory.
        """
        if not math.isinf(self.refit_work):
            return self
        rows = self.source.taken(MOST_TAKEN, (ROW,))
        if rows is None:
            return self
        records = RecordsInMemory(rows.X, self.source.names, rows.y, rows.weight, rows.extra)
        return replace(self, table=replace(self.table, source=records))

    def leakage(self, source: RowSource, noise: float | Gaussian) -> Leakage[Any]:
        """Return the leakage of a release with this noise, with the model's notes.

        A number as ``noise`` is a standard deviation. If the unit is the person, the leakage is
        about people.
        """
        added = noise if isinstance(noise, Gaussian) else Gaussian(noise)
        release = release_of(self.model, source, added, "raise")
        if not self.per_record:
            release = replace(release, kept=())
        person = None if self.owner is None else Identities(self.owner, source)
        return Leakage(
            release,
            source,
            (added,),
            Attributes(source),
            self.notes,
            person=person,
            held=self.learnt,
        )

    def leakage_to(
        self, attacker: Attacker, sigma: float | None, predictions: Predictions | None = None
    ) -> OutsiderLeakage:
        """Return the leakage to an attacker who knows some records; ``sigma=None`` means no noise.

        ``predictions`` describes the predictions that are released instead of the parameters, if
        any.
        """
        added = Gaussian if predictions is None else AnswerNoise
        noise = None if sigma is None else added(sigma)
        again = partial(leakage, self.model, self.source, person=self.owner)
        known = self.leakage(self.source, 1.0 if sigma is None else sigma)
        fits = cast("GLMRelease", known.release).fits_in_chunks()
        return OutsiderLeakage(SeenRelease(known, noise, attacker, predictions, None, again, fits))

    def refitted(
        self, settings: FitSettings | None = None, source: RowSource | None = None
    ) -> TrainedModel:
        """Return the model refitted with other settings or records, from the current fit."""
        settings, source = settings or self.settings, source or self.source
        table = replace(self.table, source=source)
        model = settings.fit(source, self.model)
        return replace(self, model=model, settings=settings, table=table)
