"""The card of a release: only what was declared, is on a coarse grid, or has noise of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from seepage.auditing.findings import no_better
from seepage.auditing.gates import Limits
from seepage.auditing.neighbours import CHECKED
from seepage.auditing.release.contents import Item, item_table
from seepage.auditing.release.noise_vote import interval_kept
from seepage.auditing.release.procedure import Prepared, Procedure
from seepage.auditing.report.words import markdown, number, percent
from seepage.tables.names import counted


@dataclass(frozen=True)
class Usefulness:
    """How often the released model, and the best constant prediction, are wrong on its own records.

    Both shares are released with noise.
    """

    share: float  # with the noise, cut to between 0 and 1
    constant: float  # the same of the constant that is wrong least often
    scale: float  # of the noise on each
    epsilon: float  # the privacy of both together
    unit: float | None  # for a numeric target, the error above which a prediction counts as wrong

    @property
    def name(self) -> str:
        """What the shares are of: of wrong classes, or of numbers that are far off."""
        if self.unit is None:
            return "error rate"
        return f"share of predictions off by more than {number(self.unit)}"

    def words(self) -> str:
        """Return what protects the shares."""
        return (
            f"It has Laplace noise of scale {number(self.scale)}. Together, the model's and the "
            f"constant's are ε-differentially private with ε = {self.epsilon:g} (one record added, "
            "removed or replaced), given the model."
        )


def figures_epsilon(prepared: Prepared, useful: Usefulness | None) -> float:
    """Return the total ε of the figures that are drawn or have noise of their own."""
    return (prepared.vote.epsilon if prepared.vote else 0.0) + (useful.epsilon if useful else 0.0)


def _beside_the_numbers(
    procedure: Procedure, prepared: Prepared, useful: Usefulness | None
) -> list[str]:
    """Say what the other figures may add, unless σ follows the most exposed record."""
    epsilon = figures_epsilon(prepared, useful)
    if not epsilon or (prepared.vote is None and procedure.sigma is None):
        return []
    return [
        "**Beside the noisy numbers.** The figures that were drawn, or have noise of their own, "
        f"are ε-differentially private, with ε = {epsilon:g} in total. Take an attacker who knows "
        "everything but one number of one record, where no value of that number would change a "
        "figure on a coarse grid, or let a draw of σ fall short. Whatever they knew before, their "
        "95 % credible interval for that number contains the central "
        f"{100 * interval_kept(epsilon):.1f} % interval that the noisy numbers alone would leave.",
        "",
    ]


def _risk_limits(limits: Limits) -> list[str]:
    """Say which limits on membership inference and guesses the release was held to."""
    told = []
    if limits.max_membership is not None and limits.max_membership < 1:
        told.append(
            f"membership inference succeeds at most {percent(limits.max_membership)} of the time "
            "(chance: 50 %)"
        )
    if limits.max_guess_gain is not None and limits.max_guess_gain < 1:
        told.append(
            f"a guess of a class or category gains at most {percent(limits.max_guess_gain)} from "
            "the release"
        )
    if not told:
        return []
    return [
        f"**Limits.** By an attacker who knows all other rows, {' and '.join(told)}. That was "
        f"checked for the noisy numbers, and for the other figures with each of the {CHECKED} most "
        "exposed rows left out or given another label.",
        "",
    ]


def write_release_card(
    procedure: Procedure,
    prepared: Prepared,
    items: Sequence[Item],
    useful: Usefulness | None,
    limits: Limits,
) -> str:
    """Return the card as Markdown."""
    settings, figures = prepared.trained.settings, prepared.figures
    article = {"poisson": "A Poisson"}.get(settings.model, f"A {settings.model}")
    lines = [
        "# Model card",
        "",
        f"**Release.** {article} regression of “{markdown(procedure.target)}”, fitted to "
        f"{figures['number of records']:,} records or more with L2 penalty λ = "
        f"{number(settings.l2)}; each of its "
        f"{counted(sum(i.count for i in items[:2]), 'number')} has independent Gaussian noise of "
        f"standard deviation σ = {number(prepared.sigma)}.",
        "",
        f"**Protection.** No record has a Fisher information loss of more than η = "
        f"{number(procedure.target_eta)}: whoever knows everything else and estimates any one "
        f"number of a record without bias is off by at least {number(1 / procedure.target_eta)} "
        "times the unit of its column (for a category or class: of a whole level).",
        "",
        *_risk_limits(limits),
        *_beside_the_numbers(procedure, prepared, useful),
    ]
    if useful is not None:
        worse = no_better(useful.share, useful.constant)
        lines += [
            f"**Usefulness.** The model's {useful.name} among its own records is "
            f"{useful.share:.0%}, the best constant prediction's {useful.constant:.0%}."
            f"{' By these figures it is no better than a constant.' if worse else ''} Each has "
            f"Laplace noise of scale {number(useful.scale)}.",
            "",
        ]
    lines += [
        "**What leaves.** All of this folder may be published, and nothing else:",
        "",
        *item_table(items),
        "",
        "**What this does and does not cover.** The bound holds for an attacker who sees this "
        "folder once and whose estimates are unbiased. It does not cover attackers who trade bias "
        "for precision or bring knowledge about similar people, nor "
        "further releases of the same records. A figure on a coarse grid hides small changes of a "
        "record, not its absence. Apart from what the list says of single figures this is not a "
        "differential-privacy guarantee.",
        "",
    ]
    return "\n".join(lines)
