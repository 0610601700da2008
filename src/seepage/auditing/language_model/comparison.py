"""Attacks on a model and on models trained with one change: each change's benefit and cost.

The same two attacks are run on every model and the same records. One is extraction of the secrets,
with one forward pass per secret. The other is membership inference, with held-out records as
non-members. The cost of a change is measured by the changed model's loss on the held-out records,
in bits per token.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from seepage.attacks.extraction.result import ExtractionResult
from seepage.attacks.membership.inference import MembershipInference, MembershipInferenceResult
from seepage.attacks.membership.texts import text_losses

TRIES = 10_000  # affordable for anybody: an hour of a hosted model
FPR = 0.01  # the false positive rate at which recognised records are counted


@dataclass(frozen=True, eq=False)
class AttackedModel:
    """The results of extraction and membership inference on one model, and the held-out loss.

    Parameters
    ----------
    name
        The change in training, or ``this model`` for the audited model.
    within, most_exposed
        The number of secrets within reach of 10,000 tries, and the probability that one try emits
        the most exposed secret.
    membership
        The result of membership inference; ``None`` without held-out records.
    held_out_bits
        The mean loss per token on held-out records, in bits; ``None`` without such records.
    """

    name: str
    within: int
    most_exposed: float
    membership: MembershipInferenceResult | None = None
    held_out_bits: float | None = None

    def summary(self) -> dict[str, Any]:
        """Return the results as JSON values."""
        attack = self.membership
        recognised = None if attack is None else attack.tpr(FPR)
        return {
            "name": self.name,
            "within_10000_tries": self.within,
            "most_exposed": self.most_exposed,
            "held_out_bits_per_token": self.held_out_bits,
            "membership": None
            if attack is None or recognised is None
            else {
                "method": attack.method,
                "references": attack.references,
                "auc": attack.auc,
                "auc_interval": list(attack.interval),
                "tpr_at_1_percent": recognised.rate,
                "tpr_interval": list(recognised.interval),
                "members": int(attack.members.sum()),
                "held_out": int((~attack.members).sum()),
                "most_recognisable": [each.record for each in attack.exposed(5)],
            },
        }


@dataclass(frozen=True, eq=False)
class TextRecognition:
    """Membership inference with training records as members and held-out ones as non-members.

    Parameters
    ----------
    records, held_out
        The training records, and records of the same kind that no model was trained on.
    tokenizer
        The tokenizer of all models.
    references
        Models that were trained on none of the records. Without any, the attack uses only the loss.
    """

    records: Sequence[Any]
    held_out: Sequence[Any]
    tokenizer: Any
    references: Sequence[Any] = ()

    def attack(self, net: Any, *, by_loss: bool = False) -> MembershipInferenceResult | None:
        """Return the result of membership inference on a model; ``None`` without held-out records.

        With ``by_loss``, the attack uses the loss alone, without reference models.
        """
        if not self.held_out:
            return None
        texts = [*self.records, *self.held_out]
        members = np.arange(len(texts)) < len(self.records)
        if by_loss or not self.references:
            return MembershipInference(method="loss", tokenizer=self.tokenizer).against(
                net, texts, None, members
            )
        attack = MembershipInference(method="lira", online=False, tokenizer=self.tokenizer)
        return attack.against(net, texts, None, members, self.references)

    def measured(self, name: str, net: Any, result: ExtractionResult) -> AttackedModel:
        """Return the results for a model, including those of the extraction attack on it."""
        return AttackedModel(
            name,
            result.likely(TRIES),
            result.ranked[0].probability,
            self.attack(net),
            self.held_out_bits(net),
        )

    def measured_before(self, net: Any, result: ExtractionResult) -> AttackedModel:
        """Return the results for the model before fine-tuning.

        This model was trained on none of the records. If an attack on its loss succeeds, the
        held-out records therefore differ in kind from the training records.
        """
        earlier = [replace(each, low=each.base) for each in result.secrets if each.base is not None]
        return AttackedModel(
            "before fine-tuning",
            sum(each.within_reach(TRIES) for each in earlier),
            max((each.probability for each in earlier), default=0.0),
            self.attack(net, by_loss=True),
            self.held_out_bits(net),
        )

    def held_out_bits(self, net: Any) -> float | None:
        """Return a model's mean loss on held-out records, in bits per token, if there are any."""
        if not self.held_out:
            return None
        losses = text_losses(net, self.held_out, self.tokenizer)
        return float(np.nanmean(losses)) / math.log(2)
