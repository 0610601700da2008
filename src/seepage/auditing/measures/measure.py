"""Every number an audit needs of a release, measured once: noise of another scale only rescales.

With noise of standard deviation σ every leakage is the one at σ = 1 over σ, and every least error
of an attack σ times the one at σ = 1 (the information is ``JᵀJ/σ²``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from seepage.auditing.measures.subject import Attribute, Subject
from seepage.core.jacobian import ReleaseJacobian
from seepage.core.noise import Gaussian
from seepage.core.unknowns import Unknowns
from seepage.glm.leakage import leakage

_NUMBERS_AT_ONCE = 1 << 25  # cells of the table whose information is held at a time
INVERSE_WORK = 3e11  # multiplications, beyond which inverting every record's matrix takes minutes


@dataclass(frozen=True)
class AttributeErrors:
    """The leakage of one column, and the least error of an attack on each record's, at σ = 1."""

    attribute: Attribute
    eta: float
    errors: np.ndarray | None  # (n,), own units; kept for sensitive columns only
    smallest: float
    easiest: int  # position of the record
    median: float


@dataclass(frozen=True)
class Measured:
    """The leakage of one release at σ = 1; see the fields of the same names in ``Audit``."""

    eta: np.ndarray
    eta_features: np.ndarray
    eta_label: np.ndarray
    exact_error: np.ndarray
    attributes: tuple[AttributeErrors, ...]
    dataset_eta: float
    released: int
    jacobian: ReleaseJacobian
    basis: np.ndarray | None


def unit_jacobian(subject: Subject, on_mismatch: str = "raise") -> ReleaseJacobian:
    """Return the Jacobian of the release at σ = 1, with the label in steps of its spread."""
    leak = leakage(
        subject.model,
        subject.X,
        subject.y,
        noise=Gaussian(1.0),
        sample_weight=subject.sample_weight,
        on_mismatch=on_mismatch,
    )
    return leak.jacobian.with_label_step(subject.label_spread)


def worst_record(subject: Subject) -> float:
    """Return the largest leakage of a record with its label at σ = 1."""
    return float(record_leakage(subject).max())


def record_leakage(subject: Subject) -> np.ndarray:
    """Return the leakage of every record with its label at σ = 1."""
    jacobian = unit_jacobian(subject)
    return _root(jacobian.row_norms(Unknowns(None, True, subject.basis())))


def measure(subject: Subject, sensitive: Sequence[str] = (), tell: Any = None) -> Measured:
    """Measure the release at σ = 1.

    Parameters
    ----------
    subject
        The model and its data.
    sensitive
        Columns for which the error on every single record is kept.
    tell
        Called with what is being done, for people who watch.
    """
    say = tell or (lambda words: None)
    jacobian, basis = unit_jacobian(subject), subject.basis()
    say("leakage of every record")
    eta = _root(jacobian.row_norms(Unknowns(None, True, basis)))
    features = Unknowns(None, False, basis)
    eta_features = _root(jacobian.row_norms(features))
    label = Unknowns((), True)
    eta_label = _root(jacobian.row_norms(label))
    say("exact bounds")
    exact = _exact_error(jacobian, features)
    say("leakage of every column")
    attributes = _attributes(jacobian, subject, set(sensitive))
    everyone = np.arange(jacobian.rows)
    attributes.append(
        _summary(
            Attribute(
                subject.target,
                kind_as_column(subject.target_kind),
                (),
                np.zeros((0, 0)),
                _label_deviation(subject),
            ),
            float(np.sqrt(jacobian.block_norm(label, everyone))),
            errors_of(eta_label**2) * subject.label_spread,
            subject.target in sensitive,
        )
    )
    say("leakage of the whole table")
    dataset = float(np.sqrt(jacobian.block_norm(Unknowns(None, True, basis), everyone)))
    return Measured(
        eta,
        eta_features,
        eta_label,
        exact,
        tuple(attributes),
        dataset,
        jacobian.size,
        jacobian,
        basis,
    )


def group_leakage(measured: Measured, rows: np.ndarray) -> float:
    """Return the leakage of some records taken together, at σ = 1."""
    unknowns = Unknowns(None, True, measured.basis)
    return float(np.sqrt(measured.jacobian.block_norm(unknowns, rows)))


def kind_as_column(target_kind: str) -> str:
    """Return the kind of the target as a column."""
    kinds = {"numeric": "numeric", "count": "numeric", "binary": "boolean"}
    return kinds.get(target_kind, "categorical")


def class_deviation(counts: np.ndarray, target_kind: str) -> float:
    """Return the standard deviation of the code of a class, given how often each occurs."""
    shares = counts / counts.sum()
    if target_kind == "binary":
        return float(np.sqrt(shares[0] * shares[-1]))
    return float(np.sqrt(1 - np.sum(shares**2)))


def _label_deviation(subject: Subject) -> float:
    """Return the standard deviation of the label: of its code where it is a class."""
    if subject.target_kind in ("numeric", "count"):
        return subject.label_spread
    return class_deviation(np.unique(subject.y, return_counts=True)[1], subject.target_kind)


def _exact_error(jacobian: ReleaseJacobian, features: Unknowns) -> np.ndarray:
    """Return ``√(Tr(I⁻¹)/t)`` of every record, or nothing but NaN where that takes too long."""
    count = features.features(jacobian.features)
    if features.basis is not None and np.linalg.matrix_rank(features.basis) < count:
        # Fewer features than columns: some change of a record leaves the release as it is.
        return np.full(jacobian.rows, np.inf)
    if jacobian.rows * jacobian.inverse_work(features) > INVERSE_WORK:
        return np.full(jacobian.rows, np.nan)
    return np.asarray(np.sqrt(np.asarray(jacobian.inverse_traces(features)) / count))


def _attributes(
    jacobian: ReleaseJacobian, subject: Subject, kept: set[str]
) -> list[AttributeErrors]:
    every = np.arange(jacobian.rows)
    found: dict[int, AttributeErrors] = {}
    single = [k for k, a in enumerate(subject.attributes) if a.plain_column() is not None]
    unknowns = [
        a.unknowns() if a.plain_column() is None else Unknowns(a.columns, False)
        for a in subject.attributes
    ]
    norms = np.asarray(jacobian.column_norms(unknowns, every), dtype=float)
    batch = max(1, _NUMBERS_AT_ONCE // max(1, jacobian.rows))
    for start in range(0, len(single), batch):
        which = single[start : start + batch]
        columns = tuple(int(subject.attributes[k].columns[0]) for k in which)
        information = np.asarray(jacobian.cell_information(Unknowns(columns, False)))
        for place, k in enumerate(which):
            attribute = subject.attributes[k]
            factor = abs(float(attribute.directions[0, 0]))
            found[k] = _summary(
                attribute,
                float(np.sqrt(norms[k])) * factor * attribute.scale,
                errors_of(information[:, place] * factor**2),
                attribute.name in kept,
            )
    for k, attribute in enumerate(subject.attributes):
        if k in found:
            continue
        found[k] = _summary(
            attribute,
            float(np.sqrt(norms[k])),
            errors_of(np.asarray(jacobian.row_norms(unknowns[k]))) * attribute.scale,
            attribute.name in kept,
        )
    return [found[k] for k in range(len(subject.attributes))]


def _summary(attribute: Attribute, eta: float, errors: np.ndarray, keep: bool) -> AttributeErrors:
    easiest = int(np.argmin(errors))
    return AttributeErrors(
        attribute,
        eta,
        errors if keep else None,
        float(errors[easiest]),
        easiest,
        float(np.median(errors)),
    )


def errors_of(information: np.ndarray) -> np.ndarray:
    """Return the least error of an attack, ``1/√I``: infinite where nothing leaks."""
    with np.errstate(divide="ignore"):
        return np.asarray(1 / np.sqrt(np.maximum(information, 0.0)))


def _root(squared: Any) -> np.ndarray:
    return np.asarray(np.sqrt(np.maximum(np.asarray(squared, dtype=float), 0.0)))
