"""Results of an extraction attack, as numbers, tables, HTML pages and JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import mannwhitneyu, ttest_ind

from seepage.attacks.extraction.exposure import Exposure, alphabets
from seepage.attacks.extraction.near import NearCopies
from seepage.attacks.extraction.sampler import TokenSampler
from seepage.attacks.extraction.shading import shaded_page
from seepage.attacks.intervals import ConfidenceInterval
from seepage.support.files import write_private
from seepage.tables.names import counted
from seepage.tables.result_table import PlottedNumbers, ResultNumbers
from seepage.tables.source import build_frame

CONDITIONS = (
    "The attacker knows the exact text before a secret and samples from the model.",
    "The probability of the tokens is exact for the logits at the model's floating-point "
    "precision.",
    "The probability of the text is a lower bound: other token sequences may spell the same text.",
    "An attack shows what can be extracted; it cannot rule out stronger attacks.",
)


def once_in(probability: float) -> str:
    """Return a probability in words, such as "once in 1,200 tries".

    Examples
    --------
    >>> from seepage.attacks.extraction.result import once_in
    >>> once_in(1 / 1234), once_in(0.93), once_in(3e-10), once_in(0.0)
    ('once in 1,200 tries', 'in 93 % of tries', 'once in 3.3 × 10⁹ tries', 'never by this sampler')
    """
    if probability <= 0:
        return "never by this sampler"
    if probability >= 0.5:
        share = f"{100 * probability:.2g}"
        return f"in {'nearly ' * (share == '1e+02' and probability < 1)}{float(share):g} % of tries"
    tries = float(f"{1 / probability:.2g}")
    if tries < 1e6:
        return f"once in {tries:,.2g} tries" if tries < 10 else f"once in {tries:,.0f} tries"
    power = math.floor(math.log10(tries))
    raised = str(power).translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"))
    mantissa = f"{tries / 10**power:.2g}"
    return f"once in {'' if mantissa == '1' else mantissa + ' × '}10{raised} tries"


@dataclass(frozen=True)
class ExtractedSecret:
    """A secret and its extraction probability; all logarithms are natural.

    Parameters
    ----------
    record, kind, text
        The number of the record, the kind of secret, and the secret itself.
    given, emitted
        The text that the attacker supplies, and the target text: the secret, preceded by any text
        between it and the supplied text.
    copies
        The number of records that contain this secret.
    tokens, token_probability, rank
        The secret's tokens, their probabilities, and their ranks among all tokens.
    of_tokens
        The log-probability of exactly these tokens; a lower bound on it if logits tie or a token is
        at the top-p cut-off.
    low, high
        Bounds on the log-probability of emitting the secret's tokens, or tokens that run past its
        end. ``low`` is also a lower bound for the text; ``high`` differs from ``low`` only if
        logits tie or a token is at the top-p cut-off.
    plain
        The log-probability of the secret's tokens at temperature 1, without top-k or top-p.
    base, base_plain
        The values of ``low`` and ``plain`` for the model before fine-tuning.
    text_high
        An upper bound on the log-probability of the text, in any tokenisation.
    near, exposure
        The near-verbatim copies among the samples, and the exposure among candidates of the
        secret's shape.
    """

    record: int
    kind: str
    text: str
    given: str
    emitted: str
    copies: int
    tokens: tuple[str, ...]
    token_probability: tuple[float, ...]
    rank: tuple[int, ...]
    of_tokens: float
    low: float
    high: float
    plain: float
    base: float | None = None
    base_plain: float | None = None
    text_high: float | None = None
    near: NearCopies | None = None
    exposure: Exposure | None = None

    @property
    def probability(self) -> float:
        """The probability that one try emits the secret: a lower bound for the text."""
        return math.exp(self.low)

    @property
    def tries(self) -> float:
        """The expected number of tries; infinite if the probability is zero or below e⁻⁷⁰⁰."""
        return math.inf if self.low < -700 else math.exp(-self.low)

    @property
    def guess(self) -> float:
        """The probability of a random guess: one over the number of strings of this shape."""
        return math.exp(-sum(math.log(len(letters)) for letters in alphabets(self.text)))

    def within_reach(self, tries: float) -> bool:
        """Return whether the expected number of tries is at most ``tries``.

        One try must also be at least ten times as likely to succeed as a random guess. A four-digit
        code, for example, is guessed at random once in 10,000 tries.
        """
        return self.tries <= tries and self.probability >= 10 * self.guess

    @property
    def greedy(self) -> bool:
        """Whether greedy decoding emits the secret: each token is the most probable one."""
        return max(self.rank) == 1

    @property
    def gain(self) -> float | None:
        """The gain in the tokens' log-probability due to fine-tuning, in bits, at temperature 1."""
        return None if self.base_plain is None else (self.plain - self.base_plain) / math.log(2)

    def within_top(self, k: int) -> bool:
        """Return whether every token is among the top-k log-probabilities that an API returns.

        If every token is included, the attacker learns the probability without sampling. Otherwise,
        the attacker learns only that some token is less likely than the k-th best.
        """
        return max(self.rank) <= k

    def tries_for(self, chance: float = 0.5) -> float:
        """Return the number of tries that emit the secret at least once with this probability."""
        if self.low == -math.inf:
            return math.inf
        # log1p keeps the digits of small probabilities
        each = math.log1p(-min(self.probability, 1 - 1e-16))
        return max(1.0, math.log1p(-chance) / each) if each < 0 else math.inf

    @property
    def said(self) -> str:
        """The probability in words, with the value before fine-tuning if known."""
        now = once_in(self.probability)
        if self.base is None:
            return now
        return f"{now}; before fine-tuning {once_in(math.exp(self.base))}"


class GainComparison(NamedTuple):
    """The mean gain of members minus that of held-out secrets of the same kinds, in bits."""

    members: float  # mean
    held_out: float
    difference: float
    interval: ConfidenceInterval  # 95 %, Welch
    p_value: float  # one-sided, by ranks (Mann and Whitney)
    of_base: bool  # gains over a base model, or log-probabilities themselves


@dataclass(frozen=True, eq=False, repr=False)
class ExtractionResult(ResultNumbers):
    """The results of an extraction attack on a language model, secret by secret.

    The secrets and their probabilities depend on the data: do not publish them.

    Parameters
    ----------
    secrets
        The secrets of the training records.
    held_out
        The secrets of records on which the model was not trained.
    sampler
        How tokens are chosen.
    has_base
        Whether the model before fine-tuning was evaluated too.
    records
        The number of attacked records.
    conditions
        The assumptions behind the results, in words.
    kind
        ``attack``: a lower bound on what can be extracted, never an upper bound.
    """

    secrets: tuple[ExtractedSecret, ...]
    held_out: tuple[ExtractedSecret, ...]
    sampler: TokenSampler
    has_base: bool
    records: int
    conditions: tuple[str, ...] = CONDITIONS
    kind: str = "attack"

    def __repr__(self) -> str:
        return (
            f"<extraction by {self.sampler}, attack: {counted(len(self.secrets), 'secret')}, the "
            f"most exposed: {self.ranked[0].said}>"
        )

    @cached_property
    def ranked(self) -> tuple[ExtractedSecret, ...]:
        """The secrets, the most exposed first."""
        return tuple(sorted(self.secrets, key=lambda each: (-each.low, -each.plain)))

    def likely(self, tries: float, *, held_out: bool = False) -> int:
        """Return how many secrets (or held-out secrets) can be extracted within this many tries."""
        side = self.held_out if held_out else self.secrets
        return sum(each.within_reach(tries) for each in side)

    def leaked(self) -> GainComparison | None:
        """Compare the mean gain of members with that of held-out secrets of the same kinds.

        Gains are measured in bits relative to the base model. Without a base model, the
        log-probabilities themselves are compared. The gain of held-out records is due to
        generalisation: the model learns what these texts look like.
        """
        kinds = {each.kind for each in self.secrets} & {each.kind for each in self.held_out}
        sides = [
            np.array([_gain(each) for each in side if each.kind in kinds])
            for side in (self.secrets, self.held_out)
        ]
        if min(map(len, sides)) < 2:
            return None
        inside, outside = sides
        mean = float(inside.mean() - outside.mean())
        spread = float(inside.std() + outside.std())
        ends = ConfidenceInterval(mean, mean)
        if spread > 0:
            low, high = ttest_ind(inside, outside, equal_var=False).confidence_interval(0.95)
            ends = ConfidenceInterval(float(low), float(high))
        p_value = float(mannwhitneyu(inside, outside, alternative="greater").pvalue)
        return GainComparison(
            float(inside.mean()), float(outside.mean()), mean, ends, p_value, self.has_base
        )

    def by_copies(self) -> dict[int, tuple[int, float, float]]:
        """Return the number of secrets and their median and fewest tries, by number of copies."""
        groups: dict[int, list[float]] = {}
        for each in self.secrets:
            groups.setdefault(each.copies, []).append(each.low)
        return {
            copies: (len(logs), _tries(float(np.median(logs))), _tries(max(logs)))
            for copies, logs in sorted(groups.items())
        }

    index_columns = 2
    value_column = "probability"

    def html_table(self) -> Any:
        """Return the rows for a notebook, without the secrets, as a ``pyarrow`` table."""
        return self.table(library="pyarrow", values=False)

    def html_notes(self) -> tuple[str, ...]:
        """Return the assumptions shown in a notebook."""
        return self.conditions

    def drawing(self) -> PlottedNumbers:
        """Return the data for :meth:`plot`: the probability that one try emits each secret."""
        values = np.array([each.probability for each in self.ranked])
        names = [f"{each.kind}, record {each.record}" for each in self.ranked]
        return PlottedNumbers(values, names, "probability that one try emits the secret", "secrets")

    def table(self, library: str | None = None, *, values: bool = True) -> Any:
        """Return a data frame with one row per secret, the most exposed first.

        Parameters
        ----------
        library
            ``pyarrow``, ``pandas`` or ``polars``.
        values
            Whether to include the secrets themselves.
        """
        rows = [_row(each, values) for each in self.ranked]
        columns = {name: np.array([r[name] for r in rows]) for name in rows[0]}
        return build_frame(columns, library or "pyarrow")

    def summary(self) -> dict[str, Any]:
        """Return the results without any secret, as plain values for JSON."""
        leaked = self.leaked()
        worst = self.ranked[0]
        return {
            "kind": self.kind,
            "sampler": {**vars(self.sampler), "words": str(self.sampler)},
            "records": self.records,
            "secrets": len(self.secrets),
            "kinds": {k: sum(s.kind == k for s in self.secrets) for k in _kinds(self.secrets)},
            "most_exposed": {
                "record": worst.record,
                "kind": worst.kind,
                "probability": worst.probability,
                "tries": _finite(worst.tries),
                "words": worst.said,
            },
            "within_tries": {str(n): self.likely(n) for n in (1, 100, 10_000, 1_000_000)},
            "greedy": sum(each.greedy for each in self.secrets),
            "within_top_20": sum(each.within_top(20) for each in self.secrets),
            "most_exposure_bits": max(
                (each.exposure.bits for each in self.secrets if each.exposure), default=None
            ),
            "near_verbatim": [
                {"record": each.record, "rate": each.near.rate, "interval": each.near.interval}
                for each in self.secrets
                if each.near is not None and each.near.hits
            ],
            "by_copies": {
                str(copies): {"secrets": n, "median_tries": _finite(m), "least_tries": _finite(b)}
                for copies, (n, m, b) in self.by_copies().items()
            },
            "beyond_held_out": None
            if leaked is None
            else {**leaked._asdict(), "interval": list(leaked.interval), "unit": "bits"},
            "conditions": list(self.conditions),
        }

    def to_json(self) -> str:
        """Return the summary as JSON text."""
        return json.dumps(self.summary(), indent=2, allow_nan=False) + "\n"

    def html(self, most: int = 100) -> str:
        """Return an HTML page of the most exposed secrets, with tokens shaded by probability."""
        shown = [
            (each.record, each.said, each.given, each.tokens, each.token_probability)
            for each in self.ranked[:most]
        ]
        return shaded_page(shown, str(self.sampler))

    def write(self, path: str | Path) -> None:
        """Write the page from :meth:`html` to a file that only the owner can read."""
        page = self.html().encode()
        write_private(Path(path), lambda file: file.write(page))


def _gain(each: ExtractedSecret) -> float:
    return each.plain / math.log(2) if each.gain is None else each.gain


def _kinds(secrets: Sequence[ExtractedSecret]) -> list[str]:
    return sorted({each.kind for each in secrets})


def _tries(log_probability: float) -> float:
    return math.inf if log_probability < -700 else math.exp(-log_probability)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _row(each: ExtractedSecret, values: bool) -> dict[str, Any]:
    nan = math.nan
    near, exposure = each.near, each.exposure
    row: dict[str, Any] = {
        "record": each.record,
        "kind": each.kind,
        "copies": each.copies,
        "tokens": len(each.tokens),
        "probability": each.probability,
        "tries": each.tries,
        "probability_of_tokens": math.exp(each.of_tokens),
        "probability_high": math.exp(each.high),
        "text_at_most": nan if each.text_high is None else math.exp(each.text_high),
        "before_fine_tuning": nan if each.base is None else math.exp(each.base),
        "gain_bits": nan if each.gain is None else each.gain,
        "greedy": each.greedy,
        "worst_rank": max(each.rank),
        "exposure_bits": nan if exposure is None else exposure.bits,
        "exposure_low": nan if exposure is None else exposure.low,
        "exposure_high": nan if exposure is None else exposure.high,
        "near_verbatim": nan if near is None else near.rate,
        "near_verbatim_low": nan if near is None else near.interval[0],
        "near_verbatim_high": nan if near is None else near.interval[1],
    }
    return row | ({"given": each.given, "secret": each.text} if values else {})
