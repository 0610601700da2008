"""A whole scikit-learn procedure, rerun with some records left out or changed.

The procedure includes everything from a table and its labels to the released numbers:
preprocessing, class weights, choices by cross-validation and the fit. Every step is refitted on
the given records, as in ``clone(estimator).fit``. Choices on a grid (a penalty, columns, levels or
bins) have no derivative, so only reruns can measure their leakage.

The final model is moved to the minimiser of its objective, so that the solver's tolerance is not
mistaken for a record's effect.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from seepage.core.finite_changes import (
    Alternatives,
    FiniteChanges,
    Moves,
    Reruns,
)
from seepage.core.jacobian import (
    MeasuredRelease,
    ReleaseJacobian,
    Unknowns,
)
from seepage.core.noise import Noise
from seepage.core.result import CLASS_WEIGHTS, PENALTY, SETTINGS, joined
from seepage.errors import InputError
from seepage.glm.adapters.registry import best_of, kind_of, unwrap
from seepage.glm.changes.changed_records import RefittedMoves
from seepage.glm.changes.local_model import Whitening
from seepage.glm.fitting.objective import FittedGLM
from seepage.glm.losses import Categorical
from seepage.glm.preprocessing.chain import Chain
from seepage.glm.preprocessing.raw_columns import RawTable
from seepage.glm.preprocessing.steps import KeptColumns, dense
from seepage.glm.preprocessing.transformers import learnt_word
from seepage.support.chunks import progress
from seepage.support.library_classes import is_pipeline, is_search, library_of
from seepage.tables.source import Array, Chunk, as_numpy

_SAME_FIT = 1e-6  # of the coefficients: far above rounding, far below what a random fit leaves

Polish = Callable[[Any, np.ndarray, np.ndarray, np.ndarray | None], FittedGLM]


@dataclass(frozen=True)
class ProcedureRun:
    """The release of one run of the procedure."""

    fit: FittedGLM  # the model at its minimiser
    coef: np.ndarray  # as its own solver left it
    meaning: tuple[Any, ...]  # what the numbers stand for: names of features, columns, classes

    @property
    def parameters(self) -> np.ndarray:
        """The released numbers, (P,)."""
        return np.asarray(as_numpy(self.fit.parameters)).reshape(-1)


class WholeProcedure(Reruns):
    """A pipeline, a search, or a model that makes choices based on the data.

    Parameters
    ----------
    estimator
        The procedure, fitted on all records.
    raw
        Its input table.
    y, weight
        The labels, and the sample weights for the last step.
    noise
        The noise on the released numbers.
    learnt
        Descriptions of the steps fitted to the data.
    polish
        A function of a fitted model, its features, labels and weights. It returns a description of
        the model at the minimiser of its objective.
    """

    def __init__(
        self,
        estimator: Any,
        raw: RawTable,
        y: Array,
        weight: Array | None,
        noise: Noise,
        learnt: tuple[str, ...],
        polish: Polish,
    ) -> None:
        labels = as_numpy(y)
        self.y = labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
        self.estimator, self.raw = estimator, raw
        self.weight = None if weight is None else as_numpy(weight)
        self.learnt, self._noise, self._polish = learnt, noise, polish
        self.records, self.fits = len(self.y), fits_of(estimator)
        last = _last(estimator)
        # nλ stays: of our own models the penalty is stated per record.
        self._per_record = library_of(type(last)) == "seepage"
        self.kept = (PENALTY,) if self._per_record else ()
        # Preparing and fitting the records takes about 20 passes over them.
        self.work = 20.0 * self.fits * self.records * (np.size(last.coef_) + 1)

    @cached_property
    def here(self) -> ProcedureRun:
        """The run on all records; raises an error if the procedure does not reproduce the model."""
        run = self._run(self.raw.X, self.y, self.weight)
        given = np.asarray(as_numpy(_last(self.estimator).coef_), dtype=float)
        size = float(np.max(np.abs(given), initial=0.0))
        same = run.coef.shape == given.shape
        if not same or np.max(np.abs(run.coef - given), initial=0.0) > _SAME_FIT * size:
            raise InputError(
                f"After a refit on the same records, this {type(self.estimator).__name__} has "
                "different coefficients. Either the fit uses randomness (set random_state, or cv "
                "without shuffle), or the data, weights or settings of the fit were different. "
                "Refits then do not show the effect of a record. Alternatively, refit='model' "
                "refits only the coefficients, if the steps before the model allow it."
            )
        return run

    @cached_property
    def target(self) -> np.ndarray:  # type: ignore[override]
        """The labels, in the form that the model uses."""
        return np.asarray(as_numpy(self.here.fit.target))

    @cached_property
    def whiten(self) -> Whitening:
        """The whitening transform of the noise."""
        return Whitening((self._noise,), len(self.here.parameters))

    # Records that leave or change -------------------------------------------------------------

    def released(self, kept: np.ndarray) -> np.ndarray:
        """Return the numbers released from these records, or NaN if they are not comparable."""
        weight = None if self.weight is None else self.weight[kept]
        return self._released(self.raw.rows(kept), self.y[kept], weight)

    def moves(self, rows: np.ndarray, others: Alternatives | None = None) -> Moves:
        """Return the parameter shifts when each record has each alternative value, or leaves."""
        every, here = np.arange(self.records), self.here.parameters
        K = 1 if others is None else len(others)
        moves = np.zeros((len(rows), K, len(here)))
        for m, some in enumerate(map(np.atleast_1d, progress(list(rows), "refits"))):
            if others is None:
                moves[m, 0] = self.released(np.setdiff1d(every, some)) - here
                continue
            for k in range(K):
                X, y = self._changed(some, others, k)
                if X is not None or y is not None:
                    there = self._released(
                        self.raw.X if X is None else X, self.y if y is None else y, self.weight
                    )
                    moves[m, k] = there - here
        # A shift that contains NaN counts as infinite.
        lost = np.asarray(~np.isfinite(moves).all(axis=2))
        seen = self.whiten(np.where(lost[:, :, None], 0.0, moves))
        # Each end of a move is a minimiser up to rounding.
        size = np.linalg.norm(seen, axis=2)
        rounding = 1e-9 * size + 1e-14 * float(np.linalg.norm(self.whiten(here)))
        return RefittedMoves(seen, np.where(size > 0, rounding, 0.0), lost).moves()

    def moves_exactly(self, rows: np.ndarray, others: Alternatives | None = None) -> Moves:
        """Return the result of :meth:`moves`, since reruns are the only method."""
        return self.moves(rows, others)

    def log_likelihoods(
        self, rows: np.ndarray, others: Alternatives, refits: int | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return each alternative's log-likelihood under the model fitted without the record."""
        if not hasattr(self.estimator, "predict_log_proba"):
            raise InputError(
                f"A {type(self.estimator).__name__} does not predict probabilities, so it cannot "
                "serve as a prior; choose 'equal', 'frequencies' or your own probabilities."
            )
        if rows.dtype == object:
            raise InputError(
                "The prior 'model' is not supported for people with several records; choose "
                "'equal', 'frequencies' or your own probabilities."
            )
        scores = np.full((len(rows), len(others)), -np.inf)
        every, classes = np.arange(self.records), as_numpy(self.estimator.classes_)
        for m, row in enumerate(progress(list(rows), "refits")):
            kept = np.delete(every, row)
            weight = None if self.weight is None else self.weight[kept]
            model = _fitted(self.estimator, self.raw.rows(kept), self.y[kept], weight)
            known = {label: place for place, label in enumerate(as_numpy(model.classes_).tolist())}
            for k in range(len(others)):
                X, y = self._changed(np.array([row]), others, k)
                label = classes.tolist()[self._class_of(others, k)] if y is not None else None
                label = self.y.tolist()[row] if label is None else label
                one = self.raw.rows(np.array([row]), X)
                if label in known:
                    scores[m, k] = model.predict_log_proba(one)[0, known[label]]
        return scores, np.zeros(len(rows))

    def class_labels(self) -> np.ndarray:
        """Return the labels that a classifier's record may have, of shape (K,) or (K, K)."""
        family = self.here.fit.family
        if isinstance(family, Categorical):
            return np.eye(family.outputs)
        return np.array([0.0, 1.0]) if family.name == "bernoulli" else super().class_labels()

    def _changed(
        self, rows: np.ndarray, others: Alternatives, k: int
    ) -> tuple[Any, np.ndarray | None]:
        """Return the table and the labels with an alternative value; ``None`` means unchanged."""
        if others.labels is not None:
            label: Any = others.labels[k]
            if np.all(np.asarray(label) == self.target[rows]):
                return None, None
            classes = getattr(_last(self.estimator), "classes_", None)
            y = self.y.copy() if classes is not None else self.y.astype(float)
            y[rows] = label if classes is None else as_numpy(classes)[self._class_of(others, k)]
            return None, y
        return self.raw.replaced(rows, others.columns, np.asarray(others.values)[k]), None

    def _class_of(self, others: Alternatives, k: int) -> int:
        """Return the class position of a label."""
        label = np.asarray(np.asarray(others.labels)[k])
        return int(np.argmax(label)) if label.ndim else int(label)

    # One run ----------------------------------------------------------------------------------

    def _released(self, X: Any, y: np.ndarray, weight: np.ndarray | None) -> np.ndarray:
        here = self.here
        try:
            run = self._run(X, y, weight)
        except (InputError, ValueError):  # no minimiser, or a class without records
            return np.full(len(here.parameters), np.nan)
        same = run.meaning == here.meaning and len(run.parameters) == len(here.parameters)
        return run.parameters if same else np.full(len(here.parameters), np.nan)

    def _run(self, X: Any, y: np.ndarray, weight: np.ndarray | None) -> ProcedureRun:
        estimator = self.estimator
        if self._per_record and len(y) != self.records:
            estimator = _with_penalty(estimator, self.records / len(y))
        # What a solver has to say of one of many refits helps nobody; the polish decides.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model, features, names = _fit_through(estimator, X, y, weight)
            opened = unwrap(model, features)
            columns = [
                tuple(step.columns) for step in opened.steps if isinstance(step, KeptColumns)
            ]
            table = dense(Chain(opened.steps).transform(features))
            fit = self._polish(opened.model, table, y, weight)
        classes = tuple(as_numpy(getattr(model, "classes_", np.zeros(0))).tolist())
        coef = np.asarray(as_numpy(model.coef_), dtype=float)
        return ProcedureRun(fit, coef, (*names, *columns, classes))


def _fit_through(
    estimator: Any, X: Any, y: np.ndarray, weight: np.ndarray | None
) -> tuple[Any, Any, tuple[Any, ...]]:
    """Fit a procedure, and return the final model with its features and their names."""
    if is_pipeline(estimator):
        features, names = _prepared(estimator, X, y)
        model, features, more = _fit_through(estimator[-1], features, y, weight)
        return model, features, (*names, *more)
    return _opened(_fitted(estimator, X, y, weight), X, y)


def _opened(fitted: Any, X: Any, y: np.ndarray) -> tuple[Any, Any, tuple[Any, ...]]:
    """Return the final model, its features and their names for an already fitted procedure."""
    if is_search(fitted):
        return _opened(best_of(fitted), X, y)
    if is_pipeline(fitted):
        features, names = _prepared(fitted, X, y)
        model, features, more = _opened(fitted[-1], features, y)
        return model, features, (*names, *more)
    return fitted, X, ()


def _prepared(pipeline: Any, X: Any, y: np.ndarray) -> tuple[Any, tuple[Any, ...]]:
    """Return the named features that the steps before the last compute during the fit.

    These features may differ from a later transform of the same records: a target encoder computes
    each record's code from the other folds.
    """
    from sklearn.base import clone

    if len(pipeline.steps) == 1:
        return X, ()
    before = clone(pipeline[:-1])
    features = before.fit_transform(X, y)
    features = features.toarray() if hasattr(features, "toarray") else features
    try:
        names = tuple(before.get_feature_names_out())
    except (AttributeError, ValueError):  # a step that does not name what it makes
        names = ()
    return features, (names,)


def _fitted(estimator: Any, X: Any, y: np.ndarray, weight: np.ndarray | None) -> Any:
    """Return a fitted copy of an estimator; the weights are passed to its last step."""
    from sklearn.base import clone

    last, told = estimator.estimator if is_search(estimator) else estimator, {}
    if weight is not None:
        name = f"{last.steps[-1][0]}__sample_weight" if is_pipeline(last) else "sample_weight"
        told = {name: weight}
    return clone(estimator).fit(X, y, **told)


def _with_penalty(estimator: Any, factor: float) -> Any:
    """Return a copy of an estimator whose final seepage model has a scaled penalty."""
    from sklearn.base import clone

    other = clone(estimator)
    if is_search(other):  # it states its own penalties
        return other
    last = other[-1] if is_pipeline(other) else other
    last.set_params(l2=factor * last.l2)
    return other


def _last(estimator: Any) -> Any:
    """Return the final model of a fitted procedure."""
    while is_pipeline(estimator) or is_search(estimator):
        estimator = best_of(estimator) if is_search(estimator) else estimator[-1]
    return estimator


def fits_of(estimator: Any) -> int:
    """Return the number of models fitted in one run of a procedure."""
    if is_pipeline(estimator):
        return fits_of(estimator[-1])
    if is_search(estimator):
        tried = len(estimator.cv_results_["params"]) * int(estimator.n_splits_)
        return (tried + 1) * fits_of(best_of(estimator))
    if hasattr(estimator, "mse_path_"):  # a path over all penalties for every fold
        return int(np.shape(estimator.mse_path_)[-1]) + 1
    scores = getattr(estimator, "scores_", None)
    if scores is not None:
        every = scores.values() if isinstance(scores, dict) else [scores]
        return sum(np.size(one) for one in every) + 1
    folds = getattr(estimator, "cv", None)
    if folds is not None and hasattr(estimator, "alphas"):
        each = folds if isinstance(folds, int) else 5
        return int(np.size(estimator.alphas)) * each + 1
    return 1


def learnt_words(estimator: Any) -> tuple[str, ...]:
    """Return the names of everything that a procedure learns apart from its released numbers."""
    if is_search(estimator):
        return joined([SETTINGS], learnt_words(best_of(estimator)))
    if is_pipeline(estimator):
        before = (step for _, step in estimator.steps[:-1])
        return joined(*map(_words_of_step, before), learnt_words(estimator[-1]))
    weights = (CLASS_WEIGHTS,) if getattr(estimator, "class_weight", None) == "balanced" else ()
    return joined(kind_of(estimator).chooses, weights)


def _words_of_step(step: Any) -> tuple[str, ...]:
    if step is None or isinstance(step, str):
        return ()
    inner = getattr(step, "transformers_", None) or getattr(step, "transformer_list", None)
    if inner is not None:
        return joined(*(_words_of_step(part[1]) for part in inner))
    if is_pipeline(step):
        return joined(*(_words_of_step(part) for _, part in step.steps))
    return (learnt_word(step),)


def can_rerun(estimator: Any) -> bool:
    """Return whether a procedure has scikit-learn's interface and a supported linear model."""
    model = _last(estimator)
    try:
        kind_of(model)
    except InputError:
        return False
    return hasattr(estimator, "get_params") and hasattr(model, "coef_")


@dataclass(frozen=True)
class RerunRelease(MeasuredRelease):
    """The released numbers of a procedure whose leakage can only be measured by reruns."""

    template: UnknownJacobian

    def jacobian(self, chunk: Chunk) -> UnknownJacobian:
        """Return a placeholder for the Jacobian, which is unknown."""
        return self.template

    def finite_changes(self) -> FiniteChanges:
        """Raise an error, since no part of the procedure can be held fixed."""
        raise self.template.refusal()


class UnknownJacobian(ReleaseJacobian):
    """A placeholder for a procedure without derivatives; every product raises an error."""

    def __init__(self, X: np.ndarray, target: np.ndarray, size: int, why: str) -> None:
        self.X, self.target, self.size, self.why = X, target, size, why
        self.rows, self.features = X.shape
        self.label_size = 1 if target.ndim == 1 else target.shape[1] - 1

    def forward(self, z: Array, unknowns: Unknowns, rows: Array) -> Array:
        """Raise an error: there is no derivative."""
        raise self.refusal()

    def adjoint(self, v: Array, unknowns: Unknowns, rows: Array) -> Array:
        """Raise an error: there is no derivative."""
        raise self.refusal()

    def refusal(self) -> InputError:
        """Return an error that explains why there is no derivative, and suggests an alternative."""
        return InputError(
            f"{self.why} Therefore η, and everything derived from η, is undefined; use "
            "leak.membership() and leak.guess(column), which refit the whole procedure."
        )
