"""The model card of a release, which contains only declared, coarsely rounded or noisy figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from seepage.auditing.findings import ONE_ROW
from seepage.auditing.neighbours import CHECKED
from seepage.auditing.questions import Limits
from seepage.auditing.release.contents import Item, item_table
from seepage.auditing.release.noise_vote import interval_kept
from seepage.auditing.release.procedure import Prepared, Procedure
from seepage.auditing.report.rendering import render
from seepage.auditing.report.words import ONE, number, percent


@dataclass(frozen=True)
class Usefulness:
    """Error rates of the released model and of the best constant prediction on the same records.

    Both are published with noise.
    """

    share: float  # the noisy rate of the model, clipped to [0, 1]
    constant: float  # the noisy rate of the best constant prediction, clipped to [0, 1]
    scale: float  # the scale of the noise on each rate
    epsilon: float  # the ε of both rates together
    unit: float | None  # for a numeric target, the error above which a prediction counts as wrong
    about: str = ONE_ROW  # whether ε is for one row, or for all rows of a person

    @property
    def name(self) -> str:
        """The name of the rate: of wrong classes, or of predicted numbers with too large errors."""
        if self.unit is None:
            return "error rate"
        return f"share of predictions off by more than {number(self.unit)}"

    def words(self) -> str:
        """Return a description of how the error rates are protected."""
        return (
            f"It has Laplace noise of scale {number(self.scale)}. Together, the two rates are "
            f"ε-differentially private with ε = {self.epsilon:g} (one {ONE[self.about]} added, "
            "removed or replaced), given the model."
        )


def write_release_card(
    procedure: Procedure,
    prepared: Prepared,
    items: Sequence[Item],
    useful: Usefulness | None,
    limits: Limits,
) -> str:
    """Return the model card as Markdown."""
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
