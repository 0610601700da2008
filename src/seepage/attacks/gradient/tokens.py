"""Recovers the tokens of a text, and their order, from a language model's gradients.

A token that does not occur in a batch has a zero row in the gradient of the embedding. The gradient
of the first linear layer is ``Σ_t δ_t z_tᵀ`` over all positions ``t``, with inputs ``z_t`` and
gradients ``δ_t`` at the outputs. The rows of this gradient span the inputs if there are fewer
positions than entries in ``z_t``. A token is therefore at a given position of the text if its input
at that position lies in that span (Petrov, Dimitrov, Baader, Müller and Vechev 2024, "DAGER"). Both
tests, of a token's presence and of its position, are exact and need no search.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from scipy.stats import chi2
from torch import Tensor, nn

from seepage.attacks.gradient.releases import GradientReleases
from seepage.errors import InputError
from seepage.nn.gradients.network_checks import refuse_modes, unwrapped
from seepage.support.number_check import check_count
from seepage.tables.names import counted


@dataclass(frozen=True, eq=False, repr=False)
class RecoveredTokens:
    """The tokens recovered from gradients of texts; they are as sensitive as the texts.

    Parameters
    ----------
    present
        The distinct tokens of each release; all tokens if nothing excludes any.
    sequences
        The most likely token at every position, (releases, length), or −1 if the span of the
        gradient does not restrict the tokens.
    distances
        The distance of that token's input from the span, relative to the input's norm, (releases,
        length).
    candidates
        The tokens at each position whose inputs lie in the span, for each release.
    """

    present: list[Tensor]
    sequences: Tensor
    distances: Tensor
    candidates: list[list[Tensor]]

    def __len__(self) -> int:
        return len(self.sequences)

    def __repr__(self) -> str:
        known = int((self.sequences >= 0).sum())
        return (
            f"<tokens of {counted(len(self), 'release')}: {known:,} of "
            f"{self.sequences.numel():,} located>"
        )


def recover_tokens(
    net: nn.Module, releases: GradientReleases, *, embedding: str, layer: str, length: int
) -> RecoveredTokens:
    """Return the tokens of every release, and the position of each.

    A token is present if its row of the embedding's gradient is not zero. With noise σ, the row's
    norm must exceed ``σ √χ²_d(1 − 0.05/V)``, for V tokens with rows of d entries. Let ``B`` be an
    orthonormal basis of the span of the rows of the layer's gradient. A token is a candidate for a
    position if its input ``z`` to the layer satisfies ``‖z − B Bᵀz‖ < 0.001 ‖z‖``. Positions remain
    unknown if the batch has so many positions that the span contains all possible inputs, or if
    noise hides all singular values.

    Parameters
    ----------
    net
        The network, which maps token ids (n, length) to outputs.
    releases
        The gradients, by parameter name.
    embedding
        The name of the token embedding. If its gradient was not released (such as with LoRA), the
        tokens that are present are those that are candidates for a position.
    layer
        The name of a linear layer whose input at a position depends only on that position's token:
        the projection to queries, keys and values of the first block, or to values only. (In causal
        attention, queries and keys of the first position have no gradient.)
    length
        The number of tokens of a text.

    Examples
    --------
    >>> import torch, seepage as sp
    >>> _ = torch.manual_seed(0)
    >>> net = torch.nn.Sequential(torch.nn.Embedding(50, 16), torch.nn.Linear(16, 8),
    ...                           torch.nn.Tanh(), torch.nn.Flatten(), torch.nn.Linear(24, 2))
    >>> loss = torch.nn.functional.cross_entropy(net(torch.tensor([[7, 3, 41]])), torch.tensor([1]))
    >>> slopes = torch.autograd.grad(loss, list(net.parameters()))
    >>> names = [name for name, _ in net.named_parameters()]
    >>> seen = sp.attacks.GradientReleases({k: g[None] for k, g in zip(names, slopes)})
    >>> found = sp.attacks.recover_tokens(net, seen, embedding="0", layer="1", length=3)
    >>> found.present[0].tolist()
    [3, 7, 41]
    """
    check_count(length, "length")
    own = unwrapped(net)
    table, linear = (_module(own, name) for name in (embedding, layer))
    if not isinstance(table, nn.Embedding):
        raise InputError(f"{embedding!r} is not an embedding layer; name the token embedding.")
    looked_up = releases.gradients.get(f"{embedding}.weight")
    try:
        slopes = releases.gradients[f"{layer}.weight"]
    except KeyError as error:
        raise InputError(
            f"The release has no gradient of {error}; name a layer whose gradient was released."
        ) from None
    if not isinstance(linear, nn.Linear):  # transformers' Conv1D has the inputs first
        slopes = slopes.transpose(1, 2)
    inputs = _inputs(own, linear, table.num_embeddings, length)
    all_of = int(torch.linalg.matrix_rank(inputs.flatten(0, 1)))  # less than d after LayerNorm
    positions = releases.batch_size * length
    present, candidates, sequences, distances = [], [], [], []
    every = torch.arange(table.num_embeddings, device=inputs.device)
    for k, gradient in enumerate(slopes):
        there = every if looked_up is None else _present(looked_up[k], releases.noise)
        away = _distances(gradient, inputs[there], (positions, all_of), releases.noise)
        if away is None or not len(there):
            present.append(there)
            candidates.append([there] * length)
            sequences.append(torch.full((length,), -1))
            distances.append(torch.full((length,), torch.nan))
            continue
        nearest = away.min(0)
        near = away < 1e-3
        present.append(there if looked_up is not None else there[near.any(1)])
        candidates.append([there[column] for column in near.T])
        sequences.append(there[nearest.indices].cpu())
        distances.append(nearest.values.cpu())
    return RecoveredTokens(present, torch.stack(sequences), torch.stack(distances), candidates)


def _module(net: nn.Module, name: str) -> nn.Module:
    try:
        return net.get_submodule(name)
    except AttributeError:
        raise InputError(
            f"The network has no layer {name!r}; use a name from net.named_modules()."
        ) from None


def _inputs(net: nn.Module, linear: nn.Module, tokens: int, length: int) -> Tensor:
    """Return the layer's input for every token at every position, (tokens, length, d)."""
    refuse_modes(net)
    kept: list[Tensor] = []
    hook = linear.register_forward_pre_hook(lambda _, given: kept.append(given[0].detach()))
    device = next(net.parameters()).device
    try:
        with torch.no_grad():
            for some in torch.arange(tokens, device=device).split(1024):
                net(some[:, None].expand(-1, length))
    finally:
        hook.remove()
    return torch.cat(kept)


def _present(rows: Tensor, noise: float) -> Tensor:
    """Return the tokens whose rows of the embedding's gradient differ from zero."""
    tokens, d = rows.shape
    hidden = noise * float(chi2.isf(0.05 / tokens, d)) ** 0.5
    return torch.nonzero(torch.linalg.vector_norm(rows, dim=1) > hidden).flatten()


def _distances(
    gradient: Tensor, inputs: Tensor, ranks: tuple[int, int], noise: float
) -> Tensor | None:
    """Return inputs' relative distances from the rows' span; None if it contains all inputs.

    ``ranks`` are the number of positions and the dimension of all possible inputs.
    """
    _, sizes, basis = torch.linalg.svd(gradient.double(), full_matrices=False)
    m, n = gradient.shape
    rounding = float(sizes[0]) * max(m, n) * torch.finfo(gradient.dtype).eps
    # The largest singular value of m × n standard Gaussian noise is about √m + √n.
    kept = basis[sizes > rounding + noise * (m**0.5 + n**0.5)][: ranks[0]]
    if not 0 < len(kept) < ranks[1]:
        return None
    z = inputs.double()
    z = z / torch.linalg.vector_norm(z, dim=2, keepdim=True)
    return torch.linalg.vector_norm(z - (z @ kept.T) @ kept, dim=2)
