"""From a table to what is published: one procedure that can be run again without a record.

All that depends on the data and leaves without noise is on a coarse grid: the scaling of the
columns, the noise, the number of records. The rest is declared: the penalty, the target, the
family. So small changes of a record move nothing but the coefficients, and their leakage, given the
figures on the grid, is all there is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from seepage.auditing.audit import FEWEST_ROWS, check_noise_or_target
from seepage.auditing.intake.table import HOLDERS, UNITS, TableInMemory, encode, plan_columns
from seepage.auditing.measures import record_leakage
from seepage.auditing.release.ledger import ReleaseLedger
from seepage.auditing.release.rare_names import settle_rare_names
from seepage.auditing.release.released_model import ColumnCoding
from seepage.auditing.trained_model import FitSettings, RecordsInMemory, TrainedModel, choose_model
from seepage.core.result import round_down, round_up
from seepage.errors import InputError

RELEASE_L2 = 1e-2  # the penalty where none is declared; it never depends on the data
Domain = Mapping[str, tuple[float, float]]
_COUNTS = (1.0, 2.0, 5.0)  # the grid of numbers of records


@dataclass(frozen=True, eq=False)
class Prepared:
    """What the procedure made of a table, all but the noise itself."""

    trained: TrainedModel
    eta: np.ndarray  # the leakage of every record at σ = 1
    records: list[str]  # what every record is known by in the ledger
    spent: np.ndarray  # what earlier releases told about it, η²
    sigma: float
    figures: dict[str, Any]  # everything that leaves without noise, by name


@dataclass(frozen=True, kw_only=True)
class Procedure:
    """What to release of a table, declared before the table is looked at."""

    target: str
    model: str | None = None
    l2: float = RELEASE_L2
    sigma: float | None = None
    target_eta: float = 1.0
    drop: Sequence[str] = ()
    categorical: Sequence[str] = ()
    quantities: Sequence[str] = ()
    missing: str = "refuse"
    rare: str = "refuse"  # what to do with values of few records
    holders: int = HOLDERS
    # The ends of columns: they scale the column, and records are replaced within them
    domain: Domain = field(default_factory=dict)
    identity: str | None = None  # the column that tells records in the ledger
    ledger: ReleaseLedger | None = None

    def fit(self, raw: pa.Table) -> TrainedModel:
        """Return the model of a table, without noise."""
        check_noise_or_target(self.sigma, self.target_eta)
        if self.missing == "impute":
            raise InputError(
                "What fills the gaps would be one more thing that leaves: fill them beforehand, or "
                "say --missing drop."
            )
        if self.holders < 1:
            raise InputError(f"--least-holders must be at least one, not {self.holders}.")
        drop = self._left_out(raw)
        plan = self._plan(raw, drop)
        settled, more, steps = settle_rare_names(raw, plan, self.holders, self.rare)
        if steps:
            plan = self._plan(settled, (*drop, *more))
        encoded = encode(TableInMemory(settled), plan, public=self.domain)
        encoded = replace(encoded, steps=(*encoded.steps, *steps))
        rows = len(encoded.source)
        if rows < FEWEST_ROWS:
            raise InputError(f"Only {rows} rows can be used, too few for a release.")
        kind = choose_model(self.model, encoded.target_kind, encoded.target)
        settings = FitSettings(kind, self.l2)
        return TrainedModel(settings.fit(encoded.source), settings, encoded)

    def prepare(self, raw: pa.Table) -> Prepared:
        """Fit, measure and choose the noise."""
        trained = self.fit(raw)
        eta = record_leakage(trained)
        records: list[str] = []
        spent = np.zeros(len(eta))
        if self.ledger is not None:
            records = self.ledger.records(raw.take(pa.array(rows_of(trained))), self.identity)
            spent = self.ledger.spent(records)
        sigma = self._enough(eta, spent) if self.sigma is None else self.sigma
        figures: dict[str, Any] = {
            "σ": sigma,
            "family": trained.settings.model,
            "number of records": int(round_down(len(eta), _COUNTS)),
            "classes": tuple(map(str, getattr(trained.model, "classes_", ()))),
        }
        labels, coding = trained.table.labels, trained.table.coding
        if labels.counts is None:
            ends = self.domain.get(self.target)
            unit = round_up(labels.step, UNITS) if ends is None else (ends[1] - ends[0]) / 4
            figures["unit of the target"] = unit
        for part in () if coding is None else coding.parts:
            figures[f"scaling or levels of {part.name!r}"] = ColumnCoding.of(part, scale=True)
        return Prepared(trained, eta, records, spent, sigma, figures)

    def _left_out(self, raw: pa.Table) -> tuple[str, ...]:
        """Return what is not used: what was asked for, and what only tells records apart."""
        if self.identity is not None and self.identity in raw.column_names:
            return tuple(dict.fromkeys([*self.drop, self.identity]))
        return tuple(self.drop)

    def _plan(self, raw: pa.Table, drop: Sequence[str]) -> Any:
        names = set(drop)
        return plan_columns(
            TableInMemory(raw),
            self.target,
            drop=drop,
            categorical=[n for n in self.categorical if n not in names],
            quantities=[n for n in self.quantities if n not in names],
            missing=self.missing,
        )

    def _enough(self, eta: np.ndarray, spent: np.ndarray) -> float:
        """Return the noise with which no record leaks more than the target over all releases."""
        left = self.target_eta**2 - spent
        gone = int(np.sum(left <= 0))
        if gone:
            raise InputError(
                f"Earlier releases in the ledger have told {gone:,} of these records up to the "
                f"η = {self.target_eta:g} that is allowed over all of them: nothing more may "
                "leave; leave those records out, or raise --target-eta."
            )
        return round_up(float(np.max(eta / np.sqrt(left))))


def rows_of(trained: TrainedModel) -> np.ndarray:
    """Return the numbers of the records in the table."""
    source = trained.source
    assert isinstance(source, RecordsInMemory)  # noqa: S101 - a release is made of a table in memory
    return source.row_index
