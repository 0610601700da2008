"""A release as seen by an attacker who does not know all other records.

:class:`SeenRelease` stores the release, its noise, the attacker and the records.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from seepage.core.finite_changes import Alternatives
from seepage.core.leakage import Leakage, group_labels, row_positions
from seepage.core.noise import Attacker, Gaussian
from seepage.core.people import Together
from seepage.errors import InputError
from seepage.glm.changes.changed_records import ChangedRecords
from seepage.glm.changes.local_model import LocalModel, callers_moves
from seepage.glm.changes.rebalanced import RebalancedRecords
from seepage.glm.outsider.others import OtherPeople
from seepage.glm.outsider.predictions import (
    AnswerNoise,
    Parameters,
    Predictions,
    check_queries,
)
from seepage.glm.outsider.refusals import check_people, check_same_attacker
from seepage.glm.outsider.shown import Shown
from seepage.glm.outsider.streamed import ChunkFits, StreamedWorlds
from seepage.glm.outsider.worlds import Worlds
from seepage.glm.preprocessing.jacobian import RawChanges, RawRelease
from seepage.tables.source import as_numpy, check_order, read_table


@dataclass(frozen=True, eq=False)
class SeenRelease:
    """A release, and the attacker who sees it.

    Parameters
    ----------
    informed
        The leakage to an attacker who knows all other records, with unit noise if no noise is
        added.
    noise
        The added noise, if any.
    attacker
        The attacker's background knowledge.
    form
        The form of the release, if it is not the exact parameters.
    queries
        The queries, with the model's columns.
    again
        A function that returns the leakage with different noise.
    fits
        A function that returns the fit on a chunk's records, for data read in chunks, which support
        only membership.
    """

    informed: Leakage[Any]
    noise: Gaussian | None
    attacker: Attacker
    form: Predictions | Parameters | None
    queries: Any
    again: Callable[..., Leakage[Any]]
    fits: ChunkFits | None = None

    def __post_init__(self) -> None:
        _ = self.known  # refused now, if these are no records of the table
        if self.fits is None:
            _ = self.model  # the same, if it is not known

    @cached_property
    def model(self) -> LocalModel:
        """The second-order fit on all records, which must be in memory."""
        changes = self.informed.release.finite_changes()
        if isinstance(changes, RawChanges):
            changes = changes.inner
        if isinstance(changes, RebalancedRecords):
            changes = changes.fixed
        if not isinstance(changes, ChangedRecords) or math.isinf(changes.work):
            raise InputError(
                "The leakage to an attacker who does not know all other records requires a table "
                "in memory; load the rows first."
            )
        return changes.model

    def scaled(self, factor: float) -> SeenRelease:
        """Return the same release with the noise multiplied by ``factor``."""
        assert self.noise is not None  # noqa: S101 - told to the type checker
        noise = self.noise.scaled(factor)
        own = isinstance(self.form, Predictions) and self.queries is None
        informed: Any = self.informed if own else self.again(noise=noise)
        fits = None if self.fits is None else informed.release.fits_in_chunks()
        return replace(self, informed=informed, noise=noise, fits=fits)

    # Who is meant -----------------------------------------------------------------------------

    @cached_property
    def known(self) -> np.ndarray | None:
        """The records the attacker knows, if they are listed."""
        if not self.attacker.names_records:
            return None
        known = np.zeros(len(self.informed.source), dtype=bool)
        known[row_positions(self.attacker.knows, len(known))] = True
        check_order(self.attacker.labels, self.informed.source, "knows")
        return known

    def together(self, groups: Any) -> Together | None:
        """Return the records that are removed together, because they share a group or a person."""
        if groups is not None:
            labels = group_labels(groups, self.informed.source)
            return Together.of("groups", labels)
        person = self.informed.person
        return None if person is None else person.together

    def asked(
        self, together: Together | None, which: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the positions of the people to measure, and their labels."""
        count, index, known = len(self.informed.source), self.informed.source.index, self.known
        if together is not None:
            asked = np.flatnonzero(np.isin(together.names, together.holding(which).names))
            index = together.names
            known = None if known is None else np.array([known[r].all() for r in together.sets])
        else:
            asked = np.arange(count) if which is None else which
            index = np.arange(count) if index is None else np.asarray(index)
        if known is None:
            return asked, index[asked]
        if which is None:
            asked = asked[~known[asked]]
        elif known[asked].any():
            units = {"people": "person", "groups": "group"}
            unit = "record" if together is None else units[together.view]
            raise InputError(
                f"The attacker already knows {unit} {index[asked[known[asked]][0]]!s} (listed in "
                "knows=), so there is no membership to infer; choose records that knows= does not "
                "list."
            )
        return asked, index[asked]

    def check_beside(self, other: SeenRelease) -> None:
        """Raise an error unless another release has the same attacker and the same records."""
        check_same_attacker(self.attacker, other.attacker)
        answers, rounded = other.form is not None, other.digits is not None
        alone = answers and (other.queries is None or other.noise is not None)
        if other.fits is not None or rounded or alone:
            raise InputError(
                "For an attacker who does not know all other records, releases can be composed "
                "only for tables in memory, and only if they are unrounded parameters or noiseless "
                "answers to given queries. Measure other releases separately."
            )
        mine, yours = self.informed, other.informed
        if len(mine.source) != len(yours.source):
            raise InputError(
                "Only releases about the same records can be composed, but one has "
                f"{len(mine.source):,} records and another {len(yours.source):,}; pass the same "
                "records to each."
            )
        labels = [
            list(range(len(one.source))) if one.source.index is None else one.source.index.tolist()
            for one in (mine, yours)
        ]
        labelled = mine.source.index is not None and yours.source.index is not None
        if labels[0] != labels[1] and (labelled or Counter(labels[0]) == Counter(labels[1])):
            raise InputError(
                "The rows of these releases have different labels, or the same labels in a "
                "different order; pass both tables in the same order."
            )
        if mine.person is None or yours.person is None:
            alike = mine.person is yours.person
        else:
            alike = mine.person.same(yours.person)
        if not alike:
            raise InputError(
                "These releases assign the records to different people; pass the same person= to "
                "each."
            )

    # What she sees ----------------------------------------------------------------------------

    def worlds(self, together: Together | None) -> Worlds:
        """Return each person's two distributions; raise an error if there are too few people."""
        sets = None if together is None else [np.asarray(one) for one in together.sets]
        answers = isinstance(self.form, Predictions)
        noisy = self.noise is not None and not self.noise.on
        others = OtherPeople(self.model, sets, noisy, self.known)
        own = answers and self.queries is None
        queries = self._query_map() if answers and not own else None
        if isinstance(self.form, Parameters):
            queries = self._parameter_map()
        added = self.noise.as_given() if isinstance(self.noise, AnswerNoise) else None
        shown = Shown(digits=self.digits)
        if answers and (added is not None or self.digits is not None):
            shown = Shown(self.model.outputs, added, self.digits)
        worlds = Worlds(others, self.attacker.unknown(others.count), queries, own, shown)
        check_people(worlds, self.attacker)
        return worlds

    def worlds_of_records(self) -> Worlds:
        """Return the two distributions of each record, treated as a separate person."""
        together = self.together(None)
        if together is not None and any(len(rows) > 1 for rows in together.sets):
            raise InputError(
                "Some people have several records. Omit person= to measure single records, groups "
                "of records, or values that differ between a person's records."
            )
        return self.worlds(None)

    def worlds_in_chunks(
        self, fits: ChunkFits, together: Together | None, exact: bool | int
    ) -> StreamedWorlds:
        """Return the two distributions of records read in chunks, after the first pass."""
        named = self.attacker.names_records
        if together is not None or exact or self.form is not None or named:
            raise InputError(
                "For data read in chunks, an attacker who knows a share of the other records is "
                "supported only for single records and released parameters. Load the rows into "
                "memory to use groups, people, listed records, predictions or exact=."
            )
        source = self.informed.source
        worlds = StreamedWorlds.of(source, fits, self.noise is not None, self.attacker)
        check_people(worlds, self.attacker)
        return worlds

    @property
    def digits(self) -> int | None:
        """The number of printed decimals, if the release is rounded."""
        return None if self.form is None else self.form.digits

    def _parameter_map(self) -> np.ndarray:
        """Return A, which maps the free parameters to all parameters in the caller's columns."""
        every = self.model.outputs.of_all(np.eye(len(self.model.inverse)))
        return np.asarray(callers_moves(every, self.model.centre).T)

    def _query_map(self) -> np.ndarray:
        """Return A, which maps free parameters to answers; a row per query and free output."""
        model = self.model
        X = np.asarray(as_numpy(read_table(self.queries).values), dtype=float)
        check_queries(X, model.X.shape[1])
        near = X if model.centre is None else X - model.centre
        x, c = model.gram_solver.design(near), model.outputs.count
        return np.asarray(np.einsum("mp,kl->mkpl", x, np.eye(c))).reshape(len(x) * c, -1)

    def features_with(self, rows: np.ndarray, others: Alternatives) -> np.ndarray:
        """Return records' features for each alternative, (m, K, d), in the model's columns."""
        model = self.model
        if isinstance(self.informed.release, RawRelease) and others.columns:
            features, _ = self.informed.release.template.followed.features_with(rows, others)
            return features if model.centre is None else features - model.centre
        features = np.repeat(model.X[rows][:, None, :], len(others), axis=1)
        if others.values is not None:
            features[:, :, list(others.columns)] = model.near(others)
        return features

    def with_noise(self, S: np.ndarray) -> Leakage[Any]:
        """Return the leakage with noise of covariance S added to the free parameters."""
        model = self.model
        for _ in range(2):  # of all parameters, in the caller's columns
            S = callers_moves(model.outputs.of_all(S), model.centre).T
        basis = model.outputs.basis
        if basis is not None:
            # Nothing moves along what all classes have in common: any spread will do there.
            K = len(basis)
            common = np.kron(np.eye(len(S) // K), np.full((K, K), 1 / K))
            S = S + common * np.trace(S) / len(S)
        return self.again(noise=Gaussian((S + S.T) / 2))
