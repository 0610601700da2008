"""The token map: a text with the leakage about each of its tokens.

A causal model uses a token as an input, through its embedding, *and* as a target, predicted from
the tokens before it. The gradient depends on the token in both roles:

    input    the dFIL about the entries of the token's embedding
    target   the dFIL about the token's soft target, a probability for each token of the vocabulary
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from seepage.errors import InputError, accepts_other_names
from seepage.nn.jacobian.random_directions import key_of, row_signs
from seepage.nn.measures.gradient_leakage import CONDITIONS, GradientLeakage, leakage
from seepage.nn.measures.information_matrices import check_probes
from seepage.nn.problem.own_loss import IGNORED
from seepage.nn.problem.views import Label, rows_of
from seepage.risks.guessing import best_guess, checked_prior
from seepage.support.files import write_private
from seepage.tables.names import counted
from seepage.tables.result_table import PlottedNumbers, ResultNumbers
from seepage.tables.source import build_frame

_IDS, _MASK, _LABELS = "input_ids", "attention_mask", "labels"
_BEGINS = ("Ġ", "▁")  # marks of the first piece of a word after a space
_CONTINUES = "##"  # and of pieces that continue a word
_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>Leakage by token</title><style>
body {{ font: 16px/1.9 sans-serif; max-width: 46em; margin: 2em auto; padding: 0 1em }}
p {{ margin: 1.2em 0 }} span {{ padding: .1em 0; border-bottom: .2em solid transparent }}
small {{ color: #666 }}
</style></head><body>
<h1>Leakage by token</h1>
<p><small>The darker a token, the more it leaks as an input (dFIL η̄ at most {highest:.3g}); the
darker the line below a token, the more it leaks as a target. This page depends on the data: do not
publish it.</small></p> {records} </body></html>
"""


@dataclass(frozen=True)
class Token:
    """The leakage about one token as input and as target; NaN for a role that it does not have."""

    record: int
    position: int
    text: str
    word: int  # the number of its word in the record
    input: float = math.nan
    target: float = math.nan
    input_error: float = math.nan  # a standard error
    target_error: float = math.nan


@dataclass(frozen=True, eq=False, repr=False)
class TokenMap(ResultNumbers):
    """The leakage about each token and each word in a batch of texts.

    For an encoder–decoder model, a record's input tokens come first, then its label tokens.

    Parameters
    ----------
    tokens
        All tokens except padding, record by record.
    leak
        The leakage of the records' gradients about their token embeddings.
    conditions
        The assumptions under which the numbers are valid, in words.
    """

    tokens: tuple[Token, ...]
    leak: GradientLeakage
    conditions: tuple[str, ...] = CONDITIONS

    def __repr__(self) -> str:
        worst = max(self.tokens, key=lambda token: np.nan_to_num(token.input))
        return (
            f"<{counted(len(self.tokens), 'token')} of "
            f"{counted(self.tokens[-1].record + 1, 'record')}: dFIL η̄ as an input, "
            f"worst {worst.input:.4g} at {_plain(worst.text)!r} of record {worst.record}>"
        )

    index_columns = 2
    value_column = "input"

    def drawing(self) -> PlottedNumbers:
        """Return the data for :meth:`plot`: the leakage about each token as an input."""
        worst = sorted(self.tokens, key=lambda token: -np.nan_to_num(token.input))
        values = np.array([token.input for token in worst])
        names = [f"{_plain(token.text)} ({token.record})" for token in worst]
        return PlottedNumbers(values, names, "dFIL η̄ as an input", "tokens")

    def _repr_html_(self) -> str:
        """Return the texts with every token shaded by its leakage."""
        return self.html()

    def table(self, library: str | None = None) -> Any:
        """Return a data frame with one row per token."""
        names = ("record", "position", "text", "word")
        measured = ("input", "input_error", "target", "target_error")
        columns = {n: np.array([getattr(t, n) for t in self.tokens]) for n in names + measured}
        columns["text"] = np.array([_spaced(token.text) for token in self.tokens])
        return build_frame(columns, library or "pyarrow")

    def words(self, library: str = "pyarrow") -> Any:
        """Return a data frame with one row per word.

        The dFIL of a word is the root mean square of its tokens' dFILs.
        """
        groups: dict[tuple[int, int], list[Token]] = {}
        for token in self.tokens:
            groups.setdefault((token.record, token.word), []).append(token)
        columns: dict[str, Any] = {
            "record": np.array([record for record, _ in groups]),
            "word": np.array(["".join(_plain(t.text) for t in g) for g in groups.values()]),
        }
        for path in ("input", "target"):
            columns[path] = np.array(
                [_root_mean_square([getattr(t, path) for t in g]) for g in groups.values()]
            )
        return build_frame(columns, library)

    def html(self) -> str:
        """Return an HTML page of the texts, with every token shaded by its leakage."""
        highest = {
            path: float(np.nanmax([getattr(t, path) for t in self.tokens] + [0.0])) or 1.0
            for path in ("input", "target")
        }
        texts: dict[int, list[str]] = {}
        for token in self.tokens:
            texts.setdefault(token.record, []).append(_shaded(token, highest))
        records = "\n".join(
            f"<p><small>Record {record}</small><br>{''.join(spans)}</p>"
            for record, spans in texts.items()
        )
        return _PAGE.format(highest=highest["input"], records=records)

    def write(self, path: str | Path) -> None:
        """Write the HTML page to a file that only its owner can read."""
        page = self.html().encode()
        write_private(Path(path), lambda file: file.write(page))

    def guess(
        self,
        record: int,
        position: int,
        candidates: Sequence[int],
        prior: Sequence[float] | None = None,
    ) -> tuple[float, float]:
        """Return the success rate of the best guess of a token with the release, and without it.

        The adversary sees the noisy gradient and knows the candidates, all other records and all
        other tokens of the record. The token is replaced as an input and, if it is also a label, as
        a label.

        Parameters
        ----------
        record, position
            The record and the position of the token in the batch.
        candidates
            The ids of the possible tokens, including the true token.
        prior
            The probability of each candidate before the release; equal by default.
        """
        x = rows_of(self.leak.x, slice(record, record + 1))
        own = int(x[_IDS][0, position])
        if own not in candidates or len(set(candidates)) < len(candidates):
            raise InputError(
                f"The candidates must be distinct token ids and include the true token's, {own}."
            )
        means = [self._gradient(x, position, own, int(token)) for token in candidates]
        flat = torch.stack(means).double().cpu() / self.leak.jacobian.noise
        flat = flat - flat[0]
        chances = np.full(len(candidates), 1 / len(candidates)) if prior is None else prior
        prior_of = checked_prior(np.asarray(chances), (1, len(candidates)))
        guesses = best_guess((flat @ flat.T).numpy()[None], prior_of)
        return float(guesses.right[0]), float(prior_of.max())

    def _gradient(self, x: Mapping[str, Tensor], position: int, own: int, token: int) -> Tensor:
        """Return the record's clipped gradient with one token replaced."""
        changed = {name: value.clone() for name, value in x.items()}
        changed[_IDS][0, position] = token
        labels = changed.get(_LABELS)
        if labels is not None and labels.shape == changed[_IDS].shape:
            labels[0, position] = token if int(labels[0, position]) == own else labels[0, position]
        y = changed[_LABELS] if _LABELS in changed else self.leak.y[:1]
        return self.leak.engine.flat_gradient(changed, y)


@accepts_other_names
def token_leakage(
    net: nn.Module,
    batch: Mapping[str, Tensor],
    tokenizer: Any = None,
    *,
    noise_multiplier: float,
    max_grad_norm: float | None = None,
    probes: int = 16,
    targets: bool = True,
    **options: Any,
) -> TokenMap:
    """Measure how much the noisy gradient of a batch of texts leaks about every token.

    Parameters
    ----------
    net, batch
        A Hugging Face model and a batch of texts as its data collator returns it.
    tokenizer
        A Hugging Face tokenizer or a function that converts a token id into text. Without a
        tokenizer, the ids are shown.
    noise_multiplier, max_grad_norm
        As for :func:`sp.nn.leakage <seepage.nn.measures.gradient_leakage.leakage>`.
    probes
        The number of probes per role (with finite steps: per token), at least 2.
    targets
        Whether to measure the tokens also as targets.
    **options
        Further options of ``sp.nn.leakage``: ``clip``, ``method``, ``scale``, ``chunk_size``,
        ``seed``.
    """
    check_probes(probes)
    how = {"noise_multiplier": noise_multiplier, "max_grad_norm": max_grad_norm, **options}
    if not isinstance(batch, Mapping) or not isinstance(batch.get(_IDS), Tensor):
        raise InputError("The batch must contain 'input_ids', which identify its tokens.")
    ids = batch[_IDS]
    leak = leakage(net, batch, **how)
    as_input = _per_token(leak, probes)
    counted = batch[_MASK] != 0 if _MASK in batch else torch.ones_like(ids, dtype=torch.bool)
    nothing = (torch.full(ids.shape, math.nan),) * 2
    as_target, labels, of_labels = nothing, batch.get(_LABELS), None
    if (
        targets
        and isinstance(labels, Tensor)
        and labels.dim() == 2
        and not labels.is_floating_point()
    ):
        of_labels = _per_token(leakage(net, batch, view=Label(), **how), probes)
        # The labels of an encoder with a decoder are a different text from its input.
        if not getattr(getattr(net, "config", None), "is_encoder_decoder", False):
            kept = (labels != IGNORED).cpu()
            value, error = (torch.where(kept, part, math.nan) for part in of_labels)
            as_target, of_labels = (value, error), None
    read = _reader(tokenizer)
    tokens: list[Token] = []
    for record in range(len(ids)):
        rows = _rows(ids, counted, read, record, as_input, as_target)
        if of_labels is not None and labels is not None:
            unseen = (torch.full(labels.shape, math.nan),) * 2
            rows += _rows(labels, labels != IGNORED, read, record, unseen, of_labels, len(rows))
        tokens += rows
    return TokenMap(tuple(tokens), leak)


_Measured = tuple[Tensor, Tensor]  # dFIL and its standard error, (B, S)


def _per_token(leak: GradientLeakage, probes: int) -> _Measured:
    """Return the dFIL about each token's unknowns, and its standard error."""
    engine, x, y = leak.engine, leak.x, leak.y
    like = engine.variable(x, y)
    if like.dim() != 3:
        raise InputError(
            "The view does not have one row per token of a record; use the default view."
        )
    if engine.takes_finite_steps(x, y):
        squares = _moved(leak, probes, like)
    else:
        squares = torch.stack([_pulled(leak, k) for k in range(probes)], 1)
    information = squares.cpu() / (like.shape[2] * leak.jacobian.noise**2)
    value = information.mean(1).clamp(min=0).sqrt()
    spread = information.std(1, correction=1) / math.sqrt(probes)
    return value, torch.where(value > 0, spread / (2 * value.clamp(min=1e-300)), 0.0)


def _pulled(leak: GradientLeakage, k: int) -> Tensor:
    """Return a one-probe estimate of the information about each token, ``(B, S)``."""
    step = leak.engine.step(leak.x, leak.y, probes=1, key=("tokens", k), pulls=True)
    assert step.pulls is not None  # noqa: S101 - they were asked for
    return step.pulls[:, 0].double().square().sum(-1)


def _moved(leak: GradientLeakage, probes: int, like: Tensor) -> Tensor:
    """Return squared finite differences, ``(B, probes, S)``, changing one token at a time."""
    engine, count = leak.engine, len(leak.y)
    rows, shape = torch.arange(count), tuple(like.shape[1:])
    signs = torch.stack(
        [row_signs(key_of(engine.seed, "tokens", k), rows, shape, like) for k in range(probes)]
    )
    squares = []
    for token in range(shape[0]):
        only = torch.zeros(shape, dtype=like.dtype, device=like.device)
        only[token] = 1
        squares.append(engine.squared_changes(leak.x, leak.y, signs * only).double())
    return torch.stack(squares, 2)


def _rows(
    ids: Tensor,
    counted: Tensor,
    read: Callable[[int], str],
    record: int,
    as_input: _Measured,
    as_target: _Measured,
    start: int = 0,
) -> list[Token]:
    places = torch.nonzero(counted[record]).flatten().tolist()
    texts = [read(int(ids[record, place])) for place in places]
    out = []
    for place, text, word in zip(places, texts, _word_numbers(texts), strict=True):
        numbers = (float(part[record, place]) for part in (*as_input, *as_target))
        value, error, target, target_error = numbers
        out.append(
            Token(record, start + place, text, start + word, value, target, error, target_error)
        )
    return out


def _reader(tokenizer: Any) -> Callable[[int], str]:
    """Return a function that converts a token id into text."""
    if tokenizer is None:
        return str
    for name in ("convert_ids_to_tokens", "id_to_token"):
        if hasattr(tokenizer, name):
            of = getattr(tokenizer, name)
            return lambda number: str(of(number))
    if not callable(tokenizer):
        raise InputError(
            "tokenizer must be a Hugging Face tokenizer or a function that converts a token id "
            f"into text, not an object of type {type(tokenizer).__name__}."
        )
    return lambda number: str(tokenizer(number))


def _word_numbers(texts: Sequence[str]) -> list[int]:
    """Return the word number of each token, using the tokenizer's marks on word pieces."""
    spaced = any(text.startswith(_BEGINS) for text in texts)
    numbers: list[int] = []
    for text in texts:
        begins = text.startswith(_BEGINS) if spaced else not text.startswith(_CONTINUES)
        numbers.append(numbers[-1] + begins if numbers else 0)
    return numbers


def _spaced(text: str) -> str:
    """Return the text of a token, with the mark of a new word replaced by a space."""
    for mark in _BEGINS:
        text = text.replace(mark, " ")
    return text


def _plain(text: str) -> str:
    return _spaced(text).removeprefix(_CONTINUES).strip()


def _shaded(token: Token, highest: Mapping[str, float]) -> str:
    share = {
        path: float(np.nan_to_num(getattr(token, path))) / most for path, most in highest.items()
    }
    text = _spaced(token.text).removeprefix(_CONTINUES).replace("Ċ", "\n")
    title = ", ".join(
        f"as {path} {value:.3g} ± {error:.2g}"
        for path, value, error in (
            ("an input", token.input, token.input_error),
            ("a target", token.target, token.target_error),
        )
        if not math.isnan(value)
    )
    return (
        f'<span title="{html.escape(title)}" style="background:rgba(200,60,20,'
        f'{share["input"]:.2f});border-color:rgba(20,60,160,{share["target"]:.2f})">'
        f"{html.escape(text) or '&nbsp;'}</span>"
    )


def _root_mean_square(values: Sequence[float]) -> float:
    squares = np.square([value for value in values if not math.isnan(value)])
    return float(np.sqrt(squares.mean())) if len(squares) else math.nan
