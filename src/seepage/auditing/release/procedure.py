"""The procedure that turns a table into published figures, and can be rerun without a record.

All data-dependent figures published without noise are on a coarse grid: the scaling of the columns,
the number of records, and σ, which is drawn from the grid. The penalty, the target and the model
family are declared. A small change of a record therefore changes only the coefficients, so given
the figures on the grid, only the coefficients leak.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, cast

import numpy as np
import pyarrow as pa

from seepage.auditing.audit import check_noise_or_target
from seepage.auditing.findings import ONE_PERSON, ONE_ROW
from seepage.auditing.intake.neighbouring_table import NeighbouringTable
from seepage.auditing.intake.table import UNITS, TableInMemory, central_scale, encode, plan_columns
from seepage.auditing.measures import largest_share, neighbouring_models, record_leakage
from seepage.auditing.questions import ReleaseQuestion
from seepage.auditing.release.ledger import (
    BudgetSpentError,
    Recognition,
    ReleaseLedger,
    UnrecognisedRecordsWarning,
)
from seepage.auditing.release.noise_vote import (
    NoiseDraw,
    Seats,
    noise_grid,
    plan_vote,
    vote_on_noise,
)
from seepage.auditing.release.rare_names import settle_rare_names
from seepage.auditing.release.released_model import ColumnCoding
from seepage.auditing.report.words import MANY, ONE
from seepage.auditing.trained_model import (
    FEWEST_ROWS,
    ROW,
    EncodedTable,
    FitSettings,
    RecordsInMemory,
    TrainedModel,
    choose_model,
)
from seepage.core.result import COARSER, SAME, round_down, round_up
from seepage.errors import InputError
from seepage.glm.changes.batched_refits import Change
from seepage.glm.changes.neighbouring_models import NeighbouringModels
from seepage.glm.leakage import describe_on
from seepage.support.number_check import check_positive
from seepage.tables.names import shown

Domain = Mapping[str, tuple[float, float]]


@dataclass(frozen=True, eq=False)
class Prepared:
    """The result of the procedure on a table, before noise is added."""

    trained: TrainedModel
    eta: np.ndarray  # the leakage of every record at σ = 1, or of every person
    recognition: Recognition | None  # the ledger's findings about every record, if there is one
    sigma: float
    least: float  # the smallest σ on the coarse grid with which none leaks more than allowed
    figures: dict[str, Any]  # the figures published without noise, by name
    needed: np.ndarray  # the σ with which each record, or person, leaks exactly what is allowed
    seats: Seats  # the voting block of every row of the table
    vote: NoiseDraw | None  # if σ was drawn
    spent: np.ndarray  # the η² of every record, or person, over earlier releases
    rows: np.ndarray  # the row number of each record, or of each person's first record


@dataclass(frozen=True, kw_only=True)
class Procedure(ReleaseQuestion):
    """The settings of a release, and the ledger of earlier releases."""

    ledger: ReleaseLedger | None = None

    @cached_property
    def domains(self) -> Domain:
        """The domains of columns, parsed from ``column=low:high``."""
        ends = {}
        for text in self.domain:
            name, _, interval = text.rpartition("=")
            low, _, high = interval.partition(":")
            try:
                ends[name] = (float(low), float(high))
            except ValueError:
                raise InputError(f"--domain must be column=low:high, not {shown(text)}.") from None
            finite = all(map(math.isfinite, ends[name]))
            if not name or not ends[name][0] < ends[name][1] or not finite:
                raise InputError(
                    f"--domain must be column=low:high with low below high, not {shown(text)}."
                )
        return ends

    def fit(self, raw: pa.Table, near: TrainedModel | None = None) -> TrainedModel:
        """Fit the model without noise, starting from ``near``, the model of a similar table."""
        return self.fit_encoded(self.encode(TableInMemory(raw)), near)

    def settings_for(self, encoded: EncodedTable) -> FitSettings:
        """Return the settings of the fit on an encoded table."""
        return FitSettings(choose_model(self.model, encoded.target_kind, encoded.target), self.l2)

    def fit_encoded(self, encoded: EncodedTable, near: TrainedModel | None = None) -> TrainedModel:
        """Fit the model on an encoded table, as :meth:`fit`."""
        settings = self.settings_for(encoded)
        # A start in other coordinates would be poor, or unusable.
        alike = near is not None and _coded(near.table) == _coded(encoded)
        start = near.model if near is not None and alike and near.settings == settings else None
        return TrainedModel(settings.fit(encoded.source, start), settings, encoded)

    def prepare(self, raw: pa.Table, seats: Seats | None = None) -> Prepared:
        """Fit the model, measure leakage and choose the noise; warn if records are not recognised.

        ``seats`` assigns rows to voting blocks; by default, the seats are drawn at random.
        """
        if self.ledger is not None:
            for doubt in self.ledger.recognise(raw, self.person).doubts:
                warnings.warn(doubt, UnrecognisedRecordsWarning, stacklevel=2)
        trained = self.fit(raw)
        eta = record_leakage(trained)
        recognition = self._recognise(raw, trained)
        spent = spent_by(trained, recognition)
        allowed = self.allowed(spent)
        needed = eta / allowed
        least = round_up(float(np.max(needed)), COARSER)
        figures = self.figures_of(trained)
        seats = Seats.of(raw, self.person) if seats is None else seats
        first = trained.records.firsts
        rows = np.asarray(trained.records.beside[ROW][first])
        vote = self._vote(trained, allowed, figures, least, seats.places[rows])
        sigma = self._noise(float(np.max(needed)), vote)
        figures = {"σ": sigma} | figures
        chosen = sigma, least, figures, needed, seats, vote, spent, rows
        return Prepared(trained, eta, recognition, *chosen)

    def rerun(
        self, raw: pa.Table, prepared: Prepared, encoded: EncodedTable | None = None
    ) -> tuple[dict[str, Any], float, TrainedModel]:
        """Return the figures, the smallest σ that respects every privacy budget, and the model.

        ``encoded`` is the encoded table, if known.
        """
        encoded = self.encode(TableInMemory(raw)) if encoded is None else encoded
        trained = self.fit_encoded(encoded, prepared.trained)
        needed = largest_share(trained, self.allowed_in(raw, trained))
        return self.with_noise(needed, self.figures_of(trained), prepared), needed, trained

    def allowed_in(self, raw: pa.Table, trained: TrainedModel) -> np.ndarray:
        """Return the remaining privacy budget η of every record, or person, of another table."""
        earlier = self.ledger is not None and self.ledger.releases
        known = self._recognise(raw, trained) if earlier else None
        return self.allowed(spent_by(trained, known))

    def with_noise(
        self, needed: float, figures: dict[str, Any], prepared: Prepared
    ) -> dict[str, Any]:
        """Return the figures of another table, with σ.

        A drawn σ is not drawn again; it counts as changed only if it is not enough for this table.
        """
        return {"σ": self._noise(needed, prepared.vote)} | figures

    def encode(self, table: TableInMemory) -> EncodedTable:
        """Encode a table for a release, or raise an error if no release can be made of it."""
        check_noise_or_target(self.sigma, self.target_eta)
        if self.sigma_epsilon is not None:
            check_positive(self.sigma_epsilon, "sigma_epsilon")
            if self.sigma is not None:
                raise InputError(
                    "--sigma declares the noise, and --sigma-epsilon draws it; give only one of "
                    "the two."
                )
        if self.missing == "impute":
            raise InputError(
                "With --missing impute, imputed values would also be published; fill the gaps "
                "yourself first, or use --missing drop."
            )
        if self.least_holders < 1:
            raise InputError(f"--least-holders must be at least 1, not {self.least_holders}.")
        drop = tuple(dict.fromkeys(self.drop))
        plan = self._plan(table, drop)
        settled, more, steps = settle_rare_names(table.raw, plan, self.least_holders, self.rare)
        if steps:
            table = TableInMemory(settled)
            plan = self._plan(table, (*drop, *more))
        encoded = encode(table, plan, public=self.domains)
        rows = len(encoded.source)
        if rows < FEWEST_ROWS:
            raise InputError(
                f"A release needs at least {FEWEST_ROWS} usable rows, but the table has {rows}; "
                "provide more rows."
            )
        people = len(cast(RecordsInMemory, encoded.source).firsts)
        if people < FEWEST_ROWS:
            raise InputError(
                f"A release needs at least {FEWEST_ROWS} people with usable rows, but the table "
                f"has {people}; provide rows of more people."
            )
        return replace(encoded, steps=(*encoded.steps, *steps))

    def figures_of(self, trained: TrainedModel) -> dict[str, Any]:
        """Return all figures published without noise, except σ, by name."""
        found: dict[str, Any] = {
            "family": trained.settings.model,
            f"number of {MANY[trained.unit]}": int(
                round_down(len(trained.records.firsts), COARSER)
            ),
            "classes": tuple(map(str, getattr(trained.model, "classes_", ()))),
        }
        labels = trained.table.labels
        if labels.counts is None:
            ends = self.domains.get(self.target)
            y: np.ndarray = trained.records.y
            spread = central_scale(y.astype(float), labels.step)[1]
            unit = round_up(spread, UNITS) if ends is None else (ends[1] - ends[0]) / 4
            found["unit of the target"] = unit
        for coded in _coded(trained.table):
            found[f"scaling or levels of {coded.name!r}"] = coded
        return found

    def _recognise(self, raw: pa.Table, trained: TrainedModel) -> Recognition | None:
        """Return the privacy losses that the ledger lists for a model's training records."""
        if self.ledger is None:
            return None
        return self.ledger.recognise(raw.take(pa.array(trained.records.beside[ROW])), self.person)

    def _plan(self, table: TableInMemory, drop: Sequence[str]) -> Any:
        names = set(drop)
        return plan_columns(
            table,
            self.target,
            drop=drop,
            categorical=[n for n in self.categorical if n not in names],
            quantities=[n for n in self.quantity if n not in names],
            missing=self.missing,
            person=self.person,
            classes=self.model == "softmax",
        )

    def allowed(self, spent: np.ndarray) -> np.ndarray:
        """Return the remaining privacy budget η of every record, or person."""
        left = self.target_eta**2 - spent
        gone = int(np.sum(left <= 0))
        if gone:
            who = MANY[ONE_ROW if self.person is None else ONE_PERSON]
            raise BudgetSpentError(
                f"The privacy budget (η = {self.target_eta:g}) of {gone:,} of these {who} has been "
                f"spent by earlier releases; leave out {who} without a remaining budget, or raise "
                "--target-eta. `seepage ledger show` with the table shows the remaining budgets."
            )
        return np.sqrt(left)

    def _vote(
        self,
        trained: TrainedModel,
        allowed: np.ndarray,
        figures: Mapping[str, Any],
        least: float,
        places: np.ndarray,
    ) -> NoiseDraw | None:
        """Draw the noise by a vote, with labels in their public unit.

        ``places`` are the seats of the records or people. Return ``None`` if σ is declared, or if
        no point of the grid is enough. With too few records, return ``None``, or raise an error if
        a vote was requested.
        """
        if self.sigma is not None:
            return None
        unit = figures.get("unit of the target", 1.0)
        records = figures[f"number of {MANY[trained.unit]}"]
        labels = replace(trained.table.labels, spread=unit)
        public = replace(trained, table=replace(trained.table, labels=labels))
        features, classes = trained.records.X.shape[1], labels.counts is not None
        blocks, epsilon = plan_vote(records, features, classes, self.sigma_epsilon)
        if not blocks:
            return None
        grid = noise_grid(unit / self.target_eta, records)
        block = (places * blocks).astype(int)
        return vote_on_noise(public, allowed, grid, block, blocks, epsilon, least)

    def _noise(self, needed: float, vote: NoiseDraw | None) -> float:
        """Return noise that meets the target; raise an error if a declared σ is too small."""
        least = round_up(needed, COARSER)
        if self.sigma is None:
            return least if vote is None else max(least, vote.sigma)
        if needed > self.sigma * (1 + SAME):
            earlier = self.ledger is not None and self.ledger.releases
            refusal = BudgetSpentError if earlier else InputError
            raise refusal(
                f"With the declared σ = {self.sigma:g}, some "
                f"{ONE[ONE_ROW if self.person is None else ONE_PERSON]} would leak more than the "
                f"target of η = {self.target_eta:g}"
                f"{' over this and all earlier releases in the ledger' if earlier else ''}; set "
                f"--sigma to {least:g} or more, or raise --target-eta."
            )
        return self.sigma


def spent_by(trained: TrainedModel, recognition: Recognition | None) -> np.ndarray:
    """Return the η² of every record, or person, over earlier releases."""
    first = trained.records.firsts
    if recognition is None:
        return np.zeros(len(first))
    return np.asarray(recognition.spent[first])  # all records of a person have spent the same


class Rerun(NamedTuple):
    """The result of a procedure on another table."""

    figures: dict[str, Any]  # the figures published without noise
    needed: float  # the smallest σ that respects every privacy budget
    moved: float  # the distance of its numbers from the released ones, before noise


class _Alike(NamedTuple):
    """A table that is encoded like the released one."""

    change: Change
    figures: dict[str, Any]  # all but σ
    allowed: np.ndarray
    step: float  # the unit of the label


@dataclass(frozen=True, eq=False)
class NeighbouringReruns:
    """Reruns of a procedure on tables that differ from the released one in one record, or person.

    A table that is encoded like the released one need not be fitted anew: its model follows from
    the released table's (:class:`~seepage.glm.changes.neighbouring_models.NeighbouringModels`). For
    any other table, everything is computed from its rows.
    """

    procedure: Procedure
    raw: pa.Table
    prepared: Prepared

    def of(
        self, rows: np.ndarray, tables: Sequence[tuple[pa.Table, Sequence[str] | None]]
    ) -> list[Rerun | None]:
        """Return the results on tables in which these rows changed; ``None`` if there are none.

        Each table comes with the columns in which it differs, or ``None`` if the rows are left out.
        """
        found: list[Rerun | None] = [None] * len(tables)
        alike: dict[int, _Alike] = {}
        kept = np.delete(np.arange(self.raw.num_rows), rows)
        rest = TableInMemory(self.raw.take(pa.array(kept)))
        for k, (table, columns) in enumerate(tables):
            with suppress(InputError):
                there = rest
                if columns is not None:
                    own = self.prepared.trained.table
                    there = NeighbouringTable(table, self._before, own, rest, rows, columns)
                encoded = self.procedure.encode(there)
                known = self._alike(table, encoded, rows, columns)
                if known is None:
                    found[k] = self._directly(table, encoded)
                else:
                    alike[k] = known
        moves = self._models.moves([known.change for known in alike.values()]) if alike else ()
        for (k, known), move in zip(alike.items(), moves, strict=True):
            with suppress(InputError):
                if not np.isfinite(move).all():  # it is not certain where the parameters are
                    found[k] = self._directly(tables[k][0])
                    continue
                needed = self._models.largest(known.change, move, known.step, known.allowed)
                figures = self.procedure.with_noise(needed, known.figures, self.prepared)
                found[k] = Rerun(figures, needed, float(np.linalg.norm(move)))
        return found

    @cached_property
    def _models(self) -> NeighbouringModels:
        return neighbouring_models(self.prepared.trained, self.prepared.eta)

    @cached_property
    def _before(self) -> TableInMemory:
        return TableInMemory(self.raw)

    def _alike(
        self,
        table: pa.Table,
        encoded: EncodedTable,
        rows: np.ndarray,
        columns: Sequence[str] | None,
    ) -> _Alike | None:
        """Return what is needed of a table that is encoded like the released one, or ``None``."""
        trained = self.prepared.trained
        there = replace(trained, settings=self.procedure.settings_for(encoded), table=encoded)
        stays = len(self.raw) - (len(rows) if columns is None else 0)
        if not (
            self._models.usable
            and there.settings == trained.settings
            and _coded(encoded) == _coded(trained.table)
            and [a.scale for a in encoded.attributes] == [a.scale for a in trained.table.attributes]
            and len(trained.records) == len(self.raw)
            and len(there.records) == stays
            and sorted(encoded.labels.counts or ()) == sorted(trained.table.labels.counts or ())
        ):
            return None
        allowed = self.procedure.allowed_in(table, there)
        if columns is None:
            change = self._models.change(rows)
        else:
            records, labels = there.records.at(rows), self._models.fit.target[rows]
            if self.procedure.target in columns:
                labels = describe_on(trained.model, records)[0].target
            change = self._models.change(rows, records.X, labels)
        return _Alike(change, self.procedure.figures_of(there), allowed, encoded.labels.step)

    def _directly(self, table: pa.Table, encoded: EncodedTable | None = None) -> Rerun:
        """Return the result on a table from its rows."""
        figures, needed, trained = self.procedure.rerun(table, self.prepared, encoded)
        ours, theirs = (released_numbers(m.model) for m in (self.prepared.trained, trained))
        same = theirs.shape == ours.shape
        moved = float(np.linalg.norm(theirs - ours)) if same else math.nan
        return Rerun(figures, needed, moved)


def released_numbers(model: object) -> np.ndarray:
    """Return the coefficients and the intercept of a model as one vector."""
    return np.concatenate([np.ravel(getattr(model, name)) for name in ("coef_", "intercept_")])


def _coded(table: EncodedTable) -> list[ColumnCoding]:
    """Return the encoding of a table's columns in a publishable form."""
    return [ColumnCoding.of(part) for part in (table.coding.parts if table.coding else ())]
