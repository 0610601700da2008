"""Makes a release from a table: runs the procedure, adds noise, lists items, writes the card."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from scipy.optimize import brentq

from seepage.auditing.audit import RISKS, Tell, audit_model
from seepage.auditing.findings import (
    FALSE_POSITIVES,
    LEFT_OUT,
    MU,
    OTHER_LEVEL,
    RELABELLED,
    Audit,
    Disclosure,
    DisclosureCheck,
    GuessFinding,
    LedgerFinding,
    NoiseChoice,
    NoiseVote,
)
from seepage.auditing.gates import held_to
from seepage.auditing.neighbours import CHECKED, most_exposed
from seepage.auditing.questions import Limits, ReleaseQuestion
from seepage.auditing.release.contents import Item, Release, item_table
from seepage.auditing.release.disclosure import Neighbour, try_neighbours
from seepage.auditing.release.error_rates import ErrorRates, Usefulness
from seepage.auditing.release.ledger import GuessLoss, Recognition
from seepage.auditing.release.noise_vote import NoiseDraw, interval_kept
from seepage.auditing.release.procedure import Prepared, Procedure, released_numbers
from seepage.auditing.release.released_model import ReleasedModel
from seepage.auditing.report.rendering import render
from seepage.auditing.report.words import MANY, ONE, percent
from seepage.auditing.trained_model import TrainedModel
from seepage.core.noise import Gaussian
from seepage.core.release import release
from seepage.core.result import COARSER, round_up
from seepage.errors import InputError
from seepage.risks.guessing import accuracy_beside, rate_beside, true_positive_rate
from seepage.risks.privacy_loss import PrivacyLoss


@dataclass(frozen=True, eq=False)
class MadeRelease:
    """A release and the private findings for its author."""

    release: Release
    audit: Audit
    prepared: Prepared
    usefulness: Usefulness | None
    # ε and δ of the figures published with the noisy numbers, including the redrawing of σ: the
    # largest for any record or person that is left out, or has another class or category
    epsilon: float
    delta: float
    loss: PrivacyLoss  # the privacy loss of every record, or person
    guesses: GuessLoss  # the privacy loss for guesses of values
    # ε and δ of the figures published with the noisy numbers, by kind of replacement
    replaced: Mapping[str, tuple[float, float]]


def make_release(
    procedure: Procedure, raw: pa.Table, *, limits: Limits, name: str, tell: Tell
) -> MadeRelease:
    """Make a release, audit it, check its limits, and search for figures that disclose a record."""
    tell("fitting")
    prepared = procedure.prepare(raw)
    tell("records left out and replaced")
    tried = try_neighbours(procedure, raw, prepared)
    disclosures = tuple(neighbour.disclosure for neighbour in tried if neighbour.figures)
    noisy = release(prepared.trained.model, Gaussian(prepared.sigma))
    coding = prepared.trained.table.coding
    model = ReleasedModel.of_table(noisy, coding)
    rates = ErrorRates(prepared)
    useful = rates.noisy(rates.exact(model)) if rates.published else None
    items = tuple(_items(procedure, prepared, model, useful))
    card = write_release_card(procedure, prepared, items, useful, limits)
    beside = left_out_privacy(prepared, tried)
    if useful is not None:
        beside += PrivacyLoss.of(len(beside), epsilon=useful.epsilon)
    replaced = replaced_privacy(prepared, tried, useful)
    absent, figures = _figures_privacy(beside, prepared, tried, useful)
    audit = audit_model(
        prepared.trained,
        name=name,
        sigma=prepared.sigma,
        target_eta=procedure.target_eta,
        limits=limits,
        effort=RISKS,
        beside=absent,
        guessing=figures,
        moves=_Moves.of(prepared, tried),
        tell=tell,
    )
    drawn = "least" if prepared.vote is None else "vote"
    vote: Any = prepared.vote
    if vote is not None:
        certain = float(np.max(beside.delta))
        vote = NoiseVote(vote.sigma, vote.blocks, vote.epsilon, vote.probability, certain)
    noise = NoiseChoice(
        drawn if procedure.sigma is None else "declared",
        prepared.least,
        bool(np.any(prepared.spent)),
        vote,
    )
    # For each column, the most exposed record of whom a figure rules out values
    ruled_out = {n.column: n.row for n in reversed(tried) if n.column and n.figures}
    if disclosures:
        audit = _with_disclosures(audit, disclosures, ruled_out)
    loss, guesses = _losses(prepared, audit, ruled_out)
    loss += beside
    finding = _ledger_finding(procedure, prepared, loss, limits.max_membership)
    if finding is not None:
        finding = _with_guesses(finding, audit, guesses, prepared.recognition)
    audit = replace(
        audit,
        noise=noise,
        steps=(*audit.steps, *(f"Item of the release: {item}" for item in items)),
        disclosures=DisclosureCheck(
            len(most_exposed(prepared.eta)), disclosures, True, prepared.trained.unit
        ),
        ledger=finding,
    )
    audit = held_to(limits, audit)
    leaving = Release(model, items, card)
    return MadeRelease(leaving, audit, prepared, useful, *figures, loss, guesses, replaced)


def left_out_privacy(prepared: Prepared, tried: Sequence[Neighbour]) -> PrivacyLoss:
    """Return ε and δ of a drawn σ, for removing each record or person from the table.

    For each of the most exposed records, a refit gives the noise needed without it. For each other
    record, the noise that the rest of the table needs in the current model is multiplied by the
    smallest and by the largest change seen in the refits. The largest ε and δ between these two are
    used.
    """
    vote, needed = prepared.vote, prepared.needed
    if vote is None:
        return PrivacyLoss.of(len(needed))
    second, first = np.sort(needed)[-2:]
    others = np.where(needed == first, second, first)  # what the table needs for all but each
    place = {int(row): k for k, row in enumerate(prepared.rows)}
    without = {place[n.row]: n.needed for n in tried if n.change == LEFT_OUT}
    changes = [need / others[k] for k, need in without.items() if math.isfinite(need)]
    ends = np.stack([others * min([1.0, *changes]), others * max([1.0, *changes])], axis=1)
    for k, need in without.items():
        ends[k] = need
    pairs, which = np.unique(ends, axis=0, return_inverse=True)
    found = np.array([_worst_beside(vote, *pair) for pair in pairs.tolist()])[which.reshape(-1)]
    return PrivacyLoss.of(len(needed), epsilon=found[:, 0], delta=found[:, 1])


@dataclass(frozen=True, eq=False)
class _Moves:
    """Measures how far the released numbers move without each record, or person.

    The penalty is λ per record, so without m of n records, nλ becomes (n − m)λ. The distances of
    :meth:`~seepage.core.leakage.Leakage.membership` assume a fixed nλ, so the effect of the penalty
    is added. For the most exposed records, refits give the total. For other records, the penalty's
    effect is taken as twice its effect in the whole table, since the effect may be larger in the
    table without the record.
    """

    trained: TrainedModel
    drift: np.ndarray  # of the penalty, at most, of everybody
    refitted: np.ndarray  # the whole distance of those who were refitted, else NaN

    @classmethod
    def of(cls, prepared: Prepared, tried: Sequence[Neighbour]) -> _Moves:
        """Refit the model with the penalty for fewer records; reuse distances from ``tried``."""
        trained, numbers = prepared.trained, released_numbers(prepared.trained.model)
        sizes = np.array([len(rows) for rows in trained.records.holders])
        records = len(trained.records)
        of_size = {}
        for size in np.unique(sizes).tolist():
            l2 = trained.settings.l2 * (records - size) / records
            other = replace(trained.settings, l2=l2).fit(trained.records, trained.model)
            of_size[size] = 2 * float(np.linalg.norm(released_numbers(other) - numbers))
        refitted = np.full(len(sizes), math.nan)
        place = {int(row): k for k, row in enumerate(prepared.rows)}
        for n in tried:
            if n.change == LEFT_OUT and not set(n.figures) - {"σ"}:
                refitted[place[n.row]] = n.moved
        return cls(trained, np.array([of_size[size] for size in sizes.tolist()]), refitted)

    def __call__(self, held: np.ndarray, places: np.ndarray | None) -> np.ndarray:
        """Return the distances at the given positions; the largest ones come from refits."""
        places = np.arange(len(self.drift)) if places is None else places
        known = ~np.isnan(self.refitted[places])
        found = np.where(known, self.refitted[places], held + self.drift[places])
        for k in most_exposed(found).tolist():
            if not known[k]:
                found[k] = min(found[k], self._refit(int(places[k])))
        return found

    def _refit(self, place: int) -> float:
        """Return how far the numbers move without one record or person, with a fixed encoding."""
        records, numbers = self.trained.records, released_numbers(self.trained.model)
        rest = np.delete(np.arange(len(records)), records.holders[place])
        try:
            other = self.trained.settings.fit(records.at(rest), self.trained.model)
        except InputError:
            return math.inf
        theirs = released_numbers(other)
        same = theirs.shape == numbers.shape
        return float(np.linalg.norm(theirs - numbers)) if same else math.inf


def replaced_privacy(
    prepared: Prepared, tried: Sequence[Neighbour], useful: Usefulness | None
) -> dict[str, tuple[float, float]]:
    """Return, by kind of replacement, ε and δ of the figures published with the noisy numbers.

    Both are the largest values over all tried replacements that change no figure except a drawn σ.
    Only the most exposed records were tried; all other records get the same values.
    """
    vote, more = prepared.vote, 0.0 if useful is None else useful.epsilon
    found: dict[str, tuple[float, float]] = {}
    drawn = () if vote is None else ("σ",)  # that it would not be enough is counted by δ
    for n in tried:
        if n.change != LEFT_OUT and n.figures in ((), drawn):
            own = (0.0, 0.0) if vote is None else _worst_beside(vote, n.needed, n.needed)
            epsilon, delta = found.get(n.change, (0.0, 0.0))
            found[n.change] = max(epsilon, own[0] + more), max(delta, own[1])
    return found


def _worst_beside(vote: NoiseDraw, low: float, high: float) -> tuple[float, float]:
    """Return the largest ε and δ of a drawn σ.

    The σ that the other table needs lies between ``low`` and ``high``.
    """
    least, most = (need if math.isinf(need) else round_up(need, COARSER) for need in (low, high))
    between = vote.grid[(vote.grid > least) & (vote.grid < most)]
    found = [vote.beside(need) for need in (least, *between.tolist(), most)]
    return max(epsilon for epsilon, _ in found), max(delta for _, delta in found)


def _figures_privacy(
    beside: PrivacyLoss,
    prepared: Prepared,
    tried: Sequence[Neighbour],
    useful: Usefulness | None,
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return the largest (ε, δ) of the other figures: for removals, and for replacements.

    The first pair excludes records or people whose removal would certainly change a figure; they
    are reported separately. The second pair, for another class or category, is at least as large as
    the first, since only some replacements were tried.
    """
    told = {n.row for n in tried if n.change == LEFT_OUT and n.figures}
    hidden = beside.at(np.flatnonzero(~np.isin(prepared.rows, list(told))))
    absent = float(np.max(hidden.epsilon, initial=0.0)), float(np.max(hidden.delta, initial=0.0))
    classes = prepared.trained.table.labels.counts is not None
    kinds = (RELABELLED, OTHER_LEVEL) if classes else (OTHER_LEVEL,)
    others = [n for n in tried if n.change in kinds and not n.figures]
    found = [absent, *replaced_privacy(prepared, others, useful).values()]
    return absent, (max(epsilon for epsilon, _ in found), max(delta for _, delta in found))


def _with_disclosures(
    audit: Audit, disclosures: tuple[Disclosure, ...], ruled_out: Mapping[str, int]
) -> Audit:
    """Return the audit with risks and remedies that include disclosure by published figures.

    If a figure would change without a record, an attacker who knows all other data learns that the
    record is a member. If a figure would change with another class or other values, the attacker
    learns the class, or values that the record does not have.
    """
    absent = [d for d in disclosures if d.change == LEFT_OUT]
    replaced = [d for d in disclosures if d.change != LEFT_OUT]

    def certain(guess: GuessFinding) -> GuessFinding:
        if guess.name not in ruled_out or guess.prior != "frequencies":
            return guess
        return replace(guess, right=1.0, row=ruled_out[guess.name])

    risks = audit.risks and replace(
        audit.risks,
        guesses=tuple(certain(guess) for guess in audit.risks.guesses),
        disclosed=tuple(d.row for d in absent),
        disclosing=tuple(dict.fromkeys(figure for d in absent for figure in d.figures)),
        replaced=tuple(dict.fromkeys(d.row for d in replaced)),
        replacing=tuple(dict.fromkeys(figure for d in replaced for figure in d.figures)),
    )
    remedies = tuple(
        replace(r, membership=1.0 if absent else r.membership, reaches_target=False)
        for r in audit.remedies
    )
    return replace(audit, risks=risks, remedies=remedies)


def _items(
    procedure: Procedure, prepared: Prepared, model: ReleasedModel, useful: Usefulness | None
) -> Iterator[Item]:
    """Yield all published and withheld items."""
    figures, settings, unit = prepared.figures, prepared.trained.settings, prepared.trained.unit
    noise = (
        f"Every number has independent Gaussian noise, σ = {prepared.sigma:g}; through all noisy "
        f"numbers together, no {ONE[unit]} leaks more than η = {procedure.target_eta:g}."
    )
    yield Item("coefficients", "noised", noise, int(np.size(model.coef_)))
    yield Item("intercept", "noised", noise, int(np.size(model.intercept_)))
    yield _noise_item(procedure, prepared)
    default = " (the default)" if settings.l2 == ReleaseQuestion.l2 else ""
    yield Item("penalty λ", "declared", f"Declared in advance{default}.", 1, settings.l2)
    declared = [settings.model, procedure.target]
    yield Item("family and target", "declared", "Declared in advance.", 2, declared)
    scaled = [c for c in model.columns if c.kind == "numeric"]
    by_domain = sum(c.name in procedure.domains for c in scaled)
    if by_domain:
        how = "The centre is the middle of the declared domain, the unit a quarter of its width."
        yield Item("scaling by domains", "declared", how, 2 * by_domain)
    if by_domain < len(scaled):
        how = (
            "Unit and centre are the standard deviation and mean of a normal distribution with the "
            "column's central 90 % interval. Units are rounded up to 2 or 5 times 10ᵏ, and centres "
            "to whole units."
        )
        yield Item("scaling", "coarse", how, 2 * (len(scaled) - by_domain))
    names = sum(len(c.levels) or 2 for c in model.columns if c.kind != "numeric")
    if names:
        how = f"Only values shared by at least {procedure.least_holders} {MANY[unit]} are named."
        yield Item("names of levels", "coarse", how, names)
    yield Item("names of columns", "declared", "As in the table.", len(model.columns))
    if classes := list(figures["classes"]):
        how = f"Each has at least {procedure.least_holders} {MANY[unit]}."
        yield Item("classes", "coarse", how, len(classes), classes)
    if "unit of the target" in figures:
        how, protection = "The unit is a quarter of the width of the target's domain.", "declared"
        if procedure.target not in procedure.domains:
            how, protection = (
                "The unit is the standard deviation of a normal distribution with the target's "
                "central 90 % interval, rounded up to 2 or 5 times 10ᵏ.",
                "coarse",
            )
        yield Item("unit of the target", protection, how, 1, figures["unit of the target"])
    how = "Rounded down to 1, 2 or 5 times 10ᵏ."
    count = f"number of {MANY[unit]}"
    yield Item(count, "coarse", how, 1, figures[count])
    if useful is not None:
        how, constant = useful.words(), f"{useful.name}, for a constant prediction"
        yield Item(useful.name, "noised", how, 1, useful.share)
        yield Item(constant, "noised", how, 1, useful.constant)
    withheld = (
        f"Only the private report contains the leakage of {MANY[unit]}, columns and groups, the "
        "errors without noise, and the quantiles and counts of values."
    )
    yield Item("all other figures", "withheld", withheld)


def _noise_item(procedure: Procedure, prepared: Prepared) -> Item:
    """Return the item that describes how σ is protected."""
    unit = prepared.trained.unit
    if prepared.vote is not None:
        vote = prepared.vote
        how = (
            f"Drawn by a vote of {vote.blocks} blocks of {MANY[unit]}, fitted separately, and "
            "redrawn until it met the target. Given the rounded figures, each draw is "
            f"ε-differentially private with ε = {vote.epsilon:g} (one {ONE[unit]} added, removed "
            "or replaced)."
        )
        return Item("noise σ", "drawn", how, 1, prepared.sigma)
    if procedure.sigma is None:
        how = "The smallest σ that meets the target, rounded up to 1, 2 or 5 times 10ᵏ."
        return Item("noise σ", "coarse", how, 1, prepared.sigma)
    how = "Declared in advance, and confirmed to meet the target."
    return Item("noise σ", "declared", how, 1, prepared.sigma)


def write_release_card(
    procedure: Procedure,
    prepared: Prepared,
    items: Sequence[Item],
    useful: Usefulness | None,
    limits: Limits,
) -> str:
    """Return the model card, of declared, coarse or noisy figures only, as Markdown."""
    membership, gain = limits.max_membership, limits.max_guess_gain
    kept = []
    if membership is not None and membership < 1:
        kept.append(
            f"membership inference succeeds at most {percent(membership)} of the time (chance: "
            "50 %)"
        )
    if gain is not None and gain < 1:
        kept.append(
            f"the release raises the success rate of guessing a class or category by at most "
            f"{100 * gain:.3g} percentage points"
        )
    if (rate := limits.max_guess_tpr) is not None and rate < 1:
        kept.append(
            f"attribute inference recognises a class or category at most {percent(rate)} of the "
            "time at a false positive rate of 1 %"
        )
    # If σ follows the most exposed record, the other figures' ε says nothing about all that leaves.
    follows = prepared.vote is None and procedure.sigma is None
    drawn = (prepared.vote.epsilon if prepared.vote else 0.0) + (useful.epsilon if useful else 0.0)
    epsilon = 0.0 if follows else drawn
    return render(
        "release-card.md.j2",
        procedure=procedure,
        prepared=prepared,
        settings=prepared.trained.settings,
        items=items,
        listing=item_table(items),
        kept=kept,
        categories=any(limit is not None and limit < 1 for limit in (gain, rate)),
        checked=CHECKED,
        unit=prepared.trained.unit,
        epsilon=epsilon,
        interval_kept=interval_kept(epsilon),
        useful=useful,
        useless=useful is not None and useful.share >= useful.constant,
    )


def _losses(
    prepared: Prepared, audit: Audit, ruled_out: Mapping[str, int]
) -> tuple[PrivacyLoss, GuessLoss]:
    """Return the privacy loss of the noisy numbers for everybody, and of the release for guesses.

    Records whose membership risk was not examined get the largest μ of those examined. μ is
    infinite if no risk is known, or if removing the record or person would change a published
    figure. For guesses of a column, μ is infinite if they were not measured, or if a published
    figure rules out some of its values.
    """
    every, risks = audit.records.every, audit.risks
    mu: Any = np.inf
    if risks is not None and MU in every.numbers:
        known = every.numbers[MU]
        mu = np.where(np.isnan(known), np.nanmax(known), known)
        mu[np.isin(every.row, risks.disclosed)] = np.inf
    eta = prepared.eta / prepared.sigma
    loss, table = PrivacyLoss.of(len(eta), eta=eta, mu=mu), prepared.trained.table
    distance = dict.fromkeys([table.target, *(a.name for a in table.attributes)], math.inf)
    if risks is None:
        return loss, GuessLoss(distance)
    for guess in risks.guesses:
        if guess.mu is not None:
            distance[guess.name] = guess.mu
    distance |= dict.fromkeys(ruled_out, math.inf)
    return loss, GuessLoss(distance, risks.guess_epsilon, risks.guess_delta)


def _with_guesses(
    finding: LedgerFinding, audit: Audit, own: GuessLoss, recognition: Recognition | None
) -> LedgerFinding:
    """Return the finding with the largest attribute-inference gain over all releases.

    Let A be the accuracy, at even odds, with which two values of a record can be distinguished over
    all releases. A guess among K levels then gains at most ``(1 − 1/K)(2A − 1)`` for any prior (see
    :func:`~seepage.auditing.remedies.with_noise`).
    """
    if audit.risks is None or recognition is None or not finding.known:
        return finding
    for guess in audit.risks.guesses:
        earlier = [GuessLoss.of(entry, guess.name) for entry in recognition.entries]
        each = [own, *earlier]
        mu = math.hypot(*(loss.distance[guess.name] for loss in each))
        epsilon, delta = sum(x.epsilon for x in each), min(sum(x.delta for x in each), 1.0)
        even = float(accuracy_beside(mu, 0.5, epsilon, delta))
        rate = float(true_positive_rate(mu, FALSE_POSITIVES[0]))
        tpr = rate_beside(rate, FALSE_POSITIVES[0], epsilon, delta)
        gain = (1 - 1 / guess.levels) * (2 * even - 1)
        if finding.gain is None or gain > finding.gain:
            finding = replace(finding, gain=gain, guessed=guess.name)
        finding = replace(finding, tpr=max(tpr, finding.tpr or 0.0))
    return finding


def _ledger_finding(
    procedure: Procedure, prepared: Prepared, loss: PrivacyLoss, limit: float | None
) -> LedgerFinding | None:
    """Return what the ledger records about these records, and their leakage over all releases."""
    recognition, ledger = prepared.recognition, procedure.ledger
    if recognition is None or ledger is None:
        return None
    records = prepared.trained.records
    first = records.firsts
    earlier = recognition.loss.at(first)
    certain = np.isinf(earlier.mu) | np.isinf(earlier.epsilon) | (earlier.delta >= 1)
    total = earlier + loss
    right, pure = total.membership(), total.delta == 0
    # A σ that follows the most exposed record is no figure with an ε of its own.
    follows = prepared.vote is None and procedure.sigma is None
    return LedgerFinding(
        releases=len(ledger.releases),
        known=int(np.sum(recognition.known[first])),
        spent=float(np.max(earlier.eta)),
        eta=float(np.max(total.eta)),
        doubts=recognition.doubts,
        unit=prepared.trained.unit,
        membership=float(np.max(right)),
        row=int(prepared.rows[np.argmax(right)]),
        certain=int(np.sum(certain)),
        epsilon=float(np.max(total.epsilon)),
        delta=float(np.max(total.delta)),
        interval=None if follows or not pure.any() else interval_kept(np.max(total.epsilon[pure])),
        enough=None if limit is None else _enough(earlier, loss, prepared.sigma, limit),
    )


def _enough(earlier: PrivacyLoss, loss: PrivacyLoss, sigma: float, limit: float) -> float | None:
    """Return the σ that keeps membership inference within a limit over all releases, if any.

    μ is inversely proportional to σ.
    """

    def over(share: float) -> float:
        with np.errstate(invalid="ignore"):
            mu = np.where(np.isinf(loss.mu), np.inf, share * loss.mu)
        return float(np.max((earlier + replace(loss, mu=mu)).membership())) - limit

    if over(0.0) >= 0:
        return None
    if over(1.0) <= 0:
        return sigma
    return round_up(sigma / brentq(over, 0.0, 1.0))
