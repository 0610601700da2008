"""How a language model chooses its next token: by temperature, top-k and top-p, or greedily.

Hugging Face's ``generate`` divides the logits by the temperature and selects the tokens whose logit
is at least the k-th largest (including ties). Of these tokens, ``generate`` keeps the smallest set
of most probable tokens whose probabilities sum to more than top-p, and draws one token from the
set. A token's probability is therefore its share of the selected probability mass, or 0 if it is
not selected.

If several tokens at the top-p cut-off have the same logit, the sorting order determines which of
them are selected. Ties are frequent with bf16 logits. For a tied token, only bounds on the
probability are known, and the lower bound is 0. The same applies to tokens so near the cut-off that
rounding errors decide, since ``generate`` sums the probabilities in float32.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from seepage.errors import InputError
from seepage.support.number_check import check_count, check_positive

# What generate() also does to logits, with the value at which it does nothing
_AT_ONE = "num_beams repetition_penalty encoder_repetition_penalty typical_p guidance_scale"
_AT_ZERO = "no_repeat_ngram_size encoder_no_repeat_ngram_size epsilon_cutoff eta_cutoff"
_ABSENT = (
    "min_p top_h penalty_alpha bad_words_ids sequence_bias suppress_tokens begin_suppress_tokens "
    "forced_bos_token_id exponential_decay_length_penalty watermarking_config"
)
_OTHERS: dict[str, int | None] = {
    name: neutral
    for names, neutral in ((_AT_ONE, 1), (_AT_ZERO, 0), (_ABSENT, None))
    for name in names.split()
}


class Ends(NamedTuple):
    """Lower and upper bounds on log-probabilities."""

    low: Tensor
    high: Tensor


@dataclass(frozen=True)
class TokenSampler:
    """Specifies how tokens are chosen, with the steps in the order of Hugging Face's ``generate``.

    Parameters
    ----------
    temperature
        The divisor of the logits.
    top_k
        The number of most probable tokens to select, plus any tokens tied with the last of them; 0
        selects all tokens.
    top_p
        The smallest set of tokens whose probabilities sum to more than this value is selected; 1
        selects all.
    greedy
        Whether to choose the most probable token; the other settings then have no effect.

    Examples
    --------
    Of three tokens, the two most probable are selected, with probabilities of two thirds and one
    third:

    >>> import torch
    >>> from seepage.attacks import TokenSampler
    >>> logits = torch.tensor([0.5, 0.25, 0.25 / 2]).log()
    >>> ends = TokenSampler(top_k=2).log_probabilities(logits, torch.tensor([0, 1, 2]))
    >>> [round(p, 3) for p in ends.high.exp().tolist()]
    [0.667, 0.333, 0.0]
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    greedy: bool = False

    def __post_init__(self) -> None:
        check_positive(self.temperature, "temperature")
        check_count(self.top_k, "top_k", least=0)
        check_positive(self.top_p, "top_p")
        if self.top_p > 1:
            raise InputError(
                f"top_p must be a probability above 0 and at most 1, not {self.top_p!r}."
            )

    @classmethod
    def from_model(cls, model: Any) -> TokenSampler:
        """Return the sampler that a model's ``generation_config`` describes.

        Settings that change the logits in other ways raise an error that names them, because the
        probabilities would be wrong.
        """
        config = getattr(model, "generation_config", None)
        if config is None:
            return cls()
        for name, neutral in _OTHERS.items():
            value = getattr(config, name, neutral)
            if value is not None and value != neutral and value != []:
                raise InputError(
                    f"The model's generation_config sets {name} to {value!r}, which changes token "
                    "probabilities in a way that is not supported; give a sampler, such as "
                    "TokenSampler(temperature=1.0)."
                )
        if not getattr(config, "do_sample", False):
            return cls(greedy=True)

        def stated(name: str, otherwise: Any) -> Any:
            value = getattr(config, name, None)
            return otherwise if value is None else value

        # generate() keeps 50 tokens where a configuration for sampling does not say
        return cls(stated("temperature", 1.0), stated("top_k", 50), stated("top_p", 1.0))

    def __str__(self) -> str:
        if self.greedy:
            return "greedy decoding"
        kept = [f"top-k {self.top_k}"] * bool(self.top_k)
        kept += [f"top-p {self.top_p:g}"] * (self.top_p < 1)
        return ", ".join([f"sampling at temperature {self.temperature:g}", *kept])

    def log_probabilities(self, logits: Tensor, tokens: Tensor) -> Ends:
        """Return bounds on the log-probabilities of the given tokens, in float64.

        Parameters
        ----------
        logits
            The logits of all tokens, ``(…, V)``.
        tokens
            The tokens to evaluate, ``(…, m)``.
        """
        # generate() casts to float32 before it divides, so ties and cut-offs are those of float32.
        z = logits.float()
        if self.greedy:
            own = z.gather(-1, tokens)
            best = z.amax(-1, keepdim=True)
            alone = (z == best).sum(-1, keepdim=True) == 1
            high = _log_of(own == best)
            return Ends(torch.where(alone, high, -math.inf), high)
        if self.temperature != 1:
            z = z / self.temperature
        if self.top_k and self.top_k < z.shape[-1]:
            least = z.topk(self.top_k).values[..., -1:]
            z = z.masked_fill(z < least, -math.inf)
        own = z.gather(-1, tokens).double()
        if self.top_p >= 1:
            value = own - z.double().logsumexp(-1, keepdim=True)
            return Ends(value, value)
        return self._within_top_p(z, own)

    def _within_top_p(self, z: Tensor, own: Tensor) -> Ends:
        """Return bounds that hold for all cut-offs that sorting and rounding can produce."""
        falling = z.sort(-1, descending=True).values.double()
        logs = falling.log_softmax(-1)
        # The mass of a token and of all below it: generate() drops tokens with at most 1 − top_p.
        tails = logs.exp().flip(-1).cumsum(-1).flip(-1)
        kept_mass = torch.logcumsumexp(logs, -1)
        slack = 32 * torch.finfo(torch.float32).eps
        fewest = (tails > 1 - self.top_p + slack).sum(-1, keepdim=True).clamp(min=1)
        most = (tails > 1 - self.top_p - slack).sum(-1, keepdim=True).clamp(min=1)
        rising, size = falling.flip(-1).contiguous(), z.shape[-1]
        above = size - torch.searchsorted(rising, own.contiguous(), right=True)
        not_below = size - torch.searchsorted(rising, own.contiguous(), right=False)
        share = own - z.double().logsumexp(-1, keepdim=True)
        low = share - kept_mass.gather(-1, most.expand_as(own) - 1)
        first_cut = torch.maximum(fewest.expand_as(own), above + 1).clamp(max=size)
        high = share - kept_mass.gather(-1, first_cut - 1)
        return Ends(
            torch.where(not_below <= fewest, low, -math.inf),
            torch.where(above < most, high, -math.inf),
        )

    def draw(self, logits: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Draw a token for each row of logits, ``(n, V)``, as ``generate`` does."""
        z = logits.float()
        if self.greedy:
            return z.argmax(-1)
        z = z / self.temperature
        if self.top_k and self.top_k < z.shape[-1]:
            z = z.masked_fill(z < z.topk(self.top_k).values[..., -1:], -math.inf)
        if self.top_p < 1:
            rising, places = z.sort(-1)
            dropped = rising.softmax(-1).cumsum(-1) <= 1 - self.top_p
            dropped[..., -1:] = False
            z = z.masked_fill(dropped.scatter(-1, places, dropped), -math.inf)
        return torch.multinomial(z.softmax(-1), 1, generator=generator).squeeze(-1)


def _log_of(truth: Tensor) -> Tensor:
    """Return 0 (log 1) where the condition is true and −∞ (log 0) where it is false."""
    zero = torch.zeros((), dtype=torch.float64, device=truth.device)
    return torch.where(truth, zero, -math.inf)
