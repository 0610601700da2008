"""The attacker in the box: releases of a table and of a changed one, told apart by all figures.

The procedure is run on a table and on one in which a record is left out, has another label or other
numbers. Then releases are made of both, σ drawn anew each time, and somebody who knows everything
but which of the two it was decides by the likelihood ratio of all that is published::

    log P(σ | A) − log P(σ | B) + (‖x − θ_B‖² − ‖x − θ_A‖²)/2σ²

with x the noisy numbers and θ the numbers without noise. No test is right more often. The attacker
even knows which block of the vote every record is in, so opinions are formed once for each table.
What a release states is ``accuracy_beside(‖θ_A − θ_B‖/σ, ½, ε)``: the μ of this finite change, not
η, which bounds no finite change, and the ε of the figures drawn beside. Where a published figure
differs between the tables, or where a σ would not have been enough for the other one, it is
disclosed, and the statement is certainty. The error rates of large releases, and their ε, are left
out of both.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import typer
from scipy.special import betaincinv

from seepage.auditing.command import planned
from seepage.auditing.intake.files import read_file
from seepage.auditing.questions import FileOptions, ReleaseQuestion
from seepage.auditing.release.disclosure import neighbours_of
from seepage.auditing.release.noise_vote import block_opinions, chances
from seepage.auditing.release.procedure import Prepared, Procedure
from seepage.auditing.report.words import percent
from seepage.core.noise import Gaussian
from seepage.core.release import release
from seepage.core.result import NOTICE
from seepage.errors import InputError
from seepage.risks.guessing import accuracy_beside
from seepage.support.number_check import check_count
from seepage.support.text_table import text_table


@dataclass(frozen=True)
class Attack:
    """How often releases of a table and of a changed one were told apart."""

    row: int
    change: str  # what was done to the record
    disclosed: tuple[str, ...]  # the published figures that differ, which tell the two for certain
    releases: int  # of each of the two tables
    right: int  # how often the test named the right table, of both together
    stated: float  # how often it may, at most, on average over the releases

    @property
    def seen(self) -> float:
        """How often the test was right."""
        return self.right / (2 * self.releases)

    def seen_at_least(self, level: float = 0.999) -> float:
        """Return the one-sided lower limit of how often it is right (Clopper and Pearson 1934)."""
        if not self.right:
            return 0.0
        return float(betaincinv(self.right, 2 * self.releases - self.right + 1, 1 - level))

    def exceeds(self, level: float = 0.999) -> bool:
        """Return whether the tables are told apart more often than stated, beyond chance."""
        return self.seen_at_least(level) > self.stated


@dataclass(frozen=True, eq=False)
class _World:
    """Everything that decides about the releases of one table."""

    prepared: Prepared
    sigmas: np.ndarray  # the noise that may be drawn
    chance: np.ndarray  # how often each is, given that it is enough
    epsilon: float  # what a folder of this table states for σ, redrawing included

    @classmethod
    def of(cls, procedure: Procedure, raw: pa.Table, block: np.ndarray) -> _World:
        """Run the procedure; ``block`` says where every record votes, as a number up to one."""
        prepared = procedure.prepare(raw)
        trained, vote = prepared.trained, prepared.vote
        ballot = procedure.ballot(trained, prepared.figures)
        if vote is None or ballot is None:
            return cls(prepared, np.array([prepared.sigma]), np.ones(1), 0.0)
        allowed = np.full(len(trained.holders), procedure.target_eta)
        member = (block * ballot.blocks).astype(int)
        opinions = block_opinions(ballot.public, allowed, member, ballot.blocks)
        chance = chances(opinions, ballot.grid, ballot.epsilon)
        chance[ballot.grid < prepared.least] = 0.0
        enough = float(chance.sum())
        if not enough:
            raise InputError("No point of the grid is enough noise for this table.")
        return cls(prepared, ballot.grid, chance / enough, ballot.epsilon - math.log(enough))

    @property
    def figures(self) -> dict[str, object]:
        """What is published besides σ and the noisy numbers."""
        return {name: value for name, value in self.prepared.figures.items() if name != "σ"}

    @property
    def numbers(self) -> np.ndarray:
        """The released numbers before noise."""
        return _numbers(self.prepared.trained.model)

    def released(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Make releases; return which σ each has, and its noisy numbers."""
        model = self.prepared.trained.model
        which = np.random.default_rng().choice(len(self.sigmas), count, p=self.chance)
        found = [_numbers(release(model, Gaussian(self.sigmas[k]))) for k in which]
        return which, np.array(found)


def attack_release(
    procedure: Procedure, raw: pa.Table, *, releases: int = 1000, row: int | None = None
) -> Iterator[Attack]:
    """Yield how well releases are told apart for every change of a record, by default the worst.

    Earlier releases in a ledger are not part of it.
    """
    if procedure.person is not None or procedure.ledger is not None:
        raise InputError("Releases are attacked about single records, without --person or ledger.")
    prepared = procedure.prepare(raw)
    place = int(np.argmax(prepared.eta))
    if row is not None:
        found = np.flatnonzero(prepared.rows == row)
        if not found.size:
            raise InputError(f"Row {row} is not in the release; name another with --row.")
        place = int(found[0])
    block = np.random.default_rng().random(len(prepared.rows))
    ours = _World.of(procedure, raw, block)
    chosen = int(prepared.rows[place])
    for change, other in neighbours_of(raw, np.array([chosen]), prepared, procedure.domains):
        gone = other.num_rows < raw.num_rows
        try:
            theirs = _World.of(procedure, other, np.delete(block, place) if gone else block)
        except InputError:
            yield Attack(chosen, change, ("whether anything can be released",), 0, 0, 1.0)
            continue
        names = dict.fromkeys([*ours.figures, *theirs.figures])
        told = tuple(n for n in names if ours.figures.get(n) != theirs.figures.get(n))
        if told or not np.array_equal(ours.sigmas, theirs.sigmas):
            yield Attack(chosen, change, told or ("σ",), 0, 0, 1.0)
        else:
            yield _told_apart(chosen, change, (ours, theirs), releases)


def _told_apart(row: int, change: str, worlds: tuple[_World, _World], count: int) -> Attack:
    """Make releases of two tables and decide about each of them."""
    first, second = worlds
    apart = float(np.linalg.norm(first.numbers - second.numbers))
    right, stated = 0, 0.0
    with np.errstate(divide="ignore", invalid="ignore"):
        odds = np.log(first.chance) - np.log(second.chance)  # infinite where one cannot draw it
    for world, sign in ((first, 1.0), (second, -1.0)):
        which, x = world.released(count)
        sigma = world.sigmas[which]
        near = np.sum((x - second.numbers) ** 2, axis=1) - np.sum((x - first.numbers) ** 2, axis=1)
        right += int(np.sum(sign * (odds[which] + near / (2 * sigma**2)) > 0))
        limit = accuracy_beside(apart / sigma, 0.5, world.epsilon)
        stated += float(np.sum(np.where(np.isfinite(odds[which]), limit, 1.0)))
    return Attack(row, change, (), count, right, stated / (2 * count))


def _numbers(model: object) -> np.ndarray:
    return np.concatenate([np.ravel(getattr(model, name)) for name in ("coef_", "intercept_")])


def run_release_attack(
    table: Path, question: ReleaseQuestion, options: FileOptions, *, row: int | None, releases: int
) -> bool:
    """Attack, print what was seen beside what is stated, and return whether no statement failed."""
    check_count(releases, "releases", 100)
    raw = read_file(table, options)
    procedure = Procedure(**vars(planned(question)))
    found = list(attack_release(procedure, raw, releases=releases, row=row))
    level = 1 - 0.001 / len(found)  # 99.9 % over all changes together
    cells = [(attack.change, *_cells(attack)) for attack in found]
    heads = ("CHANGE", "TOLD APART", "STATED AT MOST", "FIGURES THAT DIFFER")
    typer.echo(f"Row {found[0].row}, {releases:,} releases of each table; chance is 50 %.")
    typer.echo(text_table(cells, heads))
    failed = [attack.change for attack in found if attack.exceeds(level)]
    for change in failed:
        typer.echo(f"MORE OFTEN THAN STATED (99.9 %): {change}. Do not release; please report it.")
    typer.echo(NOTICE)
    return not failed


def _cells(attack: Attack) -> tuple[str, str, str]:
    if attack.disclosed:
        return "always", "always", ", ".join(attack.disclosed)
    return percent(attack.seen), percent(attack.stated), "none"
