"""The leakage of a printed regression table to an outsider and to an informed attacker.

**An outsider** sees printed numbers that vary with the unknown people. The influence of a person j
is the person's effect on the numbers, ``ι_j = t − t₋ⱼ``. This is the jackknife; to first order, it
is the delta method on stacked estimating equations. If another person replaces j, the effect is
``c_j = ι_j − ῑ``. With ``G = Σ c cᵀ``, the distributions of the printed numbers without and with
person i are::

    N(t, uG₋ᵢ + D) and N(t + cᵢ, uG₋ᵢ + D), D = r²/12 for rounding to a step r

``D`` is included only if a number varies by more than one step. A number rounded more coarsely is
treated as exact, which overstates the risk. If a person has high leverage or causes most of the
variation, tables computed from resampled people are used instead.

**An attacker who knows all other records** compares digits: if another person replaces i, the
printed numbers are unchanged for a share s of the possible people. This attacker's success rate is
``1 − s/2``. Since n is also printed, it reveals every absence without a replacement;
:meth:`RegressionTable.absences` marks the people whose absence would change the other numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from numbers import Integral
from typing import Any

import numpy as np

from seepage.core.leakage import row_positions
from seepage.core.noise import Attacker
from seepage.core.result import Result
from seepage.core.risk_views import Membership
from seepage.errors import InputError
from seepage.glm.outsider.membership import OutsiderMembership
from seepage.glm.outsider.resampled import DRAWS, Resampled, judged
from seepage.glm.outsider.worlds import distance_without_own, inverse_root
from seepage.glm.printed.matching import by_label, matched, people_of
from seepage.glm.printed.output_rules import BrokenRule, broken_rules
from seepage.glm.printed.specification import Specification
from seepage.risks import guessing
from seepage.risks.two_normals import TwoNormals
from seepage.support.chunks import progress, row_slices
from seepage.support.number_check import check_choice, check_count
from seepage.tables.names import counted
from seepage.tables.source import as_numpy, row_labels


class RegressionTable:
    """A printed regression table with one column for each fitted specification.

    Coefficients, standard errors (classical, HC0 to HC3 or clustered, as fitted), R² or pseudo-R²
    and the log-likelihood are rounded to ``digits`` decimals, and n is printed exactly. From these
    numbers, t, p, intervals, AIC, BIC and, with classical standard errors, F can be computed.
    Residual diagnostics and a robust F are not included.

    Parameters
    ----------
    results
        Results of statsmodels ``OLS``, ``WLS`` or ``Logit``. Each result is one column of the
        table; records are matched by row labels, or by position if there are no labels. A label
        must identify one record.
    digits
        The number of printed decimals, or the largest number if it varies within the table.
    person
        The person of every record, if people have several records: an identity for each row of the
        first specification, or a pandas series with the labels of all rows.
    log_likelihood
        Whether the log-likelihood, AIC or BIC is printed. Any of the three reveals the absence of
        almost any person, so use ``False`` if the table omits all three.

    Examples
    --------
    >>> import numpy as np, seepage as sp, statsmodels.api as sm
    >>> rng = np.random.default_rng(0)
    >>> X = sm.add_constant(rng.standard_normal((200, 2)))
    >>> y = X @ [1.0, -2.0, 0.5] + rng.standard_normal(200)
    >>> table = sp.RegressionTable(sm.OLS(y, X).fit(cov_type="HC1"), digits=3)
    >>> table
    <Regression table of 1 specification about 200 records: 9 numbers to 3 decimals>
    >>> table.membership()
    <200 records: membership inference, estimate, an outsider, who knows none ...
    """

    def __init__(
        self,
        *results: Any,
        digits: int = 3,
        person: Any = None,
        log_likelihood: bool = True,
    ) -> None:
        if not results:
            raise InputError(
                "A regression table requires the results of at least one fit; pass statsmodels "
                "results."
            )
        check_count(digits, "digits", 0)
        check_choice(log_likelihood, "log_likelihood", (True, False))
        self.digits = digits
        self.specifications = [Specification.of(one, log_likelihood) for one in results]
        self.rows, self.index = matched(results)
        self.library = "numpy" if results[0].model.data.row_labels is None else "pandas"
        self.together = None if person is None else people_of(person, self.index)
        every = np.arange(len(self.index))
        self.sets = list(every[:, None]) if self.together is None else list(self.together.sets)
        self.rounded = np.array([label != "n" for label in self.labels])
        self.steps = np.where(self.rounded, 10.0**-digits, 1.0)

    def __repr__(self) -> str:
        many = len(self.specifications)
        return (
            f"<Regression table of {many} specification{'s' * (many > 1)} about "
            f"{len(self.index):,} records: {len(self.labels)} numbers to "
            f"{counted(self.digits, 'decimal')}>"
        )

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """The name of each printed number, ordered by specification."""
        return tuple(name for one in self.specifications for name in (*one.labels, "n"))

    @property
    def printed(self) -> np.ndarray:
        """The printed numbers."""
        return np.asarray(np.round(self._printed(self.here) * self.steps, self.digits))

    # Views ------------------------------------------------------------------------------------

    def membership(
        self,
        attacker: Attacker | None = None,
        rows: Any = None,
        *,
        exact: bool | int = False,
    ) -> OutsiderMembership:
        """Return the membership risk of each record or person in the table.

        An absent person is replaced by another, since n is printed.

        Parameters
        ----------
        attacker
            The attacker's background knowledge; by default, the attacker is an outsider. For an
            attacker who knows all other records, see :meth:`informed`; every result includes this
            risk.
        rows
            The records, by position, as a mask, or as a pandas series with row labels; by default
            all.
        exact
            The number of people for whom tables of resampled people check the approximation, the
            most exposed first; ``True`` for all. By default, the people for whom the approximation
            is known to fail are checked; if there are none, the most exposed person is checked.
        """
        if not isinstance(exact, bool) and not (isinstance(exact, Integral) and exact >= 0):
            raise InputError(
                "exact must be True, False or a non-negative whole number of people, not "
                f"{exact!r}."
            )
        attacker = Attacker(knows=0.0) if attacker is None else attacker
        if not isinstance(attacker, Attacker) or attacker.knows_all:
            raise InputError(
                "membership() needs an attacker who does not know all other records, such as "
                "sp.Attacker(knows=0.0); for an attacker who knows them all, use informed()."
            )
        if attacker.names_records:
            raise InputError(
                "For a printed table, an attacker's knowledge must be a share of the other "
                "records; set knows= to a number from 0 to 1."
            )
        u = self._unknown(attacker)
        share, mu, root = self._apart(u)
        asked = self._asked(rows)
        right = guessing.accuracy(mu, 0.5)
        doubtful = (share > 0.5) | (self.leverage >= 0.1)
        open_ = asked[right[asked] < 1 - 1e-12]
        order = open_[np.argsort(-right[open_] - doubtful[open_], kind="stable")]
        count = max(int(doubtful[order].sum()), 1) if exact is False else exact
        people = order if exact is True else order[:count]
        checked = self._resampled(people, right[people], u, root)
        decided = ~np.isnan(checked.right) & doubtful[people]
        mu[people[decided]] = guessing.distance(checked.right[decided], 0.5)
        informed = self._informed(asked)
        above = mu[asked] > np.asarray(informed)
        places = {int(old): new for new, old in enumerate(asked)}
        result = Result(
            mu[asked],
            "rows" if self.together is None else "people",
            "membership",
            "estimate",
            str(attacker),
            self._names(asked),
            assumptions=self._words(attacker, u, checked, int(above.sum())),
            library=self.library,
        )
        return OutsiderMembership(
            result,
            mu[asked],
            TwoNormals.apart(mu[asked]),
            informed,
            checked.of(np.ones(len(people), dtype=bool), places),
            len(self.sets) - 1,
            None,
            self.size,
        )

    def informed(self, rows: Any = None) -> Membership:
        """Return the membership risk from an attacker who knows all other records.

        The alternative hypothesis is that a copy of another person replaces the person; up to 100
        other people are tried.
        """
        return self._informed(self._asked(rows))

    def absences(self) -> np.ndarray:
        """Return a mask of the people whose absence changes a printed number other than n.

        An informed attacker detects the absence of these people with certainty, even if n is not
        printed.
        """
        before, after = self._printed(self.here), self._printed(self.without)
        return np.asarray(np.any((after != before)[:, self.rounded], axis=1))

    def rules(self, threshold: int = 10) -> tuple[BrokenRule, ...]:
        """Return the output-checking rules that the table breaks.

        The default threshold is 10. The rules cover residual degrees of freedom, columns with
        values from few people, specifications that differ by few people (differencing), and cells
        of few records that the columns distinguish from all other records.
        """
        check_count(threshold, "threshold", 2)
        return broken_rules(self.specifications, self.rows, self.owner, self._names, threshold)

    # Numbers ----------------------------------------------------------------------------------

    def numbers(self, weights: np.ndarray) -> np.ndarray:
        """Return all numbers before rounding, for the given weights of the people, (B, N) → (B, K).

        The numbers of a specification without a unique fit are NaN.
        """
        found = []
        for one, rows in zip(self.specifications, self.rows, strict=True):
            here = weights[:, self.owner[rows]]
            found += [one.numbers(here), here.sum(axis=1)[:, None]]
        return np.hstack(found)

    @cached_property
    def owner(self) -> np.ndarray:
        """The person of each record, by position."""
        owner = np.empty(len(self.index), dtype=int)
        for k, rows in enumerate(self.sets):
            owner[rows] = k
        return owner

    @cached_property
    def here(self) -> np.ndarray:
        """The unrounded numbers of the table, (K,)."""
        return np.asarray(self.numbers(np.ones((1, len(self.sets))))[0])

    @cached_property
    def without(self) -> np.ndarray:
        """The numbers without each person, (N, K)."""
        return self._each(-1.0, "tables without somebody")

    def _each(self, change: float, what: str) -> np.ndarray:
        """Return the numbers after changing each person's weight, of shape (N, K)."""
        N = len(self.sets)
        found = np.empty((N, len(self.labels)))
        for piece in row_slices(N, N * max(one.X.shape[1] for one in self.specifications)):
            weights = np.ones((piece.stop - piece.start, N))
            weights[np.arange(len(weights)), np.arange(piece.start, piece.stop)] += change
            found[piece] = self.numbers(weights)
        return found

    def _printed(self, numbers: np.ndarray) -> np.ndarray:
        """Return the printed numbers in rounding steps; NaN (no fit) differs from every number."""
        return np.asarray(np.round(numbers / self.steps))

    # To an outsider ---------------------------------------------------------------------------

    @cached_property
    def influence(self) -> np.ndarray:
        """The centred effect ``c`` of each person, of shape (N, K); NaN if there is no fit."""
        made = self.here - self.without
        return np.asarray(made - np.nanmean(made, axis=0))

    @cached_property
    def alone(self) -> np.ndarray:
        """Whether a specification has no fit without the person, (N,): the only one in a level."""
        return np.asarray(np.isnan(self.without).any(axis=1))

    @cached_property
    def leverage(self) -> np.ndarray:
        """The sum of each person's leverages, the largest of all specifications, (N,)."""
        most = np.zeros(len(self.sets))
        for one, rows in zip(self.specifications, self.rows, strict=True):
            every = np.zeros(len(self.index))
            every[rows] = one.leverage
            most = np.maximum(most, [every[own].sum() for own in self.sets])
        return np.asarray(most)

    @cached_property
    def size(self) -> int:
        """The number of linearly independent printed numbers that depend on the people."""
        c = self.influence[~self.alone]
        return int(inverse_root(c.T @ c).shape[1])

    def rounding(self, u: float) -> np.ndarray:
        """Return ``D``: ``r²/12`` if a number varies by more than one step r, otherwise 0, (K,).

        Counts are not rounded.
        """
        variance = u * np.sum(self.influence[~self.alone] ** 2, axis=0)
        counts = self.rounded & (self.steps**2 < variance)
        return np.where(counts, self.steps**2 / 12, 0.0)

    def _apart(self, u: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return each person's share of the variance, their ``μ``, and a root of ``(uG + D)⁻¹``.

        ``μ² = q/(1 − αq)``, ``q = cᵀ(uG + D)⁻¹c``, ``α = u n/(n − 1)``; μ excludes the person's own
        variation.
        """
        c, N = np.where(self.alone[:, None], 0.0, self.influence), len(self.sets)
        root = inverse_root(u * c.T @ c + np.diag(self.rounding(u)))
        q, alpha = np.sum((c @ root) ** 2, axis=1), u * N / (N - 1)
        mu = distance_without_own(q, alpha, self.alone)
        return alpha * q, mu, root

    def _unknown(self, attacker: Attacker) -> float:
        N = len(self.sets)
        if 10 * self.size > N:
            raise InputError(
                f"There are too few people ({N:,}) for "
                f"{counted(self.size, 'printed number')}: with fewer than 10 people per number, "
                "the variance due to other people cannot be estimated. Use informed() for the "
                "risk from an attacker who knows all other records."
            )
        u = attacker.unknown(N)
        if attacker.knows > 0 and (1 - attacker.knows) * (N - 1) < max(30, self.size):
            raise InputError(
                "The attacker would know practically everybody, and the risk cannot be estimated "
                "with so few unknown people. Use informed() for the risk from an attacker who "
                "knows all other records."
            )
        return u

    def _resampled(
        self, people: np.ndarray, predicted: np.ndarray, u: float, root: np.ndarray
    ) -> Resampled:
        """Return the success rate of a test trained and evaluated on tables of resampled people.

        The weights are as in :mod:`seepage.glm.outsider.resampled`, and the numbers are rounded.
        """
        N, rng = len(self.sets), np.random.default_rng(0)
        base = rng.gamma(1 / u, u, size=(DRAWS, N)) if len(people) else np.empty((0, N))

        def draws(person: int) -> list[np.ndarray]:
            each = []
            for inside in (True, False):
                weights = base.copy()
                weights[:, person] = 0.0
                weights *= (N - inside) / weights.sum(axis=1, keepdims=True)
                weights[:, person] = float(inside)
                each.append(self._printed(self.numbers(weights)) * self.steps)
            return each

        def seen(*both: np.ndarray) -> Iterator[np.ndarray]:
            return _telling(*((one - self.here) @ root for one in both))

        return judged(people, predicted, draws, seen)

    # To who knows the rest --------------------------------------------------------------------

    def _informed(self, asked: np.ndarray) -> Membership:
        alike = self._alike(asked)
        mu = guessing.distance(1 - alike / 2, 0.5)
        mu[alike == 0] = np.inf
        result = Result(
            mu,
            "rows" if self.together is None else "people",
            "membership",
            "estimate",
            "membership",
            self._names(asked),
            assumptions=(
                "The attacker knows all other records, and tests whether the table contains this "
                "person or another person, similar to one of the others.",
                *self._held_words,
            ),
            library=self.library,
        )
        return Membership(result, mu)

    def _alike(self, asked: np.ndarray) -> np.ndarray:
        """Return the share of people who could replace each person without changing a digit, (m,).

        To first order, the effects of removing person i and adding person j add up: ``t₋ᵢ + (t₊ⱼ −
        t)``. If a digit remains in doubt, a refit determines it. On large tables, refits stop after
        a few seconds, and digits in doubt count as changed.
        """
        left = 1e9 / max(one.X.size * one.X.shape[1] for one in self.specifications)
        N = len(self.sets)
        tried = np.unique(np.linspace(0, N - 1, min(N, 100)).astype(int))
        weights = np.ones((len(tried), N))
        weights[np.arange(len(tried)), tried] = 2.0
        more, before = self.numbers(weights) - self.here, self._printed(self.here)
        counts = np.zeros(len(asked))
        for k, person in enumerate(progress(asked, "somebody else instead")):
            there = self.without[person] + more
            # How far each number is from the middle of its printed step, and how well that is known
            off = np.abs(there / self.steps - before)
            doubt = 0.1 + 0.2 * np.abs(there - self.here) / self.steps
            doubt[:, ~self.rounded] = 0.0
            others = tried != person
            alike = others & np.all(off < 0.5 - doubt, axis=1)
            open_ = others & np.all(off < 0.5 + doubt, axis=1) & ~alike
            if open_.any() and left > 0:
                left -= open_.sum()
                weights = np.ones((int(open_.sum()), N))
                weights[np.arange(len(weights)), tried[open_]] = 2.0
                weights[:, person] = 0.0
                alike[open_] = np.all(self._printed(self.numbers(weights)) == before, axis=1)
            counts[k] = alike.sum() / others.sum()
        return counts

    # Words and people -------------------------------------------------------------------------

    def _asked(self, rows: Any) -> np.ndarray:
        if rows is None:
            return np.arange(len(self.sets))
        labelled = self.library == "pandas" and row_labels(rows) is not None
        if labelled and as_numpy(rows).dtype == bool:  # a mask, matched as the records are
            rows = by_label(rows, self.index, "rows", "entry").astype(bool)
        which = row_positions(rows, len(self.index))
        if self.together is None:
            return which
        return np.flatnonzero([bool(np.isin(own, which).any()) for own in self.sets])

    def _names(self, people: np.ndarray) -> np.ndarray:
        """Return the names of the people: row labels or identities."""
        names = self.index if self.together is None else self.together.names
        return np.asarray(names[people])

    @property
    def _held_words(self) -> tuple[str, ...]:
        if not any(one.learnt for one in self.specifications):
            return ()
        return (
            "Preprocessing that a formula learns from all records (center, standardize, bs) is "
            "held fixed; in practice, removing a person may change other digits too.",
        )

    def _words(
        self, attacker: Attacker, u: float, checked: Resampled, above: int
    ) -> tuple[str, ...]:
        coarse = int(np.sum((self.rounding(u) == 0) & self.rounded))
        said = [
            f"The result is for {attacker}: the other records come from a population that the "
            "attacker knows, and n is printed. Absence means that another person replaces this "
            "person.",
            "The result is a normal approximation from people's effects on the printed numbers: an "
            "estimate, not a guarantee.",
            "Only this table is published, with no more digits than given.",
            *self._held_words,
        ]
        if coarse:
            those = "this number is" if coarse == 1 else "these numbers are"
            said.append(
                f"For {coarse:,} of {int(self.rounded.sum()):,} rounded numbers, the standard "
                "deviation due to the unknown people is at most one unit of the last printed "
                f"digit; {those} treated as exact."
            )
        if above:
            said.append(
                f"For {above:,} of these records, the estimate is above the risk from an "
                "attacker who knows all other records. That risk is for the digits of this "
                "table, while the estimate is a mean over tables of other people."
            )
        known = ~np.isnan(checked.right)
        if not known.any():
            said.append(
                "The approximation was not checked by tables of resampled people; pass exact=10 to "
                "check it for the 10 most exposed people."
            )
        else:
            said.append(
                f"Tables of resampled people checked {checked.largest_difference()}. Their result "
                "replaces the approximation for people who have high leverage or cause most of "
                "the variation."
            )
        return tuple(said)


def _telling(inside: np.ndarray, outside: np.ndarray) -> Iterator[np.ndarray]:
    """Yield draws along the three directions in which means or covariances differ most.

    The draws with and without the person include the same other people, so that sampling errors in
    the covariances cancel.
    """
    both = np.concatenate([inside - inside.mean(axis=0), outside - outside.mean(axis=0)])
    root = inverse_root(both.T @ both / len(both))
    white = [(one - outside.mean(axis=0)) @ root for one in (inside, outside)]
    spreads = [np.atleast_2d(np.cov(one.T)) for one in white]
    values, vectors = np.linalg.eigh(spreads[1] - spreads[0])
    most = vectors[:, np.argsort(-np.abs(values))[:2]]
    apart = white[0].mean(axis=0) - white[1].mean(axis=0)
    axes = np.linalg.qr(np.column_stack([apart, most]))[0]
    yield from (one @ axes for one in white)
