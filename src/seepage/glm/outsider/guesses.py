"""Attribute inference of classes or numbers by an attacker who does not know all other records.

The attacker knows everything about the record except the guessed value. For value v, the release
is::

    N(θ₋ − H₋⁻¹x̃_v r_v, uH_v⁻¹G₋ᵢH_v⁻¹ + Σ),      H_v = H₋ + x̃_v a_v x̃_vᵀ

Here θ₋ and H₋ are the minimiser and the Hessian of the other records, and ``r_v`` and ``a_v`` are
the slope and the curvature of the loss at the root of ``m + x̃_vᵀH₋⁻¹x̃_v ℓ'(m, y_v) = x̃_vᵀθ₋``.
The root is the record's margin after its own effect on the fit. G₋ᵢ is the same for all values. If
a person's k records share a value, the value changes in all of them. Then x̃_v has a column for
each record and output, a_v is block diagonal, and H₋, θ₋ and G₋ᵢ exclude the person.

**One covariance** for all values is enough if every design leverage is below 0.1: with ``b_v =
H(θ_v − θ₋)``, the success rates depend only on ``b_vᵀ(uG₋ᵢ + HΣH)⁻¹b_w`` for pairs of values v and
w. Otherwise each value has a different covariance.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from seepage.core.finite_changes import Alternatives
from seepage.core.leakage import row_positions
from seepage.core.result import Result
from seepage.core.risk_views import Candidates, Guess, Prior, belief_of
from seepage.glm.changes.outputs import JointOutputs, symmetric_root
from seepage.glm.outsider.refusals import refuse_names
from seepage.glm.outsider.seen import SeenRelease
from seepage.glm.outsider.words import assumptions
from seepage.glm.outsider.worlds import Worlds
from seepage.risks import guessing
from seepage.risks.guessing import best_guess, best_within
from seepage.risks.several_normals import best_among
from seepage.support.chunks import row_slices


@dataclass(frozen=True, eq=False, repr=False)
class OutsiderGuess(Guess):
    """The attribute-inference risk from an attacker who does not know all other records.

    Parameters
    ----------
    informed
        The same risk from an attacker who knows all other records.
    """

    informed: Guess = None  # type: ignore[assignment]

    def select(self, positions: Any) -> OutsiderGuess:
        """Return the entries at these positions, in the given order."""
        own, rest = super().select(positions), self.informed.select(positions)
        return OutsiderGuess(**vars(own), informed=rest)

    def __repr__(self) -> str:
        rest = 100 * np.asarray(self.informed.right)
        return (
            f"{super().__repr__()[:-1]}; attacker who knows all other records: "
            f"{np.median(rest):.1f} % (median), at most {rest.max():.1f} %>"
        )


def guess_of(
    seen: SeenRelease, candidates: Candidates, prior: Prior, rows: Any, ask: Callable[..., Guess]
) -> OutsiderGuess:
    """Return the best guess's success rates; ``ask`` returns those of an informed attacker."""
    refuse_names(seen.attacker)
    together, informed = candidates.together, seen.informed
    worlds = seen.worlds_of_records() if together is None else seen.worlds(together)
    which = row_positions(rows, len(informed.source), informed.source) if rows is not None else None
    asked, index = seen.asked(together, which)
    given: Any = prior
    if not isinstance(prior, str):
        given = np.asarray(prior, dtype=float)
        given = given[asked] if given.ndim == 2 and len(given) > len(asked) else given
    here = informed.release.finite_changes()
    held = asked if together is None else together.sets[asked]
    believed, _ = belief_of(given, here, held, candidates.others, candidates.shares)
    found = Rivals(worlds, seen.features_with).guessed(asked, candidates, believed)
    baseline = candidates.baseline(believed)
    right = Result(
        np.clip(found.right + found.error, baseline, 1.0),
        "rows" if together is None else together.view,
        "right",
        "estimate",
        candidates.about,
        index,
        assumptions=assumptions([seen], guess="record" if together is None else "person's records"),
        library=informed.source.library,
        noise=() if seen.noise is None else (seen.noise,),
        held=informed.held,
    )
    if seen.noise is not None:
        rest = ask(informed, rows=which)
    else:
        certain = np.where(found.differ, 1.0, baseline)
        mu = None if candidates.covered is not None else np.where(found.differ, np.inf, 0.0)
        rest = Guess(replace(right, values=certain), certain, baseline, candidates.levels, mu)
    least = np.clip(found.right - found.error, baseline, 1.0)
    mu = None if candidates.covered is not None else found.mu
    return OutsiderGuess(right, least, baseline, candidates.levels, mu, rest)


class Guessed(NamedTuple):
    """The success rates of guesses about people, of shape (m,) each."""

    right: np.ndarray
    error: np.ndarray  # half the width of the 99 % interval; zero where nothing was drawn
    mu: np.ndarray  # the largest distance of two candidates
    differ: np.ndarray  # whether any candidate moves the release


class Rivals:
    """The release for every candidate value, for one record or person at a time.

    Parameters
    ----------
    worlds
        The distributions of the release, with the variance due to the other people.
    features
        A function that returns the records' features with each alternative value, (m, K, d), in
        the model's columns.
    """

    def __init__(
        self, worlds: Worlds, features: Callable[[np.ndarray, Alternatives], np.ndarray]
    ) -> None:
        self.worlds, self.features = worlds, features

    def guessed(self, people: np.ndarray, candidates: Candidates, believed: np.ndarray) -> Guessed:
        """Return the success rates of the best guesses about the people at these positions."""
        others = self.worlds.others
        sizes = np.array([len(others.sets[person]) for person in people])
        right, error, mu = np.zeros((3, len(people)))
        found = Guessed(right, error, mu, np.zeros(len(people), dtype=bool))
        for size in np.unique(sizes):
            alike = np.flatnonzero(sizes == size)
            work = others.size * (others.size + len(candidates.others)) * int(size)
            for piece in row_slices(len(alike), work, what="guesses"):
                some = alike[piece]
                here = self._of_some(people[some], candidates, believed[some])
                for whole, part in zip(found, here, strict=True):
                    whole[some] = part
        return found

    @cached_property
    def _root(self) -> np.ndarray:
        return self.worlds.root_for()(self.worlds.others.sets[0])

    @cached_property
    def _seen(self) -> np.ndarray:
        """``HR``: the visible part of the parameters, in standard deviations, of shape (P, k)."""
        return np.asarray(np.linalg.solve(self.worlds.others.model.inverse, self._root))

    def _of_some(self, people: np.ndarray, candidates: Candidates, believed: np.ndarray) -> Guessed:
        """Return the success rates for people with the same number of records."""
        others, share = self.worlds.others, self.worlds.share
        sets = np.stack([others.sets[person] for person in people])
        centred = np.stack([others.gradient(rows) for rows in sets]) - others.mean
        z = centred @ self._root
        left = 1 - share * np.sum(z**2, axis=1)
        certain = others.alone[people] | (left < 1e-8)  # nobody else has what the person has
        beside = self._beside(sets, others.alone[people], candidates.others)
        seen = beside.moves @ self._seen
        differ = np.any(np.ptp(seen, axis=1) > 0, axis=1)
        along = np.einsum("mvk,mk->mv", seen, z)
        factor = share / np.where(certain, 1.0, left)
        gram = seen @ np.swapaxes(seen, 1, 2)
        gram = gram + factor[:, None, None] * along[:, :, None] * along[:, None, :]
        lengths = np.einsum("mvv->mv", gram)
        between = (lengths[:, :, None] + lengths[:, None, :] - 2 * gram).max(axis=(1, 2))
        right, error = np.ones(len(people)), np.zeros(len(people))
        mu = np.sqrt(np.maximum(between, 0))
        uneven = (np.maximum(beside.leverage, others.leverage[people]) >= 0.1) & ~certain
        even = ~uneven & ~certain
        covered = candidates.covered
        if even.any() and covered is None:
            right[even], error[even] = best_guess(gram[even], believed[even], candidates.precision)
        elif even.any() and covered is not None:
            rng = np.random.default_rng(int(people[0]))
            right[even], error[even] = best_within(gram[even], believed[even], covered, rng=rng)
        for k in np.flatnonzero(uneven):
            spreads = beside.spreads(int(k), self.worlds, centred[k], self._seen)
            right[k], error[k], mu[k] = _apart(seen[k], spreads, candidates, believed[k], people[k])
        return Guessed(right, error, np.where(certain, np.inf, mu), differ | certain)

    def _beside(self, sets: np.ndarray, alone: np.ndarray, alternatives: Alternatives) -> _Beside:
        """Return each candidate's effect on the fit without the records, for sets (m, k)."""
        model, rows, (m, k) = self.worlds.others.model, sets.reshape(-1), sets.shape
        outputs, weight = JointOutputs(model.outputs, k), model.weight[sets]
        w, c = outputs.count, model.outputs.count
        x = model.gram_solver.design(model.X[rows]).reshape(m, k, -1)
        root = symmetric_root(model.gram_solver.curvature[rows]).reshape(m, k, c, c)
        Y = np.einsum("mip,mial->mpail", x, root).reshape(m, -1, w)
        solved = model.inverse @ Y
        inner = np.eye(w) - np.swapaxes(Y, 1, 2) @ solved
        inner[alone] = np.eye(w)  # there is no fit on the others
        rest = model.inverse + solved @ np.linalg.solve(inner, np.swapaxes(solved, 1, 2))
        slopes = weight[:, :, None] * model.slopes[rows].reshape(m, k, c)
        pull = np.einsum("mip,mia->mpa", x, slopes).reshape(m, -1)
        theta = model.outputs.within(model.theta).reshape(-1)
        theta = theta + np.einsum("mpq,mq->mp", rest, pull)
        features = self.features(rows, alternatives)
        K = features.shape[1]
        z = model.gram_solver.design(features.reshape(m * k * K, -1)).reshape(m, k, K, -1)
        lifted = np.einsum("mivp,ab->mvpaib", z, np.eye(c)).reshape(m, K, -1, w)
        lengths = np.swapaxes(lifted, 2, 3) @ (rest[:, None] @ lifted)
        labels = model.target[rows].reshape(m, 1, k, *model.target.shape[1:])
        if alternatives.labels is not None:
            labels = np.asarray(alternatives.labels, dtype=float)[None, :, None]
        labels = np.broadcast_to(labels, (m, K, k, *model.target.shape[1:]))
        given = np.einsum("mp,mvpw->mvw", theta, lifted)
        if k == 1:
            heavy = weight[:, :, None, None] * lengths
            margins, _ = model.outputs.own_margin(given, heavy, labels[:, :, 0])
        else:
            margins, _ = outputs.own_margin(given, lengths, labels, weight[:, None])
        slopes = outputs.slope(margins, labels, weight[:, None])
        bent = outputs.curvature(margins, labels, weight[:, None])
        moves = -np.einsum("mvpw,mvw->mvp", lifted, slopes) @ rest
        grown = np.linalg.eigvals(np.eye(w) + bent @ lengths).real.max(axis=(1, 2))
        return _Beside(rest, lifted, lengths, bent, moves, 1 - 1 / grown)


class _Beside(NamedTuple):
    """The effect of a person's candidate values on the fit to the other people.

    A person has k records and the model c outputs; ``w = k·c`` is the number of columns of x̃.
    """

    rest: np.ndarray  # H₋⁻¹, (m, P, P)
    lifted: np.ndarray  # x̃, (m, K, P, w)
    lengths: np.ndarray  # x̃ᵀH₋⁻¹x̃, (m, K, w, w)
    curvature: np.ndarray  # a, weighted, (m, K, w, w)
    moves: np.ndarray  # θ_v − θ₋, (m, K, P)
    leverage: np.ndarray  # the largest of the candidates, (m,)

    def spreads(
        self, person: int, worlds: Worlds, centred: np.ndarray, seen: np.ndarray
    ) -> np.ndarray:
        """Return the covariance of the visible numbers for each candidate value, (K, k, k)."""
        others, rest, x = worlds.others, self.rest[person], self.lifted[person]
        scatter = worlds.unknown * others.scatter - worlds.share * np.outer(centred, centred)
        # H_v⁻¹ = H₋⁻¹ − H₋⁻¹x̃ (I + a x̃ᵀH₋⁻¹x̃)⁻¹a x̃ᵀH₋⁻¹
        a, length = self.curvature[person], self.lengths[person]
        inner = np.linalg.solve(np.eye(a.shape[-1]) + a @ length, a)
        half = rest @ seen - rest @ x @ (inner @ (np.swapaxes(x, 1, 2) @ (rest @ seen)))
        made = np.swapaxes(half, 1, 2) @ scatter @ half + seen.T @ others.noise_spread @ seen
        return np.asarray((made + np.swapaxes(made, 1, 2)) / 2)


def _apart(
    means: np.ndarray,
    spreads: np.ndarray,
    candidates: Candidates,
    believed: np.ndarray,
    seed: int,
) -> tuple[float, float, float]:
    covered = np.eye(len(means)) if candidates.covered is None else candidates.covered
    try:
        rng = np.random.default_rng(int(seed))
        found = best_among(means, spreads, believed, covered, rng=rng)
    except np.linalg.LinAlgError:  # along some direction nothing varies
        return 1.0, 0.0, np.inf
    return found.right, found.error, float(guessing.distance(found.told_apart, 0.5))
