"""Formats numbers and names, and derives quantities from an audit for the report.

Output is short, printable and escaped, whatever the table contains. The sentences themselves are
templates (``templates/sentences.j2``), selected by :mod:`seepage.auditing.report.verdict`.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.special import ndtri

from seepage.auditing.findings import (
    MU,
    NOT_MEASURED,
    ONE_PERSON,
    ONE_ROW,
    AttributeFinding,
    Audit,
    Gate,
    GuessFinding,
)
from seepage.core.result import SAME
from seepage.risks.guessing import distance
from seepage.tables.names import counted

# The unit of a statement, in the singular and in the plural
ONE = {ONE_ROW: "record", ONE_PERSON: "person"}
MANY = {ONE_ROW: "records", ONE_PERSON: "people"}

_LITTLE_GAIN, _LARGE_GAIN = 0.05, 0.20  # of a guess from the release, as probabilities
_LITTLE_TPR, _LARGE_TPR = 0.10, 0.50  # of telling a level at 1 % false positives
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
# Controls and lone surrogates cannot be written; direction overrides would turn the page around.
_UNPRINTABLE = {"Cc", "Cs", "Cn", "Co"}
_OVERRIDES = set("\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u2028\u2029")
_MARKDOWN = {c: "\\" + c for c in "\\`*_{}[]#|~!:@$"} | {"<": "&lt;", ">": "&gt;", "&": "&amp;"}


def number(value: float) -> str:
    """Write a number with three digits: ``0.142``, ``12,300``, ``4.2 × 10⁻⁵``, ``∞``."""
    value = float(value)
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value == 0:
        return "0"
    exponent = math.floor(math.log10(abs(value)))
    if -4 < exponent < 6:
        rounded = float(f"{value:.3g}")
        text = f"{rounded:,.0f}" if abs(rounded) >= 100 else f"{rounded:.3g}"
        return text.replace("-", "−")
    mantissa, power = f"{value:.2e}".split("e")
    mantissa = mantissa.rstrip("0").rstrip(".").replace("-", "−")
    return f"{mantissa} × 10{str(int(power)).translate(_SUPERSCRIPT)}"


def plain(text: object) -> str:
    """Return a caller's name or value as one printable line."""
    safe = "".join(
        " " if c in _OVERRIDES or unicodedata.category(c) in _UNPRINTABLE else c for c in str(text)
    )
    return " ".join(safe.split()) or "(no name)"


def short(text: object, width: int = 48) -> str:
    """Return a caller's name or value as one printable line of at most ``width`` characters."""
    line = plain(text)
    return line if len(line) <= width else line[: width - 1].rstrip() + "…"


def markdown(text: object, width: int = 48) -> str:
    """Return a caller's name or value, shortened and escaped for Markdown."""
    escaped = "".join(_MARKDOWN.get(c, c) for c in short(text, width))
    # Renderers turn bare addresses, such as www.example.org, into links, but not across an entity.
    return re.sub(r"(?<=\w)\.(?=\w)", "&#46;", escaped)


def coarse(value: float, rounded: Callable[[float], float]) -> str:
    """Write a data-dependent figure, rounded up or down to the coarse grid."""
    return number(rounded(value)) if np.isfinite(value) and value > 0 else number(value)


def bits(value: float) -> str:
    """Write an estimate in bits; negative values count as zero."""
    return number(round(max(value, 0.0), 3)) if math.isfinite(value) else "–"


def interval(value: float, low: float, high: float) -> str:
    """Write an estimate in bits with its 95 % interval."""
    return f"{bits(value)} ({bits(low)} to {bits(high)})"


def called(name: object, kind: str, width: int = 48) -> str:
    """Return a name; a bare number follows its kind: ``layer 0``, but ``fc1``."""
    text = short(name, width)
    return f"{kind} {text}" if kind and text.isdigit() else text


def quoted(name: object, kind: str = "", width: int = 48) -> str:
    """Return a name in quotation marks for a sentence, or ``layer 0`` for a bare number."""
    text = called(name, kind, width)
    return text if text != short(name, width) else f"“{text}”"


def several(names: Sequence[object], most: int = 4, kind: str = "") -> str:
    """Return names for a sentence; names beyond the first few are only counted."""
    said = [quoted(name, kind) for name in names[:most]]
    if len(names) > most:
        return ", ".join(said) + f" and {len(names) - most} more"
    return " and ".join([", ".join(said[:-1]), said[-1]] if len(said) > 1 else said)


@dataclass(frozen=True)
class Answer:
    """A frequent question with its answer."""

    question: str
    text: str


@dataclass(frozen=True)
class Verdict:
    """The verdict in words, printed in every report and added to the summary."""

    tone: str  # ``good``, ``caution`` or ``bad``: the colour of the box; ``label`` says it in words
    # The kind of answer, and the answer
    label: str
    headline: str
    sentences: tuple[str, ...]  # the reasons, one sentence each
    answers: tuple[Answer, ...] = ()  # frequent questions with their answers, printed first
    gates: tuple[tuple[Gate, str], ...] = ()  # every limit that was set, with a sentence
    advice: tuple[tuple[str, str], ...] = ()  # the remedies by name, with a sentence each

    @property
    def passed(self) -> bool:
        """Whether every limit that was set is met."""
        return all(gate.passed for gate, _ in self.gates)

    def summary(self) -> dict[str, Any]:
        """Return the verdict and its gates, each gate with its sentence and its numbers."""
        return {
            "verdict": {"tone": self.tone, "label": self.label, "headline": self.headline},
            "gates": [asdict(gate) | {"text": text} for gate, text in self.gates],
            "passed": self.passed,
        }


@dataclass(frozen=True)
class Limit:
    """The limit on the leakage of a record, and its origin in words."""

    eta: float
    words: str


def find_limit(audit: Audit) -> Limit:
    """Return the caller's limit, or the calibration target, or the default limit, η = 1."""
    for gate in audit.gates:
        if gate.name == "--max-eta":
            return Limit(gate.limit, "your limit")
    eta = 1.0 if audit.target_eta is None else audit.target_eta
    return Limit(eta, "the target" if audit.noise.has_target else "the default limit")


def count_over(audit: Audit) -> int:
    """Return how many records leak more than the limit."""
    return audit.records.over(find_limit(audit).eta * (1 + SAME))


def limit_on(audit: Audit, option: str, default: float) -> float:
    """Return the caller's limit on a risk, or the default limit."""
    return next((gate.limit for gate in audit.gates if gate.name == option), default)


def count_recognised(audit: Audit, limit: float) -> int:
    """Return how many records membership inference recognises more often than a limit allows."""
    risks = audit.risks
    if risks is None or not risks.recognised > limit * (1 + SAME):
        return 0
    certain = set(risks.disclosed)
    if limit < 1 and audit.records.examined:
        farthest = distance(limit * (1 + SAME), 0.5, risks.epsilon, risks.delta)
        reached = int(audit.records.reaching(np.asarray(farthest)))
        places = map(audit.records.place_of, certain)
        own = (audit.records.at(place).numbers[MU] for place in places)
        both = sum(bool(mu.sum() >= farthest) for mu in own)
        return max(reached + len(certain) - both, 1)
    return max(len(certain), 1)


def relative_error(attribute: AttributeFinding, error: float) -> float:
    """Return an attack's error relative to the spread of a column.

    For a numeric column, the error is divided by the standard deviation. A category's error is on
    its one-hot code, where 1 is a whole level, and is returned unchanged.
    """
    if attribute.kind == "numeric" and np.isfinite(attribute.spread) and attribute.spread > 0:
        return float(error / attribute.spread)
    return float(error)


def level_error(attribute: AttributeFinding) -> float | None:
    """Return the minimum standard error for a category, in levels; ``None`` if unknown.

    A category changes by whole levels, so an estimate need be unbiased only at the category's
    values, and ``1/η`` does not bound the estimate's error. For two values whose releases are ``μ``
    standard deviations of the noise apart, the bound is ``1/√(exp(μ²) − 1)`` (Hammersley 1950;
    Chapman and Robbins 1951). It agrees with the Cramér–Rao bound only for small μ. At a false
    positive rate of 1 %, the true positive rate of distinguishing the two values is ``Φ(Φ⁻¹(0.01) +
    μ)``; μ is computed from it.
    """
    if attribute.tpr is None:
        return None
    mu = float(ndtri(attribute.tpr) - ndtri(0.01))
    return 1 / math.sqrt(math.expm1(min(mu * mu, 700.0))) if mu > 0 else math.inf


def protection(attribute: AttributeFinding) -> str:
    """Return the protection of a column's easiest record: ``strong``, ``partial`` or ``weak``.

    A category is judged by how much the best guess gains from the release: strong up to 5
    percentage points, weak above 20. A guess of a rare level gains little even if the level is
    recognised. The true positive rate at a false positive rate of 1 % therefore counts as well:
    strong up to 10 %, weak above 50 %. A number has strong protection if the best unbiased attack
    errs by at least the spread of the column. A normal prior of that spread then keeps at least
    0.7 of its width. The protection is weak if the attack errs by less than half of the spread.
    """
    if attribute.gain is not None:
        tpr = 0.0 if attribute.tpr is None else attribute.tpr
        if attribute.gain <= _LITTLE_GAIN and tpr <= _LITTLE_TPR:
            return "strong"
        return "partial" if attribute.gain <= _LARGE_GAIN and tpr <= _LARGE_TPR else "weak"
    error = relative_error(attribute, attribute.smallest_error)
    if error >= 1 - SAME:
        return "strong"
    return "partial" if error >= 0.5 else "weak"


def number_of(count: int, unit: str) -> str:
    """Return a count with its unit: ``1 person``, ``595 people``."""
    return counted(count, ONE[unit], MANY[unit])


def whom(audit: Audit, row: int, unit: str | None = None) -> str:
    """Return the subject of a statement: a row, or a person, who is named by their first row."""
    called = short(audit.called(row))
    if (unit or audit.unit) != ONE_PERSON:
        return f"row {called}"
    others = audit.records.held_by(row) - 1
    more = f" and {counted(others, 'more row')}" if others > 0 else ""
    return f"the person of row {called}{more}"


def tried(audit: Audit, guess: GuessFinding) -> str:
    """Return how many records were examined for a guess, if not all."""
    total = audit.records.count if guess.unit == audit.unit else audit.records.rows
    counted_on = f", of the {guess.looked_at:,} {MANY[guess.unit]} tried"
    return "" if guess.looked_at == total else counted_on


def capital(text: str) -> str:
    """Return a text with its first letter in upper case."""
    return text[:1].upper() + text[1:]


def most_exposed(attributes: tuple[AttributeFinding, ...]) -> tuple[AttributeFinding, ...]:
    """Return the attributes, the easiest to attack first."""
    return tuple(sorted(attributes, key=lambda a: relative_error(a, a.smallest_error)))


def error_at(audit: Audit, sigma: float) -> float | None:
    """Return the model's test error at a noise scale from the curve; ``None`` outside it."""
    scales, errors = np.asarray(audit.curve.sigma), np.asarray(audit.curve.error)
    order = np.argsort(scales)
    scales, errors = scales[order], errors[order]
    if not (len(scales) and scales[0] > 0 and scales[0] <= sigma <= scales[-1]):
        return None
    return float(np.interp(np.log(sigma), np.log(scales), errors))


def usefulness(audit: Audit, sigma: float) -> float | None:
    """Return what fraction of its advantage over a constant prediction the noisy model keeps.

    The fraction is 0 if the model has no advantage without noise, and ``None`` outside the curve.
    """
    error = error_at(audit, sigma)
    gain = audit.curve.trivial_error - audit.curve.noiseless_error
    if error is None:
        return None
    if gain <= SAME * audit.curve.trivial_error:
        return 0.0
    return float(np.clip((audit.curve.trivial_error - error) / gain, 0, 1))


def compared(audit: Audit, sigma: float) -> str:
    """Return how the model at a noise scale of the curve compares with a constant prediction.

    The result is ``better``, ``not told apart`` or ``worse``, by the interval of the difference
    between the errors, or ``not measured`` if unknown.
    """
    found = audit.curve.usefulness_at(sigma)
    return NOT_MEASURED if found is None else found.compared


def say_error(audit: Audit, error: float | None) -> str:
    """Write an error: a rate in per cent, or a number in the units of the target."""
    if error is None:
        return "–"
    return f"{100 * error:.1f} %" if audit.classes else number(error)


def percent(probability: float) -> str:
    """Write a probability in per cent, never rounded to certainty, impossibility or chance."""
    if probability in (0.0, 0.5, 1.0):
        return f"{100 * probability:.0f} %"
    if probability >= 0.9995:
        return "nearly 100 %"
    if probability < 0.0005:
        return "nearly 0 %"
    rounded = f"{100 * probability:.3g}"
    return f"nearly {rounded} %" if rounded == "50" else f"{rounded} %"


def in_100(probability: float) -> str:
    """Write a probability as a number out of 100, never rounded to 0, 50 or 100."""
    if probability in (0.0, 0.5, 1.0):
        return f"{100 * probability:.0f}"
    if probability > 0.999:
        return "nearly 100"
    rounded = f"{100 * probability:.0f}"
    if rounded in ("50", "100", "0"):
        rounded = f"{100 * probability:.1f}"
    return f"nearly {rounded[:-2]}" if rounded in ("50.0", "0.0") else rounded


def spread_kept(ratio: float) -> float:
    """Return the ratio of posterior to prior standard deviation for a normal prior.

    The ratio is ``1/√(1 + 1/r²)``, where ``r`` is the error of the best unbiased estimate divided
    by the prior standard deviation, since Fisher information is additive: ``1/post² = 1/prior² +
    1/error²``.
    """
    return float(1 / np.hypot(1, 1 / ratio)) if ratio > 0 else 0.0


def spread_kept_of(attribute: AttributeFinding) -> float | None:
    """Return the posterior standard deviation of a numeric column, divided by the column's spread.

    The result is for the record that is easiest to attack; ``None`` for categories and for columns
    without a spread.
    """
    if attribute.kind != "numeric" or not attribute.spread > 0:
        return None
    return spread_kept(attribute.smallest_error / attribute.spread)
