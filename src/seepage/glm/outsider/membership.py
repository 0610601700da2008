"""Membership inference by an attacker who does not know all other records.

If the measured person causes most of the variation, resampled refits replace the normal
approximation. The risk from an attacker who knows all other records is reported for comparison.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from seepage.core.leakage import row_positions
from seepage.core.people import Together
from seepage.core.result import Result, singular
from seepage.core.risk_views import Membership
from seepage.errors import InputError
from seepage.glm.outsider.refusals import check_people
from seepage.glm.outsider.resampled import DRAWS, Resampled, resampled
from seepage.glm.outsider.seen import SeenRelease
from seepage.glm.outsider.shown import changed_digits
from seepage.glm.outsider.stacked import stacked
from seepage.glm.outsider.streamed import StreamedWorlds
from seepage.glm.outsider.words import agreement, assumptions, held, hidden_by_few
from seepage.glm.outsider.worlds import Worlds
from seepage.risks import guessing
from seepage.risks.two_normals import TwoNormals
from seepage.support.number_check import check_count, check_number
from seepage.tables.result_table import PlottedNumbers
from seepage.tables.source import build_frame

_UNITS = {"rows": "records", "groups": "groups", "people": "people"}


@dataclass(frozen=True, eq=False, repr=False)
class OutsiderMembership(Membership):
    """The membership risk from an attacker who does not know all other records.

    ``mu`` is the distance at which two normal distributions of equal covariance give the same
    success rate as the release; ``numpy.asarray`` returns ``mu``.

    Parameters
    ----------
    worlds
        The distributions of the release with and without each record.
    informed
        The same risk from an attacker who knows all other records.
    checked
        The results of resampled refits for the most exposed records, and their positions.
    others
        The number of other people.
    scale
        ``μ²u``, where u is the share of the variance due to records the attacker does not know;
        ``None`` with noise or rounding.
    numbers
        The count of released numbers.
    """

    worlds: TwoNormals
    informed: Membership
    checked: Resampled
    others: int
    scale: np.ndarray | None
    numbers: int

    def advantage(self) -> Result:
        """Return the largest difference between true and false positive rates."""
        return self._told(2 * self.worlds.accuracy() - 1, "advantage")

    def accuracy(self, prior: float = 0.5) -> Result:
        """Return the best test's success rate if records are members with this probability."""
        return self._told(self.worlds.accuracy(prior), "right")

    def tpr(self, fpr: float = 0.01) -> Result:
        """Return the largest true positive rate at a given false positive rate."""
        return self._told(self.worlds.true_positive_rate(fpr), "tpr")

    def auc(self) -> Result:
        """Return the area under the ROC curve."""
        return self._told(self.worlds.area(), "auc")

    def must_know(self, right: float = 0.9) -> np.ndarray:
        """Return how many other records an attacker must know to achieve this success rate.

        Without noise, ``μ² = μ₁²/u``, where μ₁ is μ at u = 1. Let μ* be the distance that gives
        this success rate; then at most ``(n − 1)(μ₁/μ*)²`` of the n − 1 other records may be
        unknown. The normal approximation requires at least 30 unknown records, and at least one per
        released number. If fewer would remain, the attacker must know almost everybody, and the
        result is the number of all other records.
        """
        check_number(right, "right")
        if self.scale is None:
            raise InputError(
                "The number of records an attacker must know is available only for releases "
                "without noise or rounding; use accuracy() instead."
            )
        if not 0.5 < right < 1:
            raise InputError(f"right must be a probability between 0.5 and 1, not {right!r}.")
        wanted = float(guessing.distance(right, 0.5))
        unknown = np.floor(self.others * np.minimum(self.scale / wanted**2, 1.0))
        few = unknown < max(30, self.numbers)
        unknown[few & (unknown < self.others)] = 0  # unless she need not know anybody
        return np.asarray(self.others - unknown, dtype=int)

    def select(self, positions: Any) -> OutsiderMembership:
        """Return the entries at these positions, in the given order."""
        order = np.asarray(positions)
        places = {int(old): new for new, old in enumerate(order)}
        kept = np.array([int(k) in places for k in self.checked.people], dtype=bool)
        return replace(
            self,
            mu=self.mu.select(order),
            lower=self.lower[order],
            worlds=self.worlds.of(order),
            informed=_entries(self.informed, order),
            checked=self.checked.of(kept, places),
            scale=None if self.scale is None else self.scale[order],
        )

    def drawing(self) -> PlottedNumbers:
        """Return the data for :meth:`plot`: the success rate of this attacker's best test."""
        worst = self.sort()
        name, unit = "membership inference: success rate", _UNITS[self.mu.view]
        right, chance = np.asarray(worst.accuracy()), (0.5, "chance")
        return PlottedNumbers(right, worst.labels(), name, unit, mark=chance)

    def table(self, library: str | None = None) -> Any:
        """Return a data frame with μ, and the success rates of this and of an informed attacker."""
        refitted = np.full(len(self), np.nan)
        refitted[self.checked.people] = self.checked.right
        columns = {
            singular(self.mu.view): self.mu.labels(),
            "mu": np.asarray(self.mu),
            "right": np.asarray(self.accuracy()),
            "right_refitted": refitted,
            "right_knowing_the_rest": np.asarray(self.informed.accuracy()),
        }
        return build_frame(columns, library or self.mu.library)

    def __repr__(self) -> str:
        right, rest = (100 * np.asarray(one.accuracy()) for one in (self, self.informed))
        unit = _UNITS[self.mu.view]
        worst = int(self.mu.worst_first()[0])
        known = ""
        if self.scale is not None:
            needed = int(np.median(self.must_know()))
            much = f"{needed:,} of {self.others:,} others"
            much = "practically everybody else" if needed == self.others else much
            known = f"; to reach 90 % for the median record, the attacker would have to know {much}"
        return (
            f"<{len(self)} {unit}: membership inference, {self.mu.kind}, {self.mu.about}: success "
            f"rate {np.median(right):.1f} % (median; chance 50 %), worst {right[worst]:.1f} % at "
            f"{self.mu.labels()[worst]!s}; attacker who knows all other records: "
            f"{np.median(rest):.1f} % (median), {rest[worst]:.1f} % at "
            f"{self.mu.labels()[worst]!s}{known}>"
        )


def membership_of(
    parts: Sequence[SeenRelease], rows: Any, groups: Any, exact: bool | int
) -> OutsiderMembership:
    """Return the membership risk from one or several releases."""
    seen = parts[0]
    source = seen.informed.source
    together = seen.together(groups)
    which = None if rows is None else row_positions(rows, len(source), source)
    if groups is not None and rows is not None:
        raise InputError(
            "rows= and groups= cannot be combined, because all records of a group are removed "
            "together; omit one of them."
        )
    if not isinstance(exact, bool):
        check_count(exact, "exact", least=0)
    worlds, share, pairs, rest = _told(parts, together, exact)
    asked, index = seen.asked(together, which)
    right = pairs.accuracy()
    # The person is most of what varies: not the normal law of many. Where another one is, both
    # worlds are already those without them, which refits do not know.
    known = worlds.taken_for_known
    doubtful = (share > 0.5) & (known == 0)
    people = np.zeros(0, dtype=int)
    refits = seen.fits is None and len(parts) == 1
    if refits and isinstance(worlds, Worlds):
        people = _to_refit(worlds, doubtful, right, asked, exact)
        checked = resampled(worlds, people, right[people])
    else:
        checked = Resampled(people, *np.zeros((3, 0)))
    decided = ~np.isnan(checked.right) & doubtful[people]
    if decided.any():
        mu = guessing.distance(checked.right[decided], 0.5)
        pairs = pairs.put(people[decided], TwoNormals.apart(mu))
    pairs = pairs.of(asked)
    places = {int(old): new for new, old in enumerate(asked)}
    checked = checked.of(np.ones(len(people), dtype=bool), places)
    values = _distances(pairs)
    noise = tuple(part.noise for part in parts if part.noise is not None)
    mu_result = Result(
        values,
        "rows" if together is None else together.view,
        "membership",
        "estimate",
        str(seen.attacker),
        index,
        assumptions=assumptions(parts, *agreement(checked, refits), *hidden_by_few(known[asked])),
        library=source.library,
        noise=noise,
        held=held(parts),
    )
    unknown, others = worlds.others.count - 1, worlds.others.present_count - 1
    scale = values**2 * worlds.unknown / (1 - seen.attacker.fraction) * (unknown / others)
    informed = _informed(parts, worlds, which, groups, asked, mu_result, rest)
    if seen.noise is not None and len(parts) == 1:
        again = partial(_rescaled, seen, mu_result, together, asked)
        mu_result = replace(mu_result, rescaled=again)
    return OutsiderMembership(
        mu_result,
        values,
        pairs,
        informed,
        checked,
        others,
        None if noise or seen.digits is not None else scale,
        worlds.numbers,
    )


def _told(
    parts: Sequence[SeenRelease], together: Together | None, exact: bool | int
) -> tuple[Worlds | StreamedWorlds, np.ndarray, TwoNormals, np.ndarray | None]:
    """Return the distributions of the release, ``αq``, and each person's pair of normals.

    For a table read in chunks, also return the distance for an attacker who knows all other
    records.
    """
    seen = parts[0]
    if seen.fits is not None:
        streamed = seen.worlds_in_chunks(seen.fits, together, exact)
        return streamed, *streamed.told()
    if len(parts) > 1 and exact:
        raise InputError("Refits of several releases together are not supported; omit exact=.")
    worlds = seen.worlds(together)
    if len(parts) > 1:
        worlds = stacked([worlds, *(part.worlds(together) for part in parts[1:])])
        check_people(worlds, seen.attacker)
    share, pairs = worlds.told_apart()
    return worlds, share, pairs, None


def _rescaled(
    seen: SeenRelease, like: Result, together: Together | None, asked: np.ndarray, factor: float
) -> Result:
    """Return μ with different noise, by the normal approximation alone."""
    scaled: Any = seen.scaled(factor)
    pairs = _told([scaled], together, False)[2].of(asked)
    return replace(like, values=_distances(pairs), noise=(scaled.noise,))


def _to_refit(
    worlds: Worlds,
    doubtful: np.ndarray,
    right: np.ndarray,
    asked: np.ndarray,
    exact: bool | int,
) -> np.ndarray:
    """Return the people to check by refits, with the most exposed first."""
    if worlds.shown.noise is not None:  # refits have no noise on answers
        return np.zeros(0, dtype=int)
    open_ = asked[right[asked] < 1 - 1e-12]  # of a certainty there is nothing to check
    order = open_[np.argsort(-right[open_], kind="stable")]
    if exact is True:
        return np.asarray(order)
    if exact is not False:
        return np.asarray(order[:exact])
    work = 16.0 * DRAWS * len(worlds.others.model.X) * worlds.others.size**2
    if work > 1e11:  # more than a minute
        return np.zeros(0, dtype=int)
    return np.asarray(order[: int(np.clip(doubtful[order].sum(), 1, 20))])


def _informed(
    parts: Sequence[SeenRelease],
    worlds: Worlds | StreamedWorlds,
    which: np.ndarray | None,
    groups: Any,
    asked: np.ndarray,
    like: Result,
    rest: np.ndarray | None,
) -> Membership:
    """Return the risk from an attacker who knows all other records; ``rest`` is μ, if known."""
    if len(parts) > 1:  # independent noise: squared distances add
        mu = np.zeros(len(asked))
        for part in parts:
            own = part.worlds(part.together(groups))
            mu = np.hypot(mu, np.asarray(_informed([part], own, which, groups, asked, like, None)))
        return Membership(replace(like, values=mu, about="membership"), mu)
    (seen,) = parts
    if seen.noise is not None and not worlds.own:
        whole = seen.informed.membership(which, groups=groups)
        named = which is None and seen.attacker.names_records
        return _entries(whole, asked) if named else whole
    if rest is not None or not isinstance(worlds, Worlds):
        mu = np.asarray(rest)
        return Membership(replace(like, values=mu[asked], about="membership"), mu[asked])
    others = worlds.others
    moved = np.concatenate([g for _, g in others.gradients()])
    if seen.noise is None and seen.digits is not None:
        fixed = worlds.queries
        changed = changed_digits(
            seen.model,
            others.sets,
            lambda rows: others.directions(rows).T if fixed is None else fixed,
            worlds.shown,
        )
        mu = np.where((changed & others.present) | others.alone, np.inf, 0.0)
    elif seen.noise is None:
        mu = np.where(np.any(moved != 0, axis=1) | others.alone, np.inf, 0.0)
    else:
        root = worlds.with_unknown(0.0).root_for()
        lengths = [np.linalg.norm(g @ root(s)) for g, s in zip(moved, others.sets, strict=True)]
        mu = np.where(others.alone, np.inf, lengths)
    return Membership(replace(like, values=mu[asked], about="membership"), mu[asked])


def _distances(pairs: TwoNormals) -> np.ndarray:
    """Return the distances at which normals of equal covariance have the pairs' success rates."""
    alike = guessing.distance(pairs.accuracy(), 0.5)
    uneven = np.any(pairs.spread != 0, axis=1)
    return np.asarray(np.where(uneven, alike, pairs.distance))


def _entries(whole: Membership, which: np.ndarray) -> Membership:
    """Return some entries of a membership risk."""
    mu = whole.mu
    values, index = np.asarray(mu)[which], mu.labels()[which]
    return Membership(replace(mu, values=values, index=index, accuracy=None), whole.lower[which])
