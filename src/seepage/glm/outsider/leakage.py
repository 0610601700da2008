"""The leakage to an attacker who does not know all other records: its views, and their words.

Every number here is an estimate: a normal approximation from one fit, checked against resampled
refits, which decide where it is known to fail. It never stands alone: the number for an attacker
who knows everybody else is beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from seepage.core.jacobian import Alternatives
from seepage.core.leakage import Leakage, group_labels, row_positions
from seepage.core.noise import Attacker, Gaussian, Noise
from seepage.core.people import Identities, Together
from seepage.core.result import Result, held_sentences, joined
from seepage.core.risk_views import (
    Candidates,
    Changes,
    Guess,
    Membership,
    Prior,
    among_levels,
    belief_of,
    changes_of,
    to_within,
)
from seepage.errors import InputError, TooFewPeopleError
from seepage.glm.changes.changed_records import ChangedRecords
from seepage.glm.changes.local_model import LocalModel, callers_moves
from seepage.glm.changes.rebalanced import RebalancedRecords
from seepage.glm.losses import Categorical, Family
from seepage.glm.outsider.guesses import OutsiderGuess, Rivals
from seepage.glm.outsider.others import OtherPeople
from seepage.glm.outsider.predictions import Parameters, Predictions, check_queries
from seepage.glm.outsider.resampled import DRAWS, Resampled, resampled
from seepage.glm.outsider.rounding import changed_digits, step_of
from seepage.glm.outsider.stacked import stacked
from seepage.glm.outsider.streamed import ChunkFits, StreamedWorlds
from seepage.glm.outsider.worlds import Worlds, inverse_root
from seepage.glm.preprocessing.jacobian import RawChanges, RawRelease
from seepage.risks import guessing
from seepage.risks.two_normals import TwoNormals
from seepage.support.number_check import check_count, check_number
from seepage.tables.source import as_numpy, build_frame, check_order, read_table


@dataclass(frozen=True, eq=False, repr=False)
class OutsiderMembership(Membership):
    """How well an attacker who does not know all others tells that a record was in the data.

    ``mu`` is the distance of two normal distributions of equal spread that are told apart as often
    as these; ``numpy.asarray`` gives it.

    Parameters
    ----------
    worlds
        The two distributions of every record: without it and with it.
    informed
        The same risk from an attacker who knows all other records.
    checked
        What resampled refits found for the most exposed records; their positions among these.
    others
        How many other people there are.
    scale
        ``μ²`` times the share ``u`` of the others' randomness left to the attacker, if that is all
        that hides anybody; ``None`` with noise.
    numbers
        How many numbers leave.
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
        """Return how often the best test is right if records take part with this probability."""
        return self._told(self.worlds.accuracy(prior), "right")

    def tpr(self, fpr: float = 0.01) -> Result:
        """Return the largest true positive rate at a false positive rate."""
        return self._told(self.worlds.true_positive_rate(fpr), "tpr")

    def auc(self) -> Result:
        """Return the area under the curve of true against false positive rates."""
        return self._told(self.worlds.area(), "auc")

    def must_know(self, right: float = 0.9) -> np.ndarray:
        """Return how many of the others an attacker must know to be right this often.

        Without noise ``μ² = μ₁²/u``: at most ``(n − 1)(μ₁/μ*)²`` of them may be unknown to her.
        The normal approximation needs at least max(30, numbers that leave) unknown others; where
        fewer are left, she must know practically everybody, and the count is that of all others.
        """
        check_number(right, "right")
        if self.scale is None:
            raise InputError(
                "How many of the others must be known is counted for releases without noise or "
                "rounding."
            )
        if not 0.5 < right < 1:
            raise InputError(f"right is a probability between 0.5 and 1, not {right!r}.")
        wanted = float(guessing.distance(right, 0.5))
        unknown = np.floor(self.others * np.minimum(self.scale / wanted**2, 1.0))
        few = unknown < max(30, self.numbers)
        unknown[few & (unknown < self.others)] = 0  # unless she need not know anybody
        return np.asarray(self.others - unknown, dtype=int)

    def top(self, count: int = 10) -> OutsiderMembership:
        """Return the ``count`` most exposed entries, the worst first."""
        order = self.mu.worst_first()[:count]
        places = {int(old): new for new, old in enumerate(order)}
        kept = np.array([int(k) in places for k in self.checked.people], dtype=bool)
        return replace(
            self,
            mu=self.mu.top(count),
            lower=self.lower[order],
            worlds=self.worlds.of(order),
            informed=_entries(self.informed, order),
            checked=self.checked.of(kept, places),
            scale=None if self.scale is None else self.scale[order],
        )

    def table(self, library: str | None = None) -> Any:
        """Return a data frame: μ, how often this attacker is right, and one who knows the rest."""
        unit = {"rows": "row", "groups": "group", "people": "person"}[self.mu.view]
        refitted = np.full(len(self), np.nan)
        refitted[self.checked.people] = self.checked.right
        columns = {
            unit: self.mu.labels(),
            "mu": np.asarray(self.mu),
            "right": np.asarray(self.accuracy()),
            "right_refitted": refitted,
            "right_knowing_the_rest": np.asarray(self.informed.accuracy()),
        }
        return build_frame(columns, library or self.mu.library)

    def __repr__(self) -> str:
        right, rest = (100 * np.asarray(one.accuracy()) for one in (self, self.informed))
        unit = {"rows": "records", "groups": "groups", "people": "people"}[self.mu.view]
        worst = int(self.mu.worst_first()[0])
        known = ""
        if self.scale is not None:
            needed = int(np.median(self.must_know()))
            much = f"{needed:,} of {self.others:,} others"
            much = "practically everybody else" if needed == self.others else much
            known = f"; for 90 in 100 about the median one she would have to know {much}"
        return (
            f"<{len(self)} {unit}: membership, {self.mu.kind}, {self.mu.about}: right "
            f"{np.median(right):.1f} times in 100 (median; a coin toss: 50), worst "
            f"{right[worst]:.1f} at {self.mu.labels()[worst]!s}; who knows all the rest: "
            f"{np.median(rest):.1f}, {rest[worst]:.1f}{known}>"
        )


class OutsiderLeakage:
    """The leakage of a release to an attacker who does not know all other records.

    Membership, guesses, and the leakage about each record, person or group. For other views ask
    ``informed``: the leakage to an attacker who knows all other records, which is never less.

    Parameters
    ----------
    informed
        The leakage to an attacker who knows all the rest; at made-up noise if there is none.
    noise
        The noise that is added, if any.
    attacker
        What she knows.
    predictions
        What is released, if not the parameters.
    queries
        The queries as the model takes them.
    again
        Gives the leakage at another noise.
    fits
        The fit on a chunk's records, where they are read in chunks: membership alone is known then.
    """

    def __init__(
        self,
        informed: Leakage[Any],
        noise: Gaussian | None,
        attacker: Attacker,
        predictions: Predictions | Parameters | None,
        queries: Any,
        again: Callable[..., Leakage[Any]],
        fits: ChunkFits | None = None,
    ) -> None:
        self.attacker, self.predictions, self._again = attacker, predictions, again
        self._informed, self._noise, self._queries = informed, noise, queries
        self._fits = fits
        self._beside: tuple[OutsiderLeakage, ...] = ()  # releases that leave together with this one
        _ = self._known()  # refused now, if these are no records of the table
        if fits is None:
            _ = self._model  # the same, if it is not known

    @cached_property
    def _model(self) -> LocalModel:
        """The fit to second order on all records, which are in memory."""
        return _local_model(self._informed)

    @property
    def informed(self) -> Leakage[Any]:
        """The leakage to an attacker who knows all other records."""
        if self._beside:
            raise InputError(
                "Ask each release by itself for its leakage to an attacker who knows all others."
            )
        if self._noise is None:
            raise InputError(
                "Without noise, an attacker who knows all other records recognises every record "
                "whose absence moves the model: certainty. Pass noise= for less than that."
            )
        if isinstance(self.predictions, Predictions) and self._queries is None:
            raise InputError(
                "Each record's own prediction is another release for every record; give "
                "sp.Predictions the queries for a leakage to an attacker who knows all others."
            )
        return self._informed

    @property
    def noise(self) -> tuple[Noise, ...]:
        """The noise that is added, if any."""
        own = () if self._noise is None else (self._noise,)
        return (*own, *(noise for other in self._beside for noise in other.noise))

    @property
    def _held(self) -> tuple[str, ...]:
        """What is held fixed, in any of the releases."""
        return joined(*(part._informed.held for part in (self, *self._beside)))

    @property
    def _notes(self) -> tuple[str, ...]:
        return joined(*(part._informed.notes for part in (self, *self._beside)))

    def beside(self, *others: OutsiderLeakage) -> OutsiderLeakage:
        """Return several releases about the same people together: ``sp.compose``.

        The others' randomness is common to all of them (:mod:`seepage.glm.outsider.stacked`);
        membership alone is known of such releases. They may be fits on other columns, but of the
        same records in the same order.
        """
        parts = [part for one in (self, *others) for part in _parts(one)]
        for part in parts:
            _check_beside(part, self)
        together = copy(self)
        together._beside = tuple(parts[1:])
        return together

    @property
    def person(self) -> Identities | None:
        """Whom the records are about, if that is known."""
        return self._informed.person

    def __getattr__(self, name: str) -> Any:
        known = {*vars(Leakage), "release", "source", "attributes", "notes"}
        if name in known and not name.startswith("_"):  # notebooks look for some of these
            raise InputError(
                "To an attacker who does not know all others there are membership(), guess(), "
                "within(), records(), labels(), cells(), people() and groups(). leak.informed has "
                "everything, for an attacker who knows all other records."
            )
        raise AttributeError(name)

    def __repr__(self) -> str:
        if self._beside:
            count = len(self._beside) + 1
            return f"<Leakage of {count} releases about the same records to {self.attacker}>"
        noise = "no noise" if self._noise is None else repr(self._noise)
        what = f"{self._informed.release.template.size} numbers"
        if isinstance(self.predictions, Predictions):
            own = self.predictions.queries is None
            what = "one prediction" if own else f"{len(self._queries)} predictions"
        if self._digits is not None:
            what += f" to {self._digits} decimals"
        return (
            f"<Leakage of {what} with {noise} about {len(self._informed.source)} records to "
            f"{self.attacker}>"
        )

    # Views ------------------------------------------------------------------------------------

    def membership(
        self, rows: Any = None, *, groups: Any = None, exact: bool | int = False
    ) -> OutsiderMembership:
        """Return how well she can tell that a record, or a person, was in the data.

        Parameters
        ----------
        rows
            The records, by position or as a mask; all if not given.
        groups
            The group of every record: records of a group come and go together.
        exact
            For how many records resampled refits check the normal approximation, the most exposed
            first; ``True`` for all of them. By default those where it is known to fail (at most
            20, and at least the most exposed one) on tables where that takes seconds.

        Examples
        --------
        >>> import numpy as np, seepage as sp
        >>> rng = np.random.default_rng(0)
        >>> X = rng.standard_normal((200, 3))
        >>> y = X @ [1.0, -2.0, 0.5] + rng.standard_normal(200)
        >>> model = sp.glm.LinearRegression().fit(X, y)
        >>> leak = sp.leakage(model, X, y, attacker=sp.Attacker(knows=0.0))
        >>> leak.membership()
        <200 records: membership, estimate, an outsider, who knows none of the others: right ...
        """
        together = self._together(groups)
        which = (
            None
            if rows is None
            else row_positions(rows, len(self._informed.source), self._informed.source)
        )
        if groups is not None and rows is not None:
            raise InputError("All records of a group leave together; leave out rows= or groups=.")
        if not isinstance(exact, bool):
            check_count(exact, "exact", least=0)
        worlds, share, pairs, rest = self._told(together, exact)
        asked, index = self._asked(together, which)
        right = pairs.accuracy()
        # The person is most of what varies: not the normal law of many. Where another one is, both
        # worlds are already those without them, which refits do not know.
        known = worlds.taken_for_known
        doubtful = (share > 0.5) & (known == 0)
        people = np.zeros(0, dtype=int)
        refits = self._fits is None and not self._beside
        if refits and isinstance(worlds, Worlds):
            people = self._to_refit(worlds, doubtful, right, asked, exact)
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
        agreement = _agreement(checked, refits)
        mu_result = Result(
            values,
            "rows" if together is None else together.view,
            "membership",
            "estimate",
            str(self.attacker),
            index,
            assumptions=(
                *self._words(worlds),
                *agreement,
                *_hidden_by_few(known[asked]),
                *self._notes,
            ),
            library=self._informed.source.library,
            noise=self.noise,
            held=self._held,
        )
        unknown, others = worlds.others.count - 1, worlds.others.present_count - 1
        scale = values**2 * worlds.unknown / (1 - self.attacker.fraction) * (unknown / others)
        informed = self._informed_membership(worlds, which, groups, asked, mu_result, rest)
        if self._noise is not None and not self._beside:
            again = partial(self._rescaled_membership, mu_result, together, asked)
            mu_result = replace(mu_result, rescaled=again)
        return OutsiderMembership(
            mu_result,
            values,
            pairs,
            informed,
            checked,
            others,
            None if self.noise or self._digits is not None else scale,
            worlds.numbers,
        )

    def records(
        self,
        columns: Any = None,
        label: bool | None = None,
        measure: str = "fil",
        simplex: bool = False,
    ) -> Result:
        """Return the leakage about each record, whose others count as noise.

        The information is ``JᵀS₋ᵢ⁻¹J`` with ``S₋ᵢ ≥ (1 − αq)S``: η is that of noise of covariance S
        over ``√(1 − αq)``, which is never less than it should be.
        """
        return self._each(lambda leak: leak.records(columns, label, measure, simplex))

    rows = records

    def labels(self, measure: str = "fil") -> Result:
        """Return the leakage about each record's label alone, its columns known."""
        return self.records(columns=[], label=True, measure=measure)

    def cells(self, columns: Any = None) -> Result:
        """Return the leakage about each single cell, all else of the record known."""
        return self._each(lambda leak: leak.cells(columns))

    def people(
        self,
        columns: Any = None,
        label: bool | None = None,
        measure: str = "fil",
        simplex: bool = False,
    ) -> Result:
        """Return the leakage about all records of each person, whose others count as noise.

        As :meth:`records`, with all records of a person at once.
        """
        return self._each(lambda leak: leak.people(columns, label, measure, simplex), people=True)

    def groups(
        self,
        labels: Any,
        columns: Any = None,
        label: bool | None = None,
        measure: str = "fil",
        simplex: bool = False,
    ) -> Result:
        """Return the leakage about each group of records together; who is not in it is noise.

        The information is ``JᵀS₋⁻¹J`` with ``S₋ = uH⁻¹G₋H⁻¹ + Σ`` and G₋ of the records outside of
        the group alone.
        """
        return self._of_groups(labels, columns, label, measure, simplex)

    def guess(
        self, column: Any = None, prior: Prior = "frequencies", *, rows: Any = None
    ) -> OutsiderGuess:
        """Return how often the best guess of a category or class is right, for every record.

        Of the record she knows all that is not asked about. The arguments are those of
        :meth:`seepage.core.leakage.Leakage.guess`; ``informed`` has the guess of an attacker who
        knows all other records.
        """
        changes = changes_of(self._informed, True)
        candidates = among_levels(self._informed, changes, column, 1e-4)
        ask = partial(Leakage.guess, column=column, prior=prior, refit="model")
        return self._guessed(candidates, changes, prior, rows, ask)

    def within(
        self,
        column: Any,
        tolerance: float,
        prior: Prior = "frequencies",
        *,
        values: Any = None,
        rows: Any = None,
    ) -> OutsiderGuess:
        """Return how often the best guess of a number is right to within a tolerance.

        As :meth:`guess`; the arguments are those of :meth:`seepage.core.leakage.Leakage.within`.
        """
        changes = changes_of(self._informed, True)
        candidates = to_within(self._informed, changes, column, tolerance, values, prior)
        ask = partial(
            Leakage.within,
            column=column,
            tolerance=tolerance,
            prior=prior,
            values=values,
            refit="model",
        )
        return self._guessed(candidates, changes, prior, rows, ask)

    # Behind them ------------------------------------------------------------------------------

    def _known(self) -> np.ndarray | None:
        """Return which records she knows, if that is said."""
        if not self.attacker.names_records:
            return None
        known = np.zeros(len(self._informed.source), dtype=bool)
        known[row_positions(self.attacker.knows, len(known))] = True
        check_order(self.attacker.labels, self._informed.source, "knows")
        return known

    def _asked(
        self, together: Together | None, which: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the positions of the people who are asked about, and what they are called."""
        count, index, known = len(self._informed.source), self._informed.source.index, self._known()
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
            raise InputError(
                f"She knows {index[asked[known[asked]][0]]!s}, so that whether it is in the data "
                "is no question to her; ask about records that knows= does not name."
            )
        return asked, index[asked]

    def _together(self, groups: Any) -> Together | None:
        if groups is not None:
            labels = group_labels(groups, self._informed.source)
            return Together.of("groups", labels)
        person = self._informed.person
        return None if person is None else person.together

    def _told(
        self, together: Together | None, exact: bool | int
    ) -> tuple[Worlds | StreamedWorlds, np.ndarray, TwoNormals, np.ndarray | None]:
        """Return the two worlds of all people, ``αq``, and the pairs of normal distributions.

        And of a table that is read in chunks the distance to an attacker who knows all others.
        """
        if self._fits is None:
            if self._beside and exact:
                raise InputError("Several releases are not checked by refits; leave out exact=.")
            worlds = self._worlds(together)
            if self._beside:
                worlds = stacked([worlds, *(part._worlds(together) for part in self._beside)])
                self._check_people(worlds, False)
            share, pairs = worlds.told_apart()
            return worlds, share, pairs, None
        streamed = self._in_chunks(self._fits, together, exact)
        return streamed, *streamed.told()

    def _scaled(self, factor: float) -> OutsiderLeakage:
        """Return the same with ``factor`` times the noise."""
        noise: Any = self.noise[0].scaled(factor)
        known: Any = self._again(noise)
        fits = None if self._fits is None else known.release.fits_in_chunks()
        return OutsiderLeakage(
            known, noise, self.attacker, self.predictions, self._queries, self._again, fits
        )

    def _rescaled_membership(
        self, like: Result, together: Together | None, asked: np.ndarray, factor: float
    ) -> Result:
        """Return μ with other noise, by the normal approximation alone."""
        scaled = self._scaled(factor)
        pairs = scaled._told(together, False)[2].of(asked)
        return replace(like, values=_distances(pairs), noise=scaled.noise)

    def _worlds(self, together: Together | None) -> Worlds:
        """Return the two worlds of all people, or say why they are not known."""
        sets = None if together is None else [np.asarray(one) for one in together.sets]
        answers = isinstance(self.predictions, Predictions)
        noisy = self._noise is not None and not answers
        others = OtherPeople(self._model, sets, noisy, self._known())
        own = answers and self._queries is None
        queries = self._query_map() if answers and not own else None
        step = None
        if self._digits is not None:
            step = step_of(self._digits, self._link)
            queries = self._parameter_map() if isinstance(self.predictions, Parameters) else queries
        noise = self._noise if answers else None
        worlds = Worlds(others, self.attacker.unknown(others.count), queries, own, step, noise)
        self._check_people(worlds, own)
        return worlds

    def _in_chunks(
        self, fits: ChunkFits, together: Together | None, exact: bool | int
    ) -> StreamedWorlds:
        """Return the two worlds of all records that are read in chunks, after the first pass."""
        named = self.attacker.names_records
        if together is not None or exact or self.predictions is not None or named:
            raise InputError(
                "Of records that are read in chunks, only single ones are measured, by what all "
                "parameters tell an attacker who knows a share of the others, without refits; take "
                "the rows into memory for groups, people, named records, predictions and exact=."
            )
        source = self._informed.source
        worlds = StreamedWorlds.of(source, fits, self._noise is not None, self.attacker)
        self._check_people(worlds, False)
        return worlds

    def _check_people(self, worlds: Worlds | StreamedWorlds, own: bool) -> None:
        """Refuse people who are too few, or too few that she does not know."""
        others = worlds.others
        whom = " whom she does not know" if self.attacker.names_records else ""
        if others.count < 3:
            raise InputError(
                f"There are fewer than three people{whom}: nobody is hidden among others."
            )
        # With ten people a number μ² is about twice too high (least squares), and soon useless.
        if not own and others.count < 10 * worlds.numbers:
            raise TooFewPeopleError(
                f"{others.count:,} people{whom} are too few for {worlds.numbers:,} released "
                "numbers: below 10 people a number the others' randomness is not known "
                "well enough. Ask what each record's own prediction tells, with "
                "release=sp.Predictions()."
            )
        named, rest = self.attacker.names_records, others.present_count - 1
        unknown = others.count - 1 if named else round((1 - self.attacker.knows) * rest, 6)
        # Fewer are not normal together: a test that knows their law is right more often.
        if unknown < max(30, worlds.numbers):
            there = f"There are only {rest:,} others"
            if unknown < rest:
                there = (
                    f"She would know all but {unknown:.0f} of {rest:,} others, which is "
                    "practically everybody"
                )
            raise InputError(
                f"{there}: so few hide nobody in a way that can be estimated. Take the risk from "
                "an attacker who knows all other records (without noise: certainty)."
            )

    @property
    def _digits(self) -> int | None:
        return None if self.predictions is None else self.predictions.digits

    @property
    def _link(self) -> Family | None:
        """Whose mean is printed where predictions are."""
        family = self._model.fit.family
        if not isinstance(self.predictions, Predictions):
            return None
        if isinstance(family, Categorical):
            raise InputError(
                "Rounded predictions are measured for models of one output; leave out digits=, "
                "which errs on the side of the people."
            )
        return family

    def _parameter_map(self) -> np.ndarray:
        """Return A of the parameters as the caller has them."""
        model = self._model
        every = model.outputs.of_all(np.eye(len(model.inverse)))
        return np.asarray(callers_moves(every, model.centre).T)

    def _query_map(self) -> np.ndarray:
        """Return A: the queries as rows, one for each output that matters."""
        model = self._model
        X = np.asarray(as_numpy(read_table(self._queries).values), dtype=float)
        check_queries(X, model.X.shape[1])
        near = X if model.centre is None else X - model.centre
        x, c = model.gram_solver.design(near), model.outputs.count
        return np.asarray(np.einsum("mp,kl->mkpl", x, np.eye(c))).reshape(len(x) * c, -1)

    def _to_refit(
        self,
        worlds: Worlds,
        doubtful: np.ndarray,
        right: np.ndarray,
        asked: np.ndarray,
        exact: bool | int,
    ) -> np.ndarray:
        """Return the people whose numbers refits check, the most exposed first."""
        if worlds.noise is not None:  # refits have no noise on answers
            return np.zeros(0, dtype=int)
        open_ = asked[right[asked] < 1 - 1e-12]  # of a certainty there is nothing to check
        order = open_[np.argsort(-right[open_], kind="stable")]
        if exact is True:
            return np.asarray(order)
        if exact is not False:
            return np.asarray(order[:exact])
        work = 16.0 * DRAWS * len(self._model.X) * worlds.others.size**2
        if work > 1e11:  # more than a minute
            return np.zeros(0, dtype=int)
        return np.asarray(order[: int(np.clip(doubtful[order].sum(), 1, 20))])

    def _informed_membership(
        self,
        worlds: Worlds | StreamedWorlds,
        which: np.ndarray | None,
        groups: Any,
        asked: np.ndarray,
        like: Result,
        rest: np.ndarray | None,
    ) -> Membership:
        """Return the risk from an attacker who knows all the rest; ``rest`` where it is known."""
        if self._beside:  # independent noise: squared distances add
            mu = np.zeros(len(asked))
            for part in (_alone(self), *self._beside):
                own = part._worlds(part._together(groups))
                one = part._informed_membership(own, which, groups, asked, like, None)
                mu = np.hypot(mu, np.asarray(one))
            return Membership(replace(like, values=mu, about="membership"), mu)
        if self._noise is not None and not worlds.own:
            whole = self._informed.membership(which, groups=groups)
            named = which is None and self.attacker.names_records
            return _entries(whole, asked) if named else whole
        if rest is not None or not isinstance(worlds, Worlds):
            mu = np.asarray(rest)
            return Membership(replace(like, values=mu[asked], about="membership"), mu[asked])
        others = worlds.others
        moved = np.concatenate([g for _, g in others.gradients()])
        if self._noise is None and self._digits is not None:
            fixed = worlds.queries
            changed = changed_digits(
                self._model,
                others.sets,
                lambda rows: others.directions(rows).T if fixed is None else fixed,
                self._digits,
                self._link,
            )
            mu = np.where((changed & others.present) | others.alone, np.inf, 0.0)
        elif self._noise is None:
            mu = np.where(np.any(moved != 0, axis=1) | others.alone, np.inf, 0.0)
        else:
            root = worlds.with_unknown(0.0).root_for()
            lengths = [np.linalg.norm(g @ root(s)) for g, s in zip(moved, others.sets, strict=True)]
            mu = np.where(others.alone, np.inf, lengths)
        return Membership(replace(like, values=mu[asked], about="membership"), mu[asked])

    def _about_records(self) -> Worlds:
        """Return the two worlds of all records, each a person of its own."""
        together = self._together(None)
        if together is not None and any(len(rows) > 1 for rows in together.sets):
            raise InputError(
                "People have several records here; what is said about single records is known "
                "without person= only."
            )
        return self._worlds(None)

    def _refuse_predictions(self) -> None:
        if self._beside:
            raise InputError(
                "Of several releases to an attacker who does not know all others, membership() "
                "alone is known; ask about each release by itself."
            )
        if self.predictions is not None:
            raise InputError(
                "Of predictions and of rounded numbers only membership() is known to such an "
                "attacker."
            )

    def _refuse_names(self) -> None:
        if self.attacker.names_records:
            raise InputError(
                "Guesses and groups are estimated for an attacker who knows a share of the others; "
                "give knows= as a number from 0 to 1."
            )

    def _guessed(
        self,
        candidates: Candidates,
        changes: Changes,
        prior: Prior,
        rows: Any,
        ask: Callable[..., Guess],
    ) -> OutsiderGuess:
        """Return how often the best guess among candidates is right; ``ask`` who knows the rest."""
        self._refuse_predictions()
        self._refuse_names()
        worlds, informed = self._about_records(), self._informed
        which = (
            row_positions(rows, len(informed.source), informed.source) if rows is not None else None
        )
        asked = np.arange(len(informed.source)) if which is None else which
        given: Any = prior
        if not isinstance(prior, str):
            given = np.asarray(prior, dtype=float)
            given = given[asked] if given.ndim == 2 and len(given) > len(asked) else given
        here = informed.release.finite_changes()
        believed, _ = belief_of(given, here, asked, candidates.others, candidates.shares)
        found = Rivals(worlds, self._features_with).guessed(asked, candidates, believed)
        baseline = candidates.baseline(believed)
        index = informed.source.index
        right = Result(
            np.clip(found.right + found.error, baseline, 1.0),
            "rows",
            "right",
            "estimate",
            candidates.about,
            asked if index is None else np.asarray(index)[asked],
            assumptions=(*self._words(worlds, guess=True), *informed.notes),
            library=informed.source.library,
            noise=self.noise,
            held=informed.held,
        )
        if self._noise is not None:
            rest = ask(informed, rows=which)
        else:
            certain = np.where(found.differ, 1.0, baseline)
            mu = None if candidates.covered is not None else np.where(found.differ, np.inf, 0.0)
            rest = Guess(replace(right, values=certain), certain, baseline, candidates.levels, mu)
        least = np.clip(found.right - found.error, baseline, 1.0)
        mu = None if candidates.covered is not None else found.mu
        return OutsiderGuess(right, least, baseline, candidates.levels, mu, rest)

    def _features_with(self, rows: np.ndarray, others: Alternatives) -> np.ndarray:
        """Return the model's columns of records with each alternative in their place, (m, K, d)."""
        model = self._model
        if isinstance(self._informed.release, RawRelease) and others.columns:
            features, _ = self._informed.release.template.followed.features_with(rows, others)
            return features if model.centre is None else features - model.centre
        features = np.repeat(model.X[rows][:, None, :], len(others), axis=1)
        if others.values is not None:
            features[:, :, list(others.columns)] = model.near(others)
        return features

    def _of_groups(
        self, labels: Any, columns: Any, label: bool | None, measure: str, simplex: bool
    ) -> Result:
        self._refuse_predictions()
        self._refuse_names()
        together, worlds = self._together(labels), self._about_records()
        others, values = worlds.others, []
        assert together is not None  # noqa: S101 - told to the type checker
        gradients = np.concatenate([g for _, g in others.gradients()])
        inverse = self._model.inverse
        for rows in together.sets:
            outside = others.present & ~np.isin(np.arange(len(gradients)), rows)
            left = int(outside.sum())
            if left < 10 * worlds.numbers:
                raise TooFewPeopleError(
                    f"Outside of a group there are {left:,} people, too few for "
                    f"{worlds.numbers:,} released numbers: below 10 people a number their "
                    "randomness is not known well enough. Ask about smaller groups."
                )
            g = gradients[outside & ~others.alone]
            half = (g - g.mean(axis=0)) @ inverse
            spread = worlds.unknown * half.T @ half + others.noise_spread
            # Along some direction nobody outside varies: nobody else has what they have.
            still = inverse_root(spread).shape[1] < len(spread)
            if still or others.alone[rows].any():
                values.append(np.inf)
                continue
            leak = self._again(Gaussian(self._covariance(spread)))
            value = leak.subset(np.asarray(rows), columns, label, measure, simplex)
            values.append(float(np.asarray(value).reshape(-1)[0]))
        like = self._informed.subset(together.sets[0], columns, label, measure, simplex)
        return replace(
            like,
            values=np.array(values),
            view="groups",
            about=self._informed.unknowns(columns, label, simplex)[1],
            index=together.names,
            kind="estimate",
            assumptions=(*self._words(worlds), *self._informed.notes),
            accuracy=None,
            noise=self.noise,
            rescaled=lambda other: self._scaled(other)._of_groups(
                labels, columns, label, measure, simplex
            ),
        )

    def _each(self, ask: Callable[[Leakage[Any]], Result], people: bool = False) -> Result:
        """Return a measure of each record, or person, with the others as noise."""
        self._refuse_predictions()
        together = self._together(None) if people else None
        worlds = self._worlds(together) if people else self._about_records()
        share, _ = worlds.told_apart()
        spread = worlds.others.spread(worlds.unknown)
        if inverse_root(spread).shape[1] < len(spread):
            raise InputError(
                "Along some direction nobody varies but a record that alone carries a column, so "
                "the others hide nothing there: membership() names it. Leave out the column, or "
                "add noise=."
            )
        result = ask(self._again(Gaussian(self._covariance(spread))))
        with np.errstate(divide="ignore"):
            factor = 1 / np.sqrt(np.maximum(1 - share, 0.0))
        factor = np.where(worlds.others.alone, np.inf, factor)
        values = np.asarray(result)
        factor = factor.reshape(-1, *[1] * (values.ndim - 1))
        values = np.where(values > 0, values * factor, 0.0)
        asked, index = self._asked(together, None)
        return replace(
            result,
            values=values[asked],
            index=index,
            kind="estimate",
            assumptions=(*self._words(worlds), *self._informed.notes),
            accuracy=None,
            noise=self.noise,
            rescaled=lambda other: self._scaled(other)._each(ask, people),
        )

    def _covariance(self, S: np.ndarray) -> np.ndarray:
        """Return S of all released parameters, in the caller's columns."""
        model = self._model
        for _ in range(2):
            S = callers_moves(model.outputs.of_all(S), model.centre).T
        basis = model.outputs.basis
        if basis is not None:
            # Nothing moves along what all classes have in common: any spread will do there.
            K = len(basis)
            common = np.kron(np.eye(len(S) // K), np.full((K, K), 1 / K))
            S = S + common * np.trace(S) / len(S)
        return np.asarray((S + S.T) / 2)

    def _words(self, worlds: Worlds | StreamedWorlds, guess: bool = False) -> tuple[str, ...]:
        """Return what the numbers assume: of membership and η, or of a guess."""
        known = "exactly"
        if self.attacker.reference is not None:
            known = f"from {self.attacker.reference:,} records"
        noise = "with the stated noise on it" if self.noise else "without noise"
        return (
            f"This is {self.attacker}: the others come from a population that she knows {known}, "
            "and how many there are. "
            + (
                "Of the record she knows all that is not asked about."
                if guess
                else "Out means somebody else instead."
            ),
            "A normal approximation from one fit: an estimate, which promises nothing.",
            *held_sentences(self._held),
            f"Nothing leaves but what was measured, {noise}; what it teaches about the population "
            "is not counted.",
            *self._rounded_words(),
        )

    def _rounded_words(self) -> tuple[str, ...]:
        if self._digits is None:
            return ()
        return (
            f"The numbers are rounded to {self._digits} decimals: a variance of r²/12 where they "
            "vary by more than a step r, and nothing where the step is coarser. Who knows all the "
            "rest is certain of those whose absence changes a digit of this very table, and tosses "
            "a coin about the others; how often one is right who knows less is a mean over tables "
            "of other people.",
        )


def checked_attacker(attacker: Any, noise: Any, release: Any) -> Attacker:
    """Return the attacker, or raise unless she, the noise and what is released go together."""
    if attacker is not None and not isinstance(attacker, Attacker):
        raise InputError(
            f"attacker must be sp.Attacker(knows=…), not a value of type {type(attacker).__name__}."
        )
    if release is not None and not isinstance(release, Predictions | Parameters):
        raise InputError(
            "release must be sp.Predictions(queries) or sp.Parameters(digits=…), not a value of "
            f"type {type(release).__name__}."
        )
    everything = attacker is None or attacker.knows_all
    if everything and noise is None:
        raise InputError(
            "Without noise, an attacker who knows all other records recognises every record with "
            "certainty. Pass noise=sp.Gaussian(sigma), or say that she knows less: "
            "attacker=sp.Attacker(knows=0.0)."
        )
    if everything and isinstance(release, Predictions) and release.queries is None:
        raise InputError(
            "Each record's own prediction alone is measured for an attacker who does not know all "
            "other records: add attacker=sp.Attacker(knows=0.0), or give the queries."
        )
    if everything and release is not None and not isinstance(noise, Gaussian):
        raise InputError("Noise on predictions is measured if it is Gaussian; use sp.Gaussian.")
    if not everything and noise is not None and not isinstance(noise, Gaussian):
        raise InputError(
            "To an attacker who does not know all others noise is measured if it is Gaussian; use "
            "sp.Gaussian."
        )
    return Attacker() if attacker is None else attacker


def _parts(leak: Any) -> tuple[OutsiderLeakage, ...]:
    """Return the single releases of one or several."""
    if not isinstance(leak, OutsiderLeakage):
        raise InputError(
            "Releases compose to one attacker: pass the same attacker= for each of them, or for "
            "none."
        )
    return _alone(leak), *leak._beside


def _alone(leak: OutsiderLeakage) -> OutsiderLeakage:
    """Return a release without those beside it."""
    alone = copy(leak)
    alone._beside = ()
    return alone


def _check_beside(part: OutsiderLeakage, first: OutsiderLeakage) -> None:
    """Raise unless a release is to the same attacker and about the same records as another."""
    same = part.attacker is first.attacker or (
        part.attacker.reference == first.attacker.reference
        and part.attacker.fraction == first.attacker.fraction
        and np.array_equal(part.attacker.knows, first.attacker.knows)
    )
    if not same:
        raise InputError(
            f"One release is to {first.attacker}, another to {part.attacker}; pass the same "
            "attacker= for both."
        )
    answers = part.predictions is not None
    rounded = part._digits is not None
    if part._fits is not None or rounded or (answers and (part._queries is None or part.noise)):
        raise InputError(
            "Parameters, and the noiseless answers to stated queries, compose to an attacker who "
            "does not know all others, unrounded, for tables in memory."
        )
    mine, yours = first._informed, part._informed
    if len(mine.source) != len(yours.source):
        raise InputError(
            f"Only releases about the same records compose: one has {len(mine.source):,} of them, "
            f"another {len(yours.source):,}."
        )
    if mine.person is None or yours.person is None:
        alike = mine.person is yours.person
    else:
        alike = mine.person.same(yours.person)
    if not alike:
        raise InputError("These releases state different people; pass the same person= to each.")


def _distances(pairs: TwoNormals) -> np.ndarray:
    """Return the distances of pairs of equal spread that are told apart as often."""
    alike = guessing.distance(pairs.accuracy(), 0.5)
    uneven = np.any(pairs.spread != 0, axis=1)
    return np.asarray(np.where(uneven, alike, pairs.distance))


def _agreement(checked: Resampled, in_reach: bool) -> tuple[str, ...]:
    """Return how far refits and the normal approximation are apart, in words."""
    known = ~np.isnan(checked.right)
    if not in_reach:
        return (
            "No refits on other people have checked it: these need all records in memory, and one "
            "release.",
        )
    if not len(checked.people):
        return ("No refits on other people have checked it; exact=10 checks the most exposed.",)
    if not known.any():
        return ("Refits on other people often had no minimiser, and checked nothing.",)
    return (
        f"Refits on other people checked {checked.largest_difference()}; where the record is most "
        "of what varies, the refits count.",
    )


def _hidden_by_few(known: np.ndarray) -> tuple[str, ...]:
    """Return how many people are hidden by hardly more than one other, in words."""
    if not known.any():
        return ()
    return (
        f"For {np.count_nonzero(known):,} of these, one other person was more than four fifths of "
        "what hides them, and is taken to be known to her.",
    )


def _entries(whole: Membership, which: np.ndarray) -> Membership:
    """Return some entries of a risk."""
    mu = whole.mu
    values, index = np.asarray(mu)[which], mu.labels()[which]
    return Membership(replace(mu, values=values, index=index, accuracy=None), whole.lower[which])


def _local_model(leak: Leakage[Any]) -> LocalModel:
    """Return the fit to second order behind a leakage."""
    changes = leak.release.finite_changes()
    if isinstance(changes, RawChanges):
        changes = changes.inner
    if isinstance(changes, RebalancedRecords):
        changes = changes.fixed
    if not isinstance(changes, ChangedRecords) or math.isinf(changes.work):
        raise InputError("What hides a record among others is known for tables in memory only.")
    return changes.model
