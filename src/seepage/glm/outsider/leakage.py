"""The leakage to an attacker who does not know all other records.

Every result is an estimate: a normal approximation from one fit. For membership, refits on
resampled people check the approximation, and replace it where it is known to fail. Membership and
guesses also report the risk from an attacker who knows all other records.
"""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from seepage.core.leakage import Leakage, LeakageInputs
from seepage.core.noise import Attacker, Noise
from seepage.core.people import Identities
from seepage.core.result import Result
from seepage.core.risk_views import Prior, among_levels, changes_of, to_within
from seepage.errors import InputError
from seepage.glm.outsider.eta import eta_of_each, eta_of_groups
from seepage.glm.outsider.guesses import OutsiderGuess, guess_of
from seepage.glm.outsider.membership import OutsiderMembership, membership_of
from seepage.glm.outsider.predictions import Predictions
from seepage.glm.outsider.refusals import refuse_answers
from seepage.glm.outsider.seen import SeenRelease
from seepage.support.lazy import offered
from seepage.tables.names import counted


class OutsiderLeakage:
    """The leakage of a release to an attacker who does not know all other records.

    The result covers membership, guesses, and the leakage about each record, person or group. For
    other results, use ``informed``, the leakage to an attacker who knows all other records.

    Parameters
    ----------
    releases
        The release as the attacker sees it, or several releases about the same people
        (:meth:`beside`).
    """

    def __init__(self, *releases: SeenRelease) -> None:
        self._releases, self._first = releases, releases[0]

    @property
    def attacker(self) -> Attacker:
        """The attacker's background knowledge."""
        return self._first.attacker

    @property
    def informed(self) -> Leakage[Any]:
        """The leakage to an attacker who knows all other records."""
        if len(self._releases) > 1:
            raise InputError(
                "For several releases together, the only result for an attacker who knows all "
                "other records is membership().informed; otherwise, measure each release "
                "separately."
            )
        if self._first.noise is None:
            raise InputError(
                "Without noise, an attacker who knows all other records detects with certainty "
                "every record whose removal changes the model. To reduce this risk, add noise: "
                "sp.leakage(model, X, y, noise=sp.Gaussian(sigma))."
            )
        if isinstance(self._first.form, Predictions) and self._first.queries is None:
            raise InputError(
                "If the release is each record's own prediction, every record has a different "
                "release. To measure the leakage to an attacker who knows all other records, pass "
                "queries to sp.Predictions."
            )
        return self._first.informed

    @property
    def noise(self) -> tuple[Noise, ...]:
        """The added noise, if any."""
        return tuple(one.noise for one in self._releases if one.noise is not None)

    @property
    def person(self) -> Identities | None:
        """The person of each record, if known."""
        return self._first.informed.person

    @property
    def _one(self) -> SeenRelease:
        """The single release of exact parameters; other releases support membership only."""
        refuse_answers(len(self._releases) > 1, self._first.form)
        return self._first

    def beside(self, *others: OutsiderLeakage) -> OutsiderLeakage:
        """Return the joint leakage of several releases about the same people (``sp.compose``).

        The unknown records affect all releases (:mod:`seepage.glm.outsider.stacked`). Only
        membership is supported. The models may be fitted on different columns, but the records and
        their order must be the same.
        """
        together: list[SeenRelease] = []
        for one in (self, *others):
            if not isinstance(one, OutsiderLeakage):
                raise InputError(
                    "All releases must have the same attacker; pass the same attacker= to every "
                    "call, or to none."
                )
            together += one._releases
        for release in together:
            self._first.check_beside(release)
        return OutsiderLeakage(*together)

    @property
    def inputs(self) -> LeakageInputs | None:
        """The arguments of the call, for a report, or ``None`` if no report is available."""
        given = self._first.informed.inputs
        if given is None or len(self._releases) > 1 or self._first.form is not None:
            return None
        return replace(given, options={**given.options, "attacker": self.attacker})

    def plot(self, ax: Any = None) -> Any:
        """Plot this attacker's success rate for each record, and return the matplotlib axes.

        The call is equivalent to ``leak.membership().plot(ax)``.
        """
        return self.membership().plot(ax)

    def report(self, folder: str | os.PathLike[str] = "seepage-audit") -> Path:
        """Audit the model against this attacker, write the report, and return the path of its page.

        The call is equivalent to ``sp.report(sp.audit(model, X, y, attacker=…), folder)``.
        """
        page: Path = offered("report")(self, folder)
        return page

    def __getattr__(self, name: str) -> Any:
        known = {*vars(Leakage), "release", "source", "attributes", "notes"}
        if name in known and not name.startswith("_"):  # notebooks look for some of these
            raise InputError(
                "For an attacker who does not know all other records, use membership(), guess(), "
                "within(), records(), labels(), cells(), people() or groups(). leak.informed has "
                "all results for an attacker who knows all other records."
            )
        raise AttributeError(name)

    def __repr__(self) -> str:
        count, one = len(self._releases), self._first
        if count > 1:
            return f"<Leakage of {count} releases about the same records to {self.attacker}>"
        noise = "no noise" if one.noise is None else repr(one.noise)
        what = counted(one.informed.release.template.size, "number")
        if isinstance(one.form, Predictions):
            own = one.form.queries is None
            what = "one prediction" if own else counted(len(one.queries), "prediction")
        if one.digits is not None:
            what += f" to {counted(one.digits, 'decimal')}"
        return (
            f"<Leakage of {what} with {noise} about {len(one.informed.source)} records to "
            f"{self.attacker}>"
        )

    # Views ------------------------------------------------------------------------------------

    def membership(
        self, rows: Any = None, *, groups: Any = None, exact: bool | int = False
    ) -> OutsiderMembership:
        """Return the membership risk of each record or person.

        Parameters
        ----------
        rows
            The records, by position or as a mask; by default all.
        groups
            The group of every record; all records of a group are removed together.
        exact
            The number of records whose normal approximation is checked by resampled refits, the
            most exposed first; ``True`` for all. The default is the number of records for which the
            approximation is known to fail (at least 1, at most 20), or 0 if the refits would take
            more than about a minute.

        Examples
        --------
        >>> import numpy as np, seepage as sp
        >>> rng = np.random.default_rng(0)
        >>> X = rng.standard_normal((200, 3))
        >>> y = X @ [1.0, -2.0, 0.5] + rng.standard_normal(200)
        >>> model = sp.glm.LinearRegression().fit(X, y)
        >>> leak = sp.leakage(model, X, y, attacker=sp.Attacker(knows=0.0))
        >>> leak.membership()
        <200 records: membership inference, estimate, an outsider, who knows none ...
        """
        return membership_of(self._releases, rows, groups, exact)

    def records(
        self,
        columns: Any = None,
        label: bool | None = None,
        measure: str = "fil",
        simplex: bool = False,
    ) -> Result:
        """Return the leakage about each record, with the other records treated as noise.

        Let J be the Jacobian of the release with respect to record i, S the covariance of the
        release due to all unknown records and the noise, S₋ᵢ that covariance without record i, and
        αq the record's share of S. The information is ``JᵀS₋ᵢ⁻¹J``, and ``S₋ᵢ ≥ (1 − αq)S``.
        Therefore, η for noise of covariance S, divided by ``√(1 − αq)``, never understates the
        leakage.
        """
        return eta_of_each(self._one, lambda leak: leak.records(columns, label, measure, simplex))

    rows = records

    def labels(self, measure: str = "fil") -> Result:
        """Return the leakage about each record's label, if its columns are known."""
        return self.records(columns=[], label=True, measure=measure)

    def cells(self, columns: Any = None) -> Result:
        """Return the leakage about each single cell, if the other cells of the record are known."""
        return eta_of_each(self._one, lambda leak: leak.cells(columns))

    def people(
        self,
        columns: Any = None,
        label: bool | None = None,
        measure: str = "fil",
        simplex: bool = False,
    ) -> Result:
        """Return the leakage about all records of each person, treating other people as noise.

        The result is that of :meth:`records`, with all records of a person measured together.
        """
        return eta_of_each(
            self._one,
            lambda leak: leak.people(columns, label, measure, simplex),
            people=True,
        )

    def groups(
        self,
        labels: Any,
        columns: Any = None,
        label: bool | None = None,
        measure: str = "fil",
        simplex: bool = False,
    ) -> Result:
        """Return the leakage about each group of records, treating all other records as noise.

        The information is ``JᵀS₋⁻¹J`` with ``S₋ = uH⁻¹G₋H⁻¹ + Σ``. Here J is the Jacobian of the
        release with respect to the group, and G₋ is the sum of ``c cᵀ`` over the records outside
        the group; :mod:`seepage.glm.outsider` defines the other symbols.
        """
        return eta_of_groups(self._one, labels, columns, label, measure, simplex)

    def guess(
        self, column: Any = None, prior: Prior = "frequencies", *, rows: Any = None
    ) -> OutsiderGuess:
        """Return the attribute-inference risk for a category or class of every record.

        The attacker knows everything about the record except this value. If all records of a person
        share the value, it is varied and guessed in all of them together. The arguments are those
        of :meth:`seepage.core.leakage.Leakage.guess`; for an attacker who knows all other records,
        use ``informed``.
        """
        changes = changes_of(self._first.informed, True)
        candidates = among_levels(self._first.informed, changes, column, 1e-4)
        ask = partial(Leakage.guess, column=column, prior=prior, refit="model")
        if len(candidates.levels) > 6:  # all levels share their draws then: seconds, not minutes
            candidates, ask = replace(candidates, precision=1e-3), partial(ask, precision=1e-3)
        return guess_of(self._one, candidates, prior, rows, ask)

    def within(
        self,
        column: Any,
        tolerance: float,
        prior: Prior = "frequencies",
        *,
        values: Any = None,
        rows: Any = None,
    ) -> OutsiderGuess:
        """Return the success rate of guessing a number to within a tolerance.

        See :meth:`guess`; the arguments are those of :meth:`seepage.core.leakage.Leakage.within`.
        """
        changes = changes_of(self._first.informed, True)
        candidates = to_within(self._first.informed, changes, column, tolerance, values, prior)
        ask = partial(
            Leakage.within,
            column=column,
            tolerance=tolerance,
            prior=prior,
            values=values,
            refit="model",
        )
        return guess_of(self._one, candidates, prior, rows, ask)
