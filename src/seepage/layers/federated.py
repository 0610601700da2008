"""A simulation of federated rounds: FedSGD and FedAvg, with clipping, noise, secure aggregation."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from seepage.chunks import progress
from seepage.errors import InputError
from seepage.layers.federated_update import (
    Update,
    aggregate,
    clip_update,
    noise_update,
    share_of_noise,
)
from seepage.nn.losses import Loss, per_example
from seepage.nn.signs import key_of
from seepage.nn.validation import unwrapped
from seepage.nn.views import Inputs, call, rows_of
from seepage.nn.views import batch_size as size_of

Client = tuple[Inputs, Tensor]
State = dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class FederatedRun:
    """What a simulated training leaves behind.

    Parameters
    ----------
    net
        The global model after the last round (a copy; the one handed in stays as it was).
    snapshots
        By round, the global model's parameters and buffers before that round: what every
        participant received.
    """

    net: nn.Module
    snapshots: Mapping[int, State]

    def models(self) -> Iterator[tuple[int, nn.Module]]:
        """Yield every snapshot's round with a network that has its parameters."""
        net = copy.deepcopy(self.net)
        for number, state in self.snapshots.items():
            net.load_state_dict(state)
            yield number, net


def simulate(
    net: nn.Module,
    loss: str | nn.Module | Loss,
    clients: Sequence[Client],
    *,
    rounds: int,
    method: str = "fedsgd",
    batch_size: int = 32,
    lr: float = 0.01,
    local_steps: int = 1,
    per_round: int | None = None,
    max_norm: float | None = None,
    noise_multiplier: float = 0.0,
    together: int = 1,
    snapshots: Collection[int] = (),
    observe: Callable[[Update], object] | None = None,
    seed: int = 0,
) -> FederatedRun:
    """Train a network in federated rounds and let an observer see what the server sees.

    In FedSGD every client sends the mean gradient ``g`` of one batch, and the server steps by
    ``−lr`` times the mean of these. In FedAvg every client takes ``local_steps`` steps of its own
    and sends ``(θ − θ_client)/lr``, so that both kinds of update are on the scale of gradients.

    Parameters
    ----------
    net, loss
        The network, and its loss as for :class:`seepage.nn.Engine`.
    clients
        The data of every client: inputs and targets.
    rounds
        How many rounds.
    method
        ``"fedsgd"`` or ``"fedavg"``.
    batch_size, lr
        Of every local step; plain SGD.
    local_steps
        Local steps of FedAvg.
    per_round
        How many clients, drawn at random, take part in a round; by default all.
    max_norm
        Updates are scaled down to this norm before they leave.
    noise_multiplier
        The sum of the updates that the server sees carries Gaussian noise of this times
        ``max_norm``, to which every client adds its share.
    together
        With secure aggregation, the number of clients of whose updates only the mean is seen.
    snapshots
        Rounds before which to keep the global model; ``rounds`` itself keeps the last.
    observe
        Called with every :class:`Update` that reaches the server.
    seed
        Of batches, clients and noise.

    Examples
    --------
    >>> import torch, seepage as sp
    >>> net = torch.nn.Linear(3, 2)
    >>> clients = [(torch.randn(50, 3), torch.randint(0, 2, (50,))) for _ in range(4)]
    >>> seen = []
    >>> run = sp.layers.simulate(
    ...     net, "cross_entropy", clients, rounds=5, together=2, observe=seen.append
    ... )
    >>> len(seen), seen[0].clients
    (10, (0, 1))
    """
    server = _Server(
        copy.deepcopy(unwrapped(net)),
        per_example(loss),
        list(clients),
        method,
        batch_size,
        lr,
        local_steps,
        per_round,
        max_norm,
        noise_multiplier,
        together,
        seed,
    )
    if rounds < 0:
        raise InputError(f"rounds must not be negative, but is {rounds}.")
    kept: dict[int, State] = {}
    wanted = set(snapshots)
    for number in progress(range(rounds), method):
        if number in wanted:
            kept[number] = server.state()
        for update in server.round(number):
            if observe is not None:
                observe(update)
    if rounds in wanted:
        kept[rounds] = server.state()
    return FederatedRun(server.net, kept)


@dataclass
class _Server:
    """The global model and the rules of a round."""

    net: nn.Module
    loss: Loss
    clients: list[Client]
    method: str
    batch_size: int
    lr: float
    local_steps: int
    per_round: int | None
    max_norm: float | None
    noise_multiplier: float
    together: int
    seed: int

    def __post_init__(self) -> None:
        if self.method not in ("fedsgd", "fedavg"):
            raise InputError(f"method must be 'fedsgd' or 'fedavg', not {self.method!r}.")
        if self.method == "fedsgd" and self.local_steps != 1:
            raise InputError("FedSGD takes one local step; for more, use method='fedavg'.")
        if not self.clients or any(
            size_of(x) == 0 or size_of(x) != len(y) for x, y in self.clients
        ):
            raise InputError("Every client needs inputs and as many targets, at least one.")
        if min(self.batch_size, self.local_steps) < 1 or not self.lr > 0:
            raise InputError("batch_size and local_steps must be at least 1, and lr above zero.")
        if self.noise_multiplier < 0 or (self.noise_multiplier and self.max_norm is None):
            raise InputError("Noise must not be negative, and needs max_norm to be measured by.")
        if self.max_norm is not None and not self.max_norm > 0:
            raise InputError(f"max_norm must be above zero, not {self.max_norm!r}.")
        taking = len(self.clients) if self.per_round is None else self.per_round
        if not 1 <= self.together <= taking <= len(self.clients):
            raise InputError(
                f"Of {len(self.clients)} clients {taking} take part in a round, {self.together} of "
                "them aggregated: each number must be at least the next, and none below 1."
            )
        self._trained = {name: p for name, p in self.net.named_parameters() if p.requires_grad}
        if not self._trained:
            raise InputError("The network has no parameter with requires_grad to be trained.")

    def state(self) -> State:
        """Return a copy of the global model's parameters and buffers."""
        return {name: value.detach().clone() for name, value in self.net.state_dict().items()}

    def round(self, number: int) -> list[Update]:
        """Run one round, and return what the server sees."""
        draw = torch.Generator().manual_seed(key_of(self.seed, number, "round") % (1 << 63))
        taking = range(len(self.clients))
        if self.per_round is not None:
            order = torch.randperm(len(self.clients), generator=draw)[: self.per_round]
            taking = sorted(order.tolist())  # type: ignore[assignment]
        sent = [(c, self._leaving(self._update(self.clients[c], draw), draw)) for c in taking]
        seen = aggregate(number, sent, self.together)
        weights = [len(update.clients) / len(sent) for update in seen]
        with torch.no_grad():
            for name, parameter in self._trained.items():
                for update, weight in zip(seen, weights, strict=True):
                    parameter -= self.lr * weight * update.values[name]
        return seen

    def _update(self, client: Client, draw: torch.Generator) -> State:
        if self.method == "fedsgd":
            return self._gradient(client, draw)
        start = {name: p.detach().clone() for name, p in self._trained.items()}
        for _ in range(self.local_steps):
            gradient = self._gradient(client, draw)
            with torch.no_grad():
                for name, parameter in self._trained.items():
                    parameter -= self.lr * gradient[name]
        found = {}
        with torch.no_grad():
            for name, parameter in self._trained.items():
                found[name] = (start[name] - parameter) / self.lr
                parameter.copy_(start[name])
        return found

    def _gradient(self, client: Client, draw: torch.Generator) -> State:
        x, y = client
        rows: Any = torch.randperm(len(y), generator=draw)[: self.batch_size].to(y.device)
        with torch.enable_grad():
            total = self.loss(call(self.net, rows_of(x, rows)), y[rows]).mean()
        found = torch.autograd.grad(total, list(self._trained.values()), materialize_grads=True)
        return dict(zip(self._trained, found, strict=True))

    def _leaving(self, update: State, draw: torch.Generator) -> State:
        if self.max_norm is None:
            return update
        update = clip_update(update, self.max_norm)
        if not self.noise_multiplier:
            return update
        share = share_of_noise(self.noise_multiplier, self.max_norm, self.together)
        return noise_update(update, share, draw)
