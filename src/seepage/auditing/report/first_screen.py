"""The first screen of a report page: three numbers with baselines, a histogram, and remedies.

Reports of every kind fill the same slots. All text and counts, for every computed noise and every
group, are prepared in this module; the template and the script only display them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from operator import attrgetter
from typing import Any

import numpy as np

from seepage.auditing.decision.presets import DEFAULT, PRESETS
from seepage.auditing.findings import NOT_MEASURED, AttributeFinding, Audit, Remedy
from seepage.auditing.questions import MAX_GUESS_GAIN, MAX_MEMBERSHIP
from seepage.auditing.report.verdict import meets_limits
from seepage.auditing.report.words import (
    MANY,
    compared,
    count_recognised,
    error_at,
    limit_on,
    most_exposed,
    number,
    number_of,
    percent,
    relative_error,
    say_error,
    short,
    spread_kept,
    whom,
)
from seepage.core.result import SAME
from seepage.risks.guessing import distance
from seepage.tables.names import counted


@dataclass(frozen=True)
class Card:
    """A number with its baseline, such as an attacker's success with and without the release."""

    name: str  # the quantity
    # The two numbers, and their meaning
    baseline: str
    value: str
    meaning: str
    # ``good`` or ``bad``, and the judgement in a few words; both are empty without a judgement
    tone: str = ""
    judged: str = ""
    beside: tuple[str, ...] = ()  # the same quantity for another attacker or column


@dataclass(frozen=True)
class Bar:
    """A histogram bar: how many records, people, clients or secrets lie between two values."""

    ends: str
    count: int
    over: bool  # whether these values lie above the limit
    others: int | None = None  # the count in the group of comparison, if there is one


@dataclass(frozen=True)
class Histogram:
    """A histogram, with a line at the limit."""

    bars: tuple[Bar, ...]
    title: str
    axis: str  # the label of the horizontal axis
    line: int | None  # the first bar above the limit
    line_words: str
    ticks: tuple[tuple[int, str], ...]  # the labelled bars, with the label at the start of each
    alternative: str  # a description in words
    counted: str = "records"  # the label of the vertical axis

    def height(self, count: int) -> float:
        """Return the height of a bar with this count, on a logarithmic axis."""
        most = max([1, *(max(bar.count, bar.others or 0) for bar in self.bars)])
        return float(np.log1p(count) / np.log1p(most))


@dataclass(frozen=True)
class RemedyLine:
    """A remedy, its protection and its cost."""

    name: str
    protection: tuple[str, ...]  # a cell for each column of the table
    error: str
    compared: str  # how it compares with a constant prediction, or why this is unknown
    tone: str = ""


@dataclass(frozen=True)
class Remedies:
    """Remedies, the best first, compared with the current release."""

    columns: tuple[str, ...]  # the headings of the measures of protection
    lines: tuple[RemedyLine, ...]
    error: str = "error"  # the heading of the cost
    note: str = ""
    title: str = "What would help"
    legend: tuple[tuple[str, str], ...] = ()  # symbols and their meanings


@dataclass(frozen=True)
class NoiseStop:
    """Contents of the screen for one noise scale."""

    sigma: str
    eta: str
    cards: tuple[Card, ...]
    counts: tuple[int, ...]  # of the bars
    groups: tuple[tuple[int, ...], ...]  # the same for each group


@dataclass(frozen=True)
class FirstScreen:
    """Contents of the first screen, without the verdict."""

    cards: tuple[Card, ...]
    histogram: Histogram | None
    remedies: Remedies
    stops: tuple[NoiseStop, ...] = ()
    own: int = 0  # the stop of the release itself
    groups: tuple[str, ...] = ()  # names of the groups that can be picked
    open: tuple[str, ...] = ()  # questions that this audit leaves open
    # Whose limits the verdict compares with, and whether they are ``met``
    standard: tuple[str, str] | None = None
    figure: str = ""  # the name of a drawing, where there is no histogram

    def data(self) -> dict[str, Any]:
        """Return the data for the script of the page."""
        return {
            "own": self.own,
            "stops": [asdict(stop) for stop in self.stops],
            "bars": [] if self.histogram is None else [bar.ends for bar in self.histogram.bars],
        }


def show_audit(audit: Audit) -> FirstScreen:
    """Return the first screen for the audit of a linear model, or for its release."""
    groups = [name for name, places in audit.members.items() if len(places)][:40]
    edges = _Edges(audit) if audit.records.examined else None
    curve, risks = audit.curve, audit.risks
    known_curve = None if risks is None else risks.curve
    stops: tuple[NoiseStop, ...] = ()
    own = np.flatnonzero(np.asarray(curve.sigma) == audit.sigma)
    known = known_curve is not None and len(curve.sigma) > 1
    if known and edges is not None and len(own):
        stops = tuple(
            NoiseStop(
                sigma=number(sigma),
                eta=number(curve.worst_eta[k]),
                cards=tuple(_cards(audit, k)),
                counts=edges.counts(float(sigma)),
                groups=tuple(edges.counts(float(sigma), audit.members[name]) for name in groups),
            )
            for k, sigma in enumerate(curve.sigma)
        )
    guessed = risks is not None and bool(risks.guesses)
    other_noise = guessed and known_curve is not None and known_curve.right is None
    unanswered = {
        "membership and guesses": risks is None,
        "guesses with other noise": risks is not None and (known_curve is None or other_noise),
        "usefulness": error_at(audit, audit.sigma) is None,
    }
    name = audit.preset or DEFAULT
    of = "Preset" if audit.preset else "No preset chosen; our default,"
    standard = f"{of} “{name}” ({PRESETS[name].audience}):"
    return FirstScreen(
        cards=tuple(_cards(audit)),
        histogram=None if edges is None else edges.histogram(),
        remedies=_remedies(audit),
        stops=stops,
        own=int(own[0]) if stops else 0,
        groups=tuple(
            f"{short(column, 24)}: {short(label, 24)} ({len(audit.members[column, label]):,})"
            for column, label in groups
        )
        if stops
        else (),
        open=tuple(question for question, is_open in unanswered.items() if is_open),
        standard=(standard, "met" if meets_limits(audit) else "not met")
        if audit.preset or not audit.gates
        else None,
        figure="leakage" if edges is None else "",
    )


# The three numbers --------------------------------------------------------------------------------


def _cards(audit: Audit, stop: int | None = None) -> Iterator[Card]:
    """Yield the numbers of the release, or of the same model at another noise of the curve."""
    if audit.risks is not None:
        yield _membership(audit, stop)
    value = _value(audit, stop)
    if value is not None:
        yield value
    error = error_at(audit, audit.sigma) if stop is None else float(audit.curve.error[stop])
    if error is not None:
        word = compared(audit, audit.sigma if stop is None else float(audit.curve.sigma[stop]))
        yield Card(
            name=f"{short(audit.curve.error_name, 40)}, new {MANY[audit.unit]}".capitalize(),
            baseline=say_error(audit, audit.curve.trivial_error),
            value=say_error(audit, error),
            meaning="constant prediction → model",
            tone=TONES[word],
            judged=word,
        )


# How a model compares with a constant prediction, as a tone
TONES = {"better": "good", "not told apart": "caution", "worse": "bad", NOT_MEASURED: ""}

_INFORMED = "attacker knows all others"


def _judged(audit: Audit, over: bool, limit: str, own: bool) -> dict[str, str]:
    """Return the tone and judgement of a number, which may be within its limit only with noise."""
    if own and audit.published_as_it_is and not over:
        return {"tone": "", "judged": f"only with noise σ = {number(audit.sigma)}"}
    return {"tone": "bad" if over else "good", "judged": f"{'over' if over else 'within'} {limit}"}


def _membership(audit: Audit, stop: int | None) -> Card:
    risks = audit.risks
    assert risks is not None  # noqa: S101 - the caller has looked
    right = risks.recognised
    if stop is not None and not risks.disclosed and risks.curve is not None:
        right = float(risks.curve.membership[stop])
    limit = limit_on(audit, "--max-membership", MAX_MEMBERSHIP)
    own = stop is None or float(audit.curve.sigma[stop]) == audit.sigma
    judged = _judged(audit, right > limit * (1 + SAME), f"limit {percent(limit)}", own)
    over = count_recognised(audit, limit) if own and judged["tone"] else 0
    if over and audit.records.examined:
        first = list(dict.fromkeys([*risks.disclosed, *audit.records.recognised(over)]))[:4]
        names = ", ".join(short(audit.called(row), 16) for row in first)
        more = f" and {over - len(first):,} more" if over > len(first) else ""
        judged["judged"] += f": {'row' if over == 1 else 'rows'} {names}{more}"
    found, beside = audit.outsider if own else None, _INFORMED
    if found is not None:
        noise = "no noise: " if found.sigma is None else ""
        who = found.attacker.partition(",")[0].removeprefix("an ")
        beside = (
            f"{noise}{who}: {percent(found.membership)} (estimate); informed attacker: "
            f"{percent(found.informed)}"
        )
    elif own and audit.outsider_reason:
        beside = "attacker who knows fewer records: not estimated"
    return Card(
        name="Recognised in the training data",
        baseline="50 %",
        value=percent(right),
        meaning=f"chance → at most ({whom(audit, risks.recognised_row)})",
        **judged,
        beside=(beside,),
    )


def _value(audit: Audit, stop: int | None) -> Card | None:
    """Return the guess with the largest gain or, without guesses, the easiest numeric column."""
    risks = audit.risks
    numbers = [a for a in most_exposed(audit.attributes) if a.kind == "numeric" and a.spread > 0]
    numbers = [a for a in numbers if a.sensitive] or numbers
    sigma = audit.sigma if stop is None else float(audit.curve.sigma[stop])
    number_card = _number(audit, numbers[0], sigma / audit.sigma) if numbers else None
    if risks is None or risks.worst_guess is None:
        return number_card
    worst = risks.worst_guess
    name, prior, right, baseline = worst.name, worst.prior, worst.right, worst.baseline
    who = f" ({whom(audit, worst.row, worst.unit)})"
    curve = risks.curve
    if stop is not None and sigma != audit.sigma:
        if curve is None or curve.right is None or curve.baseline is None:
            unknown = f"“{short(name, 24)}” guessed right"
            return Card(unknown, percent(baseline), "–", "not computed with this noise")
        name, prior, who = curve.names[stop], curve.priors[stop], ""
        right, baseline = float(curve.right[stop]), float(curve.baseline[stop])
    limit = limit_on(audit, "--max-guess-gain", MAX_GUESS_GAIN)
    over, own = right - baseline > limit * (1 + SAME), sigma == audit.sigma
    judged = _judged(audit, over, f"{100 * limit:g}-point limit", own)
    beside = ""
    if number_card is not None and numbers[0].sensitive:
        told = f"{number_card.baseline} → {number_card.value}"
        beside = f"“{short(numbers[0].name, 24)}” estimated: {told}"
    return Card(
        name=f"“{short(name, 24)}” guessed right",
        baseline=percent(baseline),
        value=percent(right),
        meaning=f"{_GUESSER[prior]} → with release{who}",
        **judged,
        beside=(beside,) if beside else (),
    )


def _number(audit: Audit, column: AttributeFinding, times: float) -> Card:
    """Return how much a normal prior of the column's spread narrows at a multiple of the noise."""
    ratio = relative_error(column, column.smallest_error * times)
    kept = spread_kept(ratio)
    return Card(
        name=f"“{short(column.name, 24)}” estimated to within",
        baseline=f"±{number(column.spread)}",
        value=f"±{number(kept * column.spread)}",
        meaning=f"without → with release ({whom(audit, column.easiest_row)})",
        tone="bad" if ratio < 0.5 else "good",  # as protection() has it
        judged=f"least error {'below' if ratio < 0.5 else 'at least'} half the spread",
    )


# What a guess starts from without the release
_GUESSER = {"model": "predicted from other records", "frequencies": "commonest value"}


# People -------------------------------------------------------------------------------------------


class _Edges:
    """Histogram of membership risk from chance to certainty; one bar starts at the limit."""

    def __init__(self, audit: Audit) -> None:
        self.audit, risks = audit, audit.risks
        assert risks is not None  # noqa: S101 - they have been examined
        self.limit = limit_on(audit, "--max-membership", MAX_MEMBERSHIP)
        # About twenty bars, of two and a half percentage points
        below = max(1, round((self.limit - 0.5) / 0.025))
        above = max(1, round((1 - self.limit) / 0.025)) if self.limit < 1 else 0
        first = np.linspace(0.5, self.limit, below + 1)
        self.edges = np.concatenate([first, np.linspace(self.limit, 1.0, above + 1)[1:]])
        self.line = below if above else None
        # Who is at the limit has not crossed it.
        starts = np.where(np.arange(len(self.edges) - 1) == below, 1 + SAME, 1.0) * self.edges[:-1]
        self.distances = distance(starts, 0.5, risks.epsilon, risks.delta)
        self.distances[0] = 0.0

    def counts(self, sigma: float, places: np.ndarray | None = None) -> tuple[int, ...]:
        """Return the number of records or people, or of group members, in each bar at noise σ."""
        records, disclosed = self.audit.records, self.audit.risks.disclosed  # type: ignore[union-attr]
        own = np.concatenate([np.zeros(0, int), *map(records.place_of, disclosed)])
        # μ is inversely proportional to σ.
        distances = self.distances * (sigma / self.audit.sigma)
        if places is not None:
            own = np.intersect1d(own, places)
        # Whose membership a published figure discloses is recognised with any noise.
        reached = records.reaching(distances, places) + len(own) - records.reaching(distances, own)
        return tuple((-np.diff(reached, append=0)).tolist())

    def histogram(self) -> Histogram:
        """Return the histogram of the release itself."""
        audit, counts = self.audit, self.counts(self.audit.sigma)
        line = len(counts) if self.line is None else self.line
        over, examined = sum(counts[line:]), sum(counts)
        who = MANY[audit.unit]
        whole = "" if examined == audit.records.count else f" (the {examined:,} most exposed)"
        ends = [
            f"{100 * a:g} to {100 * b:g} %"
            for a, b in zip(self.edges, self.edges[1:], strict=False)
        ]
        return Histogram(
            bars=tuple(
                Bar(text, count, k >= line)
                for k, (text, count) in enumerate(zip(ends, counts, strict=True))
            ),
            title=f"Risk of recognition{whole}",
            axis="success rate of membership inference",
            counted=who,
            line=self.line,
            line_words=f"limit {percent(self.limit)}",
            ticks=tuple(
                (k, f"{100 * edge:.3g} %")
                for k, edge in enumerate(self.edges)
                if k in (0, line, len(counts))
                or (k % 4 == 0 and abs(k - line) > 2 and len(counts) - k > 2)
            ),
            alternative=(
                f"Histogram of {number_of(examined, audit.unit)}{whole} by the success rate of "
                f"membership inference. Above the limit of {percent(self.limit)}: {over:,}. Median "
                f"over all {examined:,}: {percent(audit.risks.median if audit.risks else 0.5)}."
            ),
        )


# The symbols of the first screen
LEGEND = (
    ("σ", "noise on each released number"),
    ("λ", "penalty on large coefficients"),
    ("η", "leakage: 1/η is the least error of an unbiased estimate, in standard deviations"),
)

# What would help ----------------------------------------------------------------------------------


def _remedies(audit: Audit) -> Remedies:
    """Return the current release, its remedies in order of rank, and a constant prediction.

    Remedies whose model is no better than a constant prediction are listed below it.
    """
    constant, error = audit.curve.trivial_error, error_at(audit, audit.sigma)
    risks = audit.risks
    worst = None if risks is None else risks.worst_guess
    now = _line(
        audit,
        f"as it is ({_set('σ', audit.sigma)})",
        "yes" if meets_limits(audit) else "no",
        None if risks is None else risks.recognised,
        None if worst is None else worst.gain,
        error,
        compared(audit, audit.sigma),
    )
    tried = [r for r in audit.remedies if r.error is not None and r.reason is None]
    lines = [
        (remedy.no_better, _remedy_line(audit, remedy))
        for remedy in sorted(tried, key=attrgetter("rank"))
    ]
    baseline = RemedyLine("constant prediction", ("–",) * 3, say_error(audit, constant), "")
    left = len(audit.remedies) - len(tried)
    note = ""
    if left:
        remedies = counted(left, "more remedy", "more remedies")
        note = f"{remedies} did not help or {'was' if left == 1 else 'were'} not tried."
    return Remedies(
        ("within limits", "recognised", "guess gains"),
        (
            now,
            *(line for no_better, line in lines if not no_better),
            baseline,
            *(line for no_better, line in lines if no_better),
        ),
        "error",
        note,
        "What would help" if now.protection[0] != "✓ yes" else "Alternatives",
        tuple(pair for pair in LEGEND if pair[0] != "λ" or any(r.l2 for r in tried)),
    )


def _remedy_line(audit: Audit, remedy: Remedy) -> RemedyLine:
    """Return a remedy with its settings, and whether it meets the limits, as far as is known."""
    taken, risks = [_set("λ", remedy.l2)] if remedy.l2 is not None else [], audit.risks
    if remedy.sigma is not None and (remedy.l2 is None or remedy.sigma != audit.sigma):
        taken.append(_set("σ", remedy.sigma))
    name, met = short(remedy.name, 40), "yes" if remedy.reaches_target else "no"
    if risks is not None and risks.disclosed:  # by figures that no remedy changes
        met = "no"
    elif risks is not None:
        guessed = risks.worst_guess is not None
        unknown = remedy.membership is None or (remedy.gain is None and guessed)
        met = NOT_MEASURED if unknown else met
    named = f"{name} ({', '.join(taken)})" if taken else name
    measured = remedy.membership, remedy.gain, remedy.error, remedy.compared
    return _line(audit, named, met, *measured)


def _set(name: str, value: float) -> str:
    """Return a setting as text without line breaks."""
    return f"{name} = {number(value)}".replace(" ", "\N{NO-BREAK SPACE}")


def _line(
    audit: Audit,
    name: str,
    met: str,
    right: float | None,
    gain: float | None,
    error: float | None,
    word: str,
) -> RemedyLine:
    """Return a row of the table; unmeasured values are marked."""
    guessed = audit.risks is not None and audit.risks.worst_guess is not None
    cells = (
        {"yes": "✓ yes", "no": "✕ no"}.get(met, met),
        NOT_MEASURED if right is None else percent(right),
        f"{100 * gain:.3g} pts" if gain is not None else NOT_MEASURED if guessed else "–",
    )
    word = NOT_MEASURED if error is None else word
    return RemedyLine(name, cells, say_error(audit, error), word, TONES[word])
