"""An attack on releases, which distinguishes a table from a changed copy by published figures.

The procedure is run on a table and on a changed copy. In the copy, a record, or a person with all
their records, is left out or has another label, other numbers or another category. Releases are
then made from both tables, with σ drawn again each time. An attacker who knows both tables decides
between them by the likelihood ratio of all published figures::

    log P(σ | A)/P(σ | B) + (‖x − θ_B‖² − ‖x − θ_A‖²)/2σ² + log P(r | A, x)/P(r | B, x)

Here x denotes the noisy numbers, θ the numbers without noise, and r the noisy error rates, which
only large releases publish. This test is optimal. The attacker also knows each record's voting
block, so votes are computed once per table.

The success rate of the attack is compared with the ledger's bound for the release and the record:
``PrivacyLoss.membership`` of the record's μ, ε and δ. Since μ is inversely proportional to σ, the
bound for any other σ follows. A replacement moves the noisy numbers by a different distance,
``μ = ‖θ_A − θ_B‖/σ``, and may require other noise. The bound for a replacement combines this μ with
the ε and δ that the ledger's entry lists for that kind of replacement. η does not bound finite
changes. If a published figure differs between the tables, it discloses the change, and the bound is
100 %.

Two further bounds are reported. The first uses the ε and δ of σ for this pair of tables
(:meth:`~seepage.auditing.release.noise_vote.NoiseDraw.beside`); a ledger entry must state at least
these values. The second uses ``ε = ε₀ + log 1/a`` from one table, without δ. Here ε₀ is the ε of a
vote, and a is the probability that the σ of one vote is enough. A changed table that needs more
noise can refute the second bound.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import typer
from scipy.special import betaincinv

from seepage.auditing.command import planned
from seepage.auditing.findings import LEFT_OUT, RELEASED_OR_NOT
from seepage.auditing.intake.parquet import read_whole
from seepage.auditing.questions import FileOptions, Limits, ReleaseQuestion
from seepage.auditing.release.command import release_entry
from seepage.auditing.release.contents import read_release
from seepage.auditing.release.disclosure import NeighbouringTables, rows_beside
from seepage.auditing.release.error_rates import ErrorRates, log_likelihood
from seepage.auditing.release.ledger import (
    PastRelease,
    ReleaseLedger,
    UnrecognisedRecordsWarning,
    find_ledger,
)
from seepage.auditing.release.making import make_release
from seepage.auditing.release.noise_vote import Seats
from seepage.auditing.release.procedure import Prepared, Procedure, released_numbers
from seepage.auditing.release.released_model import ReleasedModel
from seepage.auditing.report.words import percent
from seepage.auditing.trained_model import ROW
from seepage.core.noise import Gaussian
from seepage.core.release import release
from seepage.core.result import NOTICE
from seepage.errors import InputError
from seepage.risks.privacy_loss import PrivacyLoss
from seepage.support.files import check_path
from seepage.support.number_check import check_count
from seepage.support.text_table import text_table
from seepage.tables.names import shown


@dataclass(frozen=True)
class Attack:
    """How often releases of a table are distinguished from those of a changed copy."""

    row: int
    change: str  # the change to the record, in words
    disclosed: tuple[str, ...]  # the published figures that differ, which reveal the table
    releases: int  # the number of releases of each of the two tables
    right: int  # how often the test named the right table, over the releases of both
    stated: float  # the ledger's bound on the success rate, averaged over the releases
    of_pair: float = 1.0  # the bound by ε and δ of these two tables
    # The bound by the ε of the table alone, without δ, if σ is drawn
    by_epsilon: float | None = None

    @property
    def seen(self) -> float:
        """The success rate of the test."""
        return self.right / (2 * self.releases)

    def seen_at_least(self, level: float = 0.999) -> float:
        """Return the one-sided lower confidence limit of the rate (Clopper and Pearson 1934)."""
        if not self.right:
            return 0.0
        return float(betaincinv(self.right, 2 * self.releases - self.right + 1, 1 - level))

    def exceeds(self, level: float = 0.999) -> bool:
        """Return whether the success rate is significantly above a bound that uses ε and δ."""
        return self.seen_at_least(level) > min(self.stated, self.of_pair)

    def refutes_epsilon(self, level: float = 0.999) -> bool:
        """Return whether the success rate is significantly above the bound that uses only ε."""
        return self.by_epsilon is not None and self.seen_at_least(level) > self.by_epsilon


@dataclass(frozen=True, eq=False)
class Statement:
    """The ledger's bound for one record, or person, in one release."""

    loss: PrivacyLoss
    sigma: float  # the noise of the release
    beside: Mapping[str, tuple[float, float]]  # ε and δ of replacements, by what is replaced

    @classmethod
    def of(
        cls, listed: ReleaseLedger, raw: pa.Table, prepared: Prepared, rows: np.ndarray
    ) -> Statement:
        """Return the bound for the rows of one person, from a ledger with a single entry."""
        (entry,) = listed.entries
        used = prepared.trained.records.beside[ROW]
        people = listed.digests.people(raw.take(pa.array(used)))
        # By place, since equal rows are recognised together, and one of them was left out.
        if not isinstance(entry, PastRelease) or not entry.people.same_rows(people):
            raise InputError(
                "The ledger's entry for the release lists rows that differ from this table's, or "
                "are in another order; pass the table from which the release was made."
            )
        place = np.flatnonzero(np.isin(used, rows))[:1]
        replaced = entry.about.get("replaced", {})
        beside = {name: (told["epsilon"], told["delta"]) for name, told in replaced.items()}
        return cls(entry.loss.at(place), float(entry.about["sigma"]), beside)

    def limit(self, change: str, moved: float, sigma: np.ndarray) -> np.ndarray:
        """Return the largest success rate that the ledger allows for releases with these σ.

        μ is inversely proportional to σ. ``moved`` is the distance by which a replacement moves the
        numbers. A replacement without listed ε and δ has no bound.
        """
        if change != LEFT_OUT:
            return _success(moved / sigma, *self.beside.get(change, (0.0, 1.0)))
        mu, epsilon, delta = (float(self.loss.columns[n][0]) for n in ("mu", "epsilon", "delta"))
        return _success(mu * self.sigma / sigma, epsilon, delta)


def _success(mu: np.ndarray, epsilon: float, delta: float = 0.0) -> np.ndarray:
    return PrivacyLoss.of(len(mu), mu=mu, epsilon=epsilon, delta=delta).membership()


@dataclass(frozen=True, eq=False)
class _World:
    """The distribution of the releases that are made from one table."""

    prepared: Prepared

    @property
    def sigmas(self) -> np.ndarray:
        """The noise scales that may be published."""
        vote = self.prepared.vote
        return np.array([self.prepared.sigma]) if vote is None else vote.grid

    @property
    def chance(self) -> np.ndarray:
        """The probability of publishing each noise scale."""
        vote = self.prepared.vote
        return np.ones(1) if vote is None else vote.published

    def beside(self, other: _World) -> tuple[float, float]:
        """Return ε and δ of a drawn σ and the noisy error rates, for this table and another."""
        vote = self.prepared.vote
        epsilon, delta = (0.0, 0.0) if vote is None else vote.beside(other.prepared.least)
        return epsilon + self.rates.epsilon, delta

    @property
    def epsilon_alone(self) -> float:
        """The ε of a drawn σ and the noisy error rates, from this table alone, without δ."""
        vote = self.prepared.vote
        drawn = 0.0 if vote is None else vote.epsilon - math.log(vote.probability)
        return drawn + self.rates.epsilon

    @property
    def figures(self) -> dict[str, object]:
        """The figures published besides σ and the noisy numbers."""
        return {name: value for name, value in self.prepared.figures.items() if name != "σ"}

    @property
    def numbers(self) -> np.ndarray:
        """The released numbers before noise."""
        return released_numbers(self.prepared.trained.model)

    @cached_property
    def rates(self) -> ErrorRates:
        """The error rates of the noisy models."""
        return ErrorRates(self.prepared)

    def released(self, count: int) -> tuple[np.ndarray, list[ReleasedModel]]:
        """Make releases; return the indices of their σ, and their noisy models."""
        model = self.prepared.trained.model
        which = np.random.default_rng().choice(len(self.sigmas), count, p=self.chance)
        return which, [ReleasedModel(release(model, Gaussian(self.sigmas[k]))) for k in which]


def attack_release(
    procedure: Procedure,
    raw: pa.Table,
    *,
    releases: int = 1000,
    row: int | None = None,
    listed: ReleaseLedger | None = None,
) -> Iterator[Attack]:
    """Yield the attack's result for each change to a record (by default, the most exposed).

    With ``procedure.person``, all records of a person change together. ``listed`` is a ledger with
    only the entry of the release. If it is not given, a new release is made, as ``seepage release``
    does, and its entry is used.
    """
    listed = listed or listing_of(procedure, raw)
    seats = Seats.of(raw, procedure.person, _seed(listed))
    prepared = procedure.prepare(raw, seats)
    chosen = int(prepared.rows[np.argmax(prepared.eta)]) if row is None else row
    inside = 0 <= chosen < raw.num_rows
    rows = rows_beside(raw, chosen, procedure.person) if inside else np.array([-1])
    if not np.isin(prepared.rows, rows).any():
        raise InputError(f"Row {chosen} is not in the release; choose another with --row.")
    stated, ours = Statement.of(listed, raw, prepared, rows), _World(prepared)
    if not np.any(np.isclose(stated.sigma, ours.sigmas)):
        raise InputError(
            f"The release has σ = {stated.sigma:g}, which cannot be drawn with these options; use "
            "the options with which the release was made."
        )
    for change, other, *_ in NeighbouringTables(procedure, raw, prepared).of(rows):
        gone = other.num_rows < raw.num_rows
        try:
            theirs = _World(procedure.prepare(other, seats.without(rows) if gone else seats))
        except InputError:
            yield Attack(chosen, change, (RELEASED_OR_NOT,), 0, 0, 1.0)
            continue
        names = dict.fromkeys([*ours.figures, *theirs.figures])
        told = tuple(n for n in names if ours.figures.get(n) != theirs.figures.get(n))
        if told or not np.array_equal(ours.sigmas, theirs.sigmas):
            yield Attack(chosen, change, told or ("σ",), 0, 0, 1.0)
        else:
            yield _told_apart(chosen, change, (ours, theirs), releases, stated)


def _seed(listed: ReleaseLedger) -> int | None:
    """Return the seed that assigns rows to voting blocks, if the release's entry states it."""
    seats = listed.entries[0].about.get("seats")
    try:
        return None if seats is None else int(seats, 16)
    except (TypeError, ValueError):
        raise InputError(
            "The ledger's entry for the release does not state which block each row voted in "
            "('seats' is not a hexadecimal number). The ledger was changed; restore it from a "
            "copy."
        ) from None


def listing_of(procedure: Procedure, raw: pa.Table) -> ReleaseLedger:
    """Make a release, and return a ledger with only the release's entry."""
    ledger = procedure.ledger or ReleaseLedger()
    procedure = replace(procedure, ledger=ledger)
    made = make_release(procedure, raw, limits=Limits(), name="", tell=lambda _: None)
    return replace(ledger, entries=(release_entry(procedure, made),))


def _told_apart(
    row: int, change: str, worlds: tuple[_World, _World], count: int, statement: Statement
) -> Attack:
    """Make releases of two tables, and decide for each release which table it came from."""
    first, second = worlds
    moved = float(np.linalg.norm(first.numbers - second.numbers))
    right, stated, pair, alone = 0, 0.0, 0.0, 0.0
    with np.errstate(divide="ignore", invalid="ignore"):
        odds = np.log(first.chance) - np.log(second.chance)  # infinite where one cannot draw it
    for world, sign in ((first, 1.0), (second, -1.0)):
        which, models = world.released(count)
        sigma, x = world.sigmas[which], np.array([released_numbers(model) for model in models])
        near = np.sum((x - second.numbers) ** 2, axis=1) - np.sum((x - first.numbers) ** 2, axis=1)
        rates = np.array([_rate_odds(model, world, worlds) for model in models])
        right += int(np.sum(sign * (odds[which] + near / (2 * sigma**2) + rates) > 0))
        stated += float(np.sum(statement.limit(change, moved, sigma)))
        pair += float(np.sum(_success(moved / sigma, *first.beside(second))))
        alone += float(np.sum(_success(moved / sigma, first.epsilon_alone)))
    drawn = first.prepared.vote is not None
    stated, pair, alone = (total / (2 * count) for total in (stated, pair, alone))
    return Attack(row, change, (), count, right, stated, pair, alone if drawn else None)


def _rate_odds(model: ReleasedModel, world: _World, worlds: tuple[_World, _World]) -> float:
    """Draw the error rates that a release publishes, and return their log-likelihood ratio."""
    if not world.rates.published:
        return 0.0
    first, second = (each.rates.exact(model) for each in worlds)
    drawn = world.rates.noisy(first if world is worlds[0] else second)
    return log_likelihood(drawn, first) - log_likelihood(drawn, second)


def run_release_attack(
    table: Path,
    question: ReleaseQuestion,
    options: FileOptions,
    *,
    row: int | None,
    releases: int,
    folder: Path | None = None,
    ledger: Path | None = None,
) -> bool:
    """Run the attack, print its success rates and the bounds; return whether all bounds hold.

    ``folder`` is a release whose ledger entry is tested. If it is not given, a new release is made.
    """
    check_count(releases, "releases", 100)
    raw = read_whole(table, options)
    procedure, listed = Procedure(**vars(planned(question))), None
    if folder is not None:
        before, listed = _listed(folder, ledger)
        procedure = replace(procedure, ledger=before if before.releases else None)
        _check_same(procedure, raw, folder, listed)
    elif ledger is not None:
        raise InputError(
            "--ledger names the ledger that lists a release; name that release with --folder, or "
            "leave --ledger out."
        )
    with warnings.catch_warnings():
        # The release warned of records that its ledger cannot tell; every table here would again.
        warnings.simplefilter("ignore", UnrecognisedRecordsWarning)
        found = list(attack_release(procedure, raw, releases=releases, row=row, listed=listed))
    level = 1 - 0.001 / len(found)  # 99.9 % over all changes together
    cells = [(attack.change, *_cells(attack)) for attack in found]
    heads = ("CHANGE", "ATTACK SUCCEEDS", "BOUND", "BOUND BY ε ALONE", "FIGURES THAT DIFFER")
    typer.echo(
        f"Row {found[0].row} was attacked with {releases:,} releases of each table; chance is 50 %."
    )
    typer.echo(text_table(cells, heads))
    for attack in found:
        if attack.refutes_epsilon(level):
            typer.echo(
                f"The bound by ε alone is refuted (99.9 % confidence) for the change "
                f"“{attack.change}”. The changed table needs different noise, so σ can rule out "
                "one of the two tables. δ covers this case; declaring σ with --sigma avoids it."
            )
    failed = [attack.change for attack in found if attack.exceeds(level)]
    for change in failed:
        typer.echo(
            f"ABOVE THE LEDGER'S BOUND (99.9 % confidence) for the change “{change}”. Do not "
            "release; please report this as a bug."
        )
    typer.echo(NOTICE)
    return not failed


def _listed(folder: Path, ledger: Path | None) -> tuple[ReleaseLedger, ReleaseLedger]:
    """Return the ledger before a release, and a ledger with only the release's entry."""
    path = find_ledger() if ledger is None else ledger
    for place in (folder, path):
        check_path(place)
    if not path.is_file():
        raise InputError(
            f"There is no ledger {shown(path.name)}; name the ledger of the release with --ledger."
        )
    return ReleaseLedger.read(path).split_at(folder)


def _check_same(procedure: Procedure, raw: pa.Table, folder: Path, listed: ReleaseLedger) -> None:
    """Raise an error if a folder was made from another table, or with other options."""
    published, about = read_release(folder), listed.entries[0].about
    trained = procedure.fit(raw)
    items = {item.name: item for item in published.items}
    noise = items["noise σ"]
    asked = {
        "target": (about.get("target"), procedure.target),
        "family": (about.get("family"), trained.settings.model),
        "unit": (about.get("unit"), trained.unit),
        "--target-eta": (about.get("target_eta"), procedure.target_eta),
        "--l2": (items["penalty λ"].value, trained.settings.l2),
        "--sigma": (noise.value if noise.protection == "declared" else None, procedure.sigma),
    }
    for name, (theirs, ours) in asked.items():
        if theirs != ours:
            raise InputError(
                f"The release in {shown(folder.name)} was made from another table or with other "
                f"options: its {name} is {theirs}, not {ours}. Use the same table and options."
            )
    coded = ReleasedModel.of_table(trained.model, trained.table.coding).columns
    if published.model.columns != coded:
        raise InputError(
            f"The release in {shown(folder.name)} was made from another table or with other "
            "options: its columns are encoded differently. Use the same table and options."
        )


def _cells(attack: Attack) -> tuple[str, str, str, str]:
    if attack.disclosed:
        return "always", "always", "", ", ".join(attack.disclosed)
    alone = "" if attack.by_epsilon is None else percent(attack.by_epsilon)
    return percent(attack.seen), percent(attack.stated), alone, "none"
