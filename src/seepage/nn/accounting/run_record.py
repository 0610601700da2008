"""The record of one run: sums for every data record, and the ledger of its steps."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from seepage.errors import InputError
from seepage.nn.accounting.accounted import Accounted
from seepage.nn.accounting.measurement import first_difference, identity, ledger_difference
from seepage.nn.accounting.spectrum_sketch import SpectrumBracket, SpectrumSketch
from seepage.nn.accounting.tally import Tally
from seepage.nn.privacy.individual import IndividualTally
from seepage.nn.privacy.individual_privacy import IndividualPrivacy
from seepage.nn.privacy.ledger import Ledger
from seepage.nn.privacy.run import guarantee, renyi
from seepage.nn.sampling.subsampling import POISSON
from seepage.nn.sampling.theorem4 import FailureBudget

VERSION = 2


class RunRecord(Accounted):
    """What is known of a run without its network: it can be read, stored, and joined with others.

    Parameters
    ----------
    records
        How many records the data set has.
    probes
        How many estimates of the trace each step gave.
    about
        The unknowns, in words.
    individual
        Whether the differential privacy of every record by itself is kept.
    sketch
        Sketches of the information about some records, or ``None``.
    measurement
        What identifies the measurement (:mod:`seepage.nn.accounting.measurement`); ``None`` where a state is
        to be loaded that tells it.
    """

    def __init__(
        self,
        records: int,
        probes: int,
        about: str,
        *,
        individual: bool,
        sketch: SpectrumSketch | None,
        measurement: Mapping[str, Any] | None = None,
    ) -> None:
        self.records = records
        self.probes = probes
        self.about = about
        self.measurement = None if measurement is None else dict(measurement)
        self.unknowns = 0
        self.unobserved = 0
        self.ledger = Ledger()
        self.tally = Tally(records)
        self.individual = IndividualTally(records) if individual else None
        self.sketch = sketch

    @property
    def steps(self) -> int:
        """How many steps the run has taken."""
        return self.ledger.steps

    def information(self, amplified: bool = True) -> tuple[Tensor, Tensor]:
        """Return the trace of the information about each record, and its variance."""
        if self.unobserved:
            raise InputError(
                f"{self.unobserved} steps were taken without observe(): what they gave away is not "
                "known. Call observe(index, x, y) before every step."
            )
        return self.tally.moments(self.probes, amplified)

    @property
    def failure_probability(self) -> float:
        """The probability, over the steps taken so far, with which the factor κ may fail.

        Zero but for ``amplification="theorem4"``: what has been spent of its ``delta``.
        """
        facts = self.measurement or {}
        if facts.get("amplification") != "theorem4":
            return 0.0
        return FailureBudget(facts["delta"], facts["announced steps"]).spent(self.steps)

    def fil(self) -> SpectrumBracket:
        """Return FIL, ``sqrt(‖I‖₂)``, of the sketched records, between two bounds."""
        if self.sketch is None:
            raise InputError(
                "No sketches were kept; give sketch=8 and sketch_records=[…] to the accountant."
            )
        return self.sketch.bracket()

    def individual_privacy(self) -> IndividualPrivacy:
        """Return the Rényi differential privacy of every record by itself.

        None of its numbers is above that of the whole run, which holds for every record.
        """
        if self.individual is None:
            raise InputError("The accountant was told individual=False; nothing was kept.")
        if any(math.isinf(entry.sensitivity) for entry in self.ledger):
            raise InputError("Gradients that are not clipped have no differential privacy.")
        if any(entry.sampler != POISSON for entry in self.ledger):
            raise InputError(
                "The privacy of single records is told for Poisson batches only: in other ones a "
                "record is replaced by another, whose gradient is not known."
            )
        orders = self.individual.orders
        worst = torch.as_tensor(renyi(self.ledger, orders), device=self.tally.uses.device)
        total, error = self.individual.totals(self.steps, self.tally.uses, worst)
        total = torch.fmin(total, worst)
        return IndividualPrivacy(
            orders, total.cpu().numpy(), error.cpu().numpy(), self._run_epsilon()
        )

    def _run_epsilon(self) -> Callable[[float], float]:
        """Return the run's ε as a function of δ, for the steps taken so far."""
        return partial(_epsilon, Ledger(tuple(self.ledger)))

    def _parts(self) -> dict[str, Tally | IndividualTally | SpectrumSketch]:
        found = {"tally": self.tally, "individual": self.individual, "sketch": self.sketch}
        return {name: part for name, part in found.items() if part is not None}

    def to(self, device: torch.device) -> None:
        """Move all sums to a device."""
        for part in self._parts().values():
            for name, tensor in part.tensors().items():
                setattr(part, name, tensor.to(device))

    def clear(self) -> None:
        """Set all sums to zero; the steps stay counted."""
        for part in self._parts().values():
            for name, tensor in part.tensors().items():
                setattr(part, name, torch.zeros_like(tensor))

    def state_dict(self) -> dict[str, Any]:
        """Return everything as tensors by name, and the rest as text under ``"facts"``.

        No pickle is needed to store it: safetensors takes the tensors and the text.
        """
        state: dict[str, Any] = {
            f"{kind}.{name}": tensor.detach().cpu().clone()
            for kind, part in self._parts().items()
            for name, tensor in part.tensors().items()
        }
        state["facts"] = json.dumps(self._facts())
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state that :meth:`state_dict` gave; it must be of a run like this one."""
        facts = _read_facts(state)
        mine = self._facts()
        if self.measurement is None:
            mine["measurement"] = facts["measurement"]
        names = ("records", "probes", "about", "sketched")
        theirs, own = identity(facts, names), identity(mine, names)
        name = first_difference(theirs, own)
        if name is not None:
            raise InputError(
                f"The state is of a run with {name} = {theirs.get(name)!r}, not {own.get(name)!r}."
            )
        wanted = {
            f"{kind}.{name}": (part, name, tensor)
            for kind, part in self._parts().items()
            for name, tensor in part.tensors().items()
        }
        found = {name for name in state if name != "facts"}
        if found != set(wanted):
            odd = sorted(found ^ set(wanted))[0]
            raise InputError(f"The state and this accountant do not keep the same: see {odd!r}.")
        for full, (part, name, tensor) in wanted.items():
            if state[full].shape[:3] != tensor.shape[:3]:  # a sketch learns its width as it goes
                raise InputError(
                    f"{full} of the state has the shape {tuple(state[full].shape)}, not "
                    f"{tuple(tensor.shape)}."
                )
            setattr(part, name, state[full].to(tensor.device, copy=True))
        self._take(facts)

    def absorb(self, share: RunRecord) -> None:
        """Add what another process saw of the same run."""
        for kind, part in self._parts().items():
            other = share._parts()[kind]
            if isinstance(part, SpectrumSketch):
                part.absorb(other)  # type: ignore[arg-type]
                continue
            for name, tensor in part.tensors().items():
                tensor += getattr(other, name).to(tensor.device)

    def _facts(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "records": self.records,
            "probes": self.probes,
            "about": self.about,
            "measurement": self.measurement,
            "sketched": None if self.sketch is None else self.sketch.chosen.tolist(),
            "unknowns": self.unknowns,
            "unobserved": self.unobserved,
            "ledger": self.ledger.to_json(),
        }

    def _take(self, facts: Mapping[str, Any]) -> None:
        self.measurement = facts["measurement"]
        self.unknowns = facts["unknowns"]
        self.unobserved = facts["unobserved"]
        self.ledger = Ledger.from_json(facts["ledger"])


def join_shares(shares: Sequence[RunRecord]) -> RunRecord:
    """Return the whole run, given what each of its processes saw of it.

    In data-parallel training every process observes its own part of each batch; the sums of a
    record add up. All shares must have taken the same steps.
    """
    if not shares:
        raise InputError("There are no shares to join.")
    check_alike(shares)
    first = shares[0]
    whole = RunRecord(
        first.records,
        first.probes,
        first.about,
        individual=first.individual is not None,
        sketch=None,
        measurement=first.measurement,
    )
    if first.sketch is not None:
        whole.sketch = SpectrumSketch(
            first.sketch.chosen.tolist(), first.sketch.rank, first.records
        )
    whole.unknowns = max(share.unknowns for share in shares)  # zero where all batches were empty
    whole.ledger = Ledger(tuple(first.ledger))
    whole.unobserved = max(share.unobserved for share in shares)
    for share in shares:
        whole.absorb(share)
    return whole


def check_alike(runs: Sequence[RunRecord]) -> None:
    """Raise unless records are of different runs that measured the same, in the same steps."""
    if len({id(run) for run in runs}) < len(runs):
        raise InputError("The same run is given twice; each must be one of its own.")
    first = runs[0]
    for other in runs[1:]:
        _check_pair(first, other)
    # A run that saw only empty batches does not know how many numbers are unknown.
    sizes = sorted({run.unknowns for run in runs} - {0})
    if len(sizes) > 1:
        raise InputError(
            f"The runs are about records with {sizes[0]} and with {sizes[1]} unknown numbers."
        )


def _check_pair(first: RunRecord, other: RunRecord) -> None:
    names = ("records", "probes", "about")
    mine, theirs = (identity(run._facts(), names) for run in (first, other))
    name = first_difference(mine, theirs)
    if name is not None:
        raise InputError(f"The runs differ in {name}: {mine.get(name)!r} and {theirs.get(name)!r}.")
    difference = ledger_difference(first.ledger, other.ledger)
    if difference is not None:
        raise InputError(f"The runs did not take the same steps: {difference}.")
    if list(first._parts()) != list(other._parts()):
        raise InputError("Only some of the runs kept sketches, or the privacy of single records.")


def _read_facts(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts of a stored state, or raise if it is none of this version."""
    try:
        facts = json.loads(state["facts"])
        version = facts["version"]
    except (KeyError, TypeError, ValueError):
        raise InputError(
            "This is no state of an accountant: load what state_dict() returned, with its text "
            "under 'facts'."
        ) from None
    if version != VERSION:
        raise InputError(
            f"The state has the format {version!r}, not {VERSION}: states of other versions of "
            "seepage do not tell all that identifies a run, so this run must begin anew."
        )
    return dict(facts)


def _epsilon(ledger: Ledger, delta: float) -> float:
    return guarantee(ledger, delta).epsilon
