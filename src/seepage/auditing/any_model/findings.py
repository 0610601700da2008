"""Findings of an audit by attack, as numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from seepage.attacks.attribute.any_model import ColumnGuesses
from seepage.attacks.membership.inference import MembershipInferenceResult
from seepage.auditing.any_model.held_out import HeldOutFinding
from seepage.auditing.findings import Gate, StructuralRisk
from seepage.tables.result_table import PlottedNumbers, Reportable, ResultTable
from seepage.tables.source import build_frame


@dataclass(frozen=True, repr=False)
class AttackAudit(Reportable, ResultTable):
    """Findings of an audit by attack; their kind is *attack*, never a bound.

    Parameters
    ----------
    source, target, model
        The audited data, the predicted column and the model, in words.
    records
        The number of records that the model was fitted on.
    attacks
        The results of LiRA and RMIA.
    attacked
        The positions of the records that were attacked: all, or some drawn at random.
    shadows, targets
        The number of shadow models fitted, and the number of models attacked.
    structure
        Structural risks, found without an attack.
    by_record
        The per-record values of the structural risks, by name.
    guesses
        How often each column of a record is guessed correctly, with the model and without it.
    held_out
        The held-out error, and the generalisation gap.
    steps
        The processing steps, one sentence each.
    versions
        Versions of the software that computed the audit.
    groups
        The group of every record, by the name of the grouping.
    gates
        The limits that were checked. An attack within a limit does not prove that the limit is met.
    preset
        The preset of the limits.
    verdict
        A function that returns the verdict in words, as the report states it.
    """

    source: str
    target: str
    model: str
    records: int
    attacks: tuple[MembershipInferenceResult, ...]
    attacked: np.ndarray
    shadows: int
    targets: int
    structure: tuple[StructuralRisk, ...]
    by_record: Mapping[str, np.ndarray]
    guesses: tuple[ColumnGuesses, ...]
    held_out: HeldOutFinding
    steps: tuple[str, ...]
    versions: dict[str, str]
    groups: Mapping[str, np.ndarray] = field(default_factory=dict)
    gates: tuple[Gate, ...] = ()
    preset: str | None = None
    verdict: Callable[[AttackAudit], str] | None = field(default=None, compare=False)

    value_column = "auc"

    def table(self, library: str | None = None) -> Any:
        """Return a data frame with one row per membership inference attack."""
        rates = [attack.tpr(0.01) for attack in self.attacks]
        columns = {
            "attack": [attack.method for attack in self.attacks],
            "auc": [attack.auc for attack in self.attacks],
            "low": [attack.interval.low for attack in self.attacks],
            "high": [attack.interval.high for attack in self.attacks],
            "tpr_at_1_percent": [one.rate for one in rates],
            "tpr_low": [one.interval.low for one in rates],
            "tpr_high": [one.interval.high for one in rates],
        }
        return build_frame(columns, library or "pyarrow")

    def drawing(self) -> PlottedNumbers:
        """Return the data of :meth:`plot`: the area under each attack's ROC curve."""
        spans = np.array([(one.auc, *one.interval) for one in self.attacks])
        names, name = [one.method for one in self.attacks], "membership inference: AUC"
        values, low, high = spans.T
        ends, chance = (low, high), (0.5, "chance")
        return PlottedNumbers(values, names, name, "attacks", *ends, chance, ranked=False)

    @property
    def strongest(self) -> MembershipInferenceResult:
        """The attack with the largest area under its ROC curve."""
        return max(self.attacks, key=lambda attack: attack.auc)

    @property
    def most_guessed(self) -> ColumnGuesses | None:
        """The column with the largest gain in correct guesses for members over non-members."""
        return max(self.guesses, key=lambda one: one.with_model.difference, default=None)

    def __repr__(self) -> str:
        found = sum(risk.found is True for risk in self.structure)
        looked = sum(risk.found is not None for risk in self.structure)
        held, most = self.held_out, self.most_guessed
        column = "" if most is None else f" most leaked column {most!r};"
        verdict = "" if self.verdict is None else f" {self.verdict(self)}"
        return (
            f"<audit of {self.model} by attack:{verdict} {self.strongest!r};{column} "
            f"{held.error_name} on new records {held.error:.3g}, {held.constant:.3g} for a "
            f"constant prediction; {found} of {looked} structural risks found>"
        )
