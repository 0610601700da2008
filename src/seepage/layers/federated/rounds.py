"""Simulated federated rounds: FedSGD and FedAvg, with clipping, noise and secure aggregation."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from seepage.errors import InputError, accepts_other_names
from seepage.layers.federated.buffers import kept_buffers, moved_by, sent_buffers
from seepage.layers.federated.remedies import UpdateRemedy
from seepage.layers.inputs_and_targets import (
    check_classes,
    check_labels,
    is_finite,
    read_pair,
)
from seepage.nn.gradients.network_checks import unwrapped
from seepage.nn.gradients.per_record_gradients import record_lengths
from seepage.nn.jacobian.random_directions import key_of
from seepage.nn.problem.problem import Loss, per_record
from seepage.nn.problem.views import Inputs, call, rows_of
from seepage.support.chunks import progress
from seepage.support.number_check import (
    check_choice,
    check_count,
    check_not_negative,
    check_positive,
)

Client = tuple[Inputs, Tensor]
State = dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class Update:
    """The update that the server receives from one or several clients in a round.

    Parameters
    ----------
    round
        The round number, from 0.
    clients
        The clients whose updates are combined: one, or k with secure aggregation.
    values
        The mean of these clients' updates, by parameter or buffer name. For buffers (BatchNorm's
        running statistics), an update is the server's value minus the client's value.
    """

    round: int
    clients: tuple[int, ...]
    values: Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class FederatedRun:
    """The result of simulated federated training.

    Parameters
    ----------
    net
        The global model after the last round, as a copy; the original network is unchanged.
    snapshots
        The global model's parameters and buffers before each of the requested rounds, as every
        participant received them, by round.
    """

    net: nn.Module
    snapshots: Mapping[int, State]

    def models(self) -> Iterator[tuple[int, nn.Module]]:
        """Yield each snapshot's round, and a separate network with its parameters."""
        for number, state in self.snapshots.items():
            net = copy.deepcopy(self.net)
            net.load_state_dict(state)
            yield number, net


@accepts_other_names
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
    local_epochs: int | None = None,
    optimizer: Callable[[list[Tensor]], torch.optim.Optimizer] | None = None,
    per_round: int | None = None,
    max_norm: float | None = None,
    noise_multiplier: float = 0.0,
    together: int = 1,
    remedy: UpdateRemedy | None = None,
    snapshots: Collection[int] = (),
    observe: Callable[[Update], object] | None = None,
    seed: int = 0,
) -> FederatedRun:
    """Simulate federated training, and pass each update that the server receives to an observer.

    In FedSGD, every client sends the mean gradient ``g`` of one batch, and the server changes the
    model by ``−lr`` times the mean of these gradients. In FedAvg, every client takes
    ``local_steps`` local steps from the server's parameters ``θ`` and sends ``(θ − θ_client)/lr``,
    so both kinds of update have the scale of gradients. With a custom ``optimizer``, the client
    sends ``θ − θ_client``.

    Every client starts from the server's parameters and buffers. The means are weighted by the
    number of records: those of the client in FedAvg, those of its batch in FedSGD. With noise,
    every client has the same weight, because the noise must cover each client's share of the mean.
    Buffers (BatchNorm's running statistics) are sent and averaged too; clipping and noise do not
    apply to them.

    Parameters
    ----------
    net, loss
        The network, and its loss as for :class:`seepage.nn.Engine`.
    clients
        The data of every client: inputs and targets, tensors or NumPy arrays.
    rounds
        The number of rounds.
    method
        ``"fedsgd"`` or ``"fedavg"``.
    batch_size, lr
        The number of records per batch, and the learning rate of plain SGD.
    local_steps
        The number of local steps in FedAvg, each on a newly drawn batch.
    local_epochs
        The number of passes of each client over its records, in shuffled batches, instead of
        ``local_steps``.
    optimizer
        For FedAvg, a function that creates a client's optimiser from the parameters: ``lambda
        parameters: torch.optim.Adam(parameters, lr=1e-3)``. Every client starts every round with a
        new optimiser. The default is plain SGD; with an optimiser, ``lr`` is ignored.
    per_round
        The number of randomly drawn clients that take part in a round; by default, all clients.
    max_norm
        The norm to which updates of the parameters are clipped before they are sent.
    noise_multiplier
        The standard deviation of the Gaussian noise on the sum of the updates in each group
        (``together``), divided by ``max_norm``; every client adds its share.
    together
        The group size for secure aggregation: only the mean update of each group of clients is
        visible. Any remaining clients join the last group.
    remedy
        A remedy that every client applies to the named layers, after clipping and noise; the
        network is trained under this remedy.
    snapshots
        The rounds before which the global model is stored, from 0; the value of ``rounds`` selects
        the final model.
    observe
        A function that is called with every :class:`Update` that the server receives.
    seed
        The seed of batches, clients and noise.

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
    trained = copy.deepcopy(unwrapped(net)) if remedy is None else remedy.network(unwrapped(net))
    server = _Server(
        trained,
        loss,
        list(clients),
        method=method,
        batch_size=batch_size,
        lr=lr,
        local_steps=local_steps,
        local_epochs=local_epochs,
        optimizer=optimizer,
        per_round=per_round,
        max_norm=max_norm,
        noise_multiplier=noise_multiplier,
        together=together,
        remedy=remedy,
        seed=seed,
    )
    check_count(rounds, "rounds", 0)
    wanted = set(snapshots)
    beyond = [number for number in wanted if not 0 <= number <= rounds]
    if beyond:
        raise InputError(
            f"snapshots contains round {beyond[0]}, which does not exist; choose rounds from 0, "
            f"the start of training, to {rounds}, its end."
        )
    kept: dict[int, State] = {}
    for number in progress(range(rounds), method):
        if number in wanted:
            kept[number] = copy.deepcopy(server.net.state_dict())
        for update in server.round(number):
            if observe is not None:
                observe(update)
    if rounds in wanted:
        kept[rounds] = copy.deepcopy(server.net.state_dict())
    return FederatedRun(server.net, kept)


@dataclass
class _Server:
    """The global model and the settings of a round."""

    net: nn.Module
    loss: str | nn.Module | Loss
    clients: list[Client]
    method: str
    batch_size: int
    lr: float
    local_steps: int
    local_epochs: int | None
    optimizer: Callable[[list[Tensor]], torch.optim.Optimizer] | None
    per_round: int | None
    max_norm: float | None
    noise_multiplier: float
    together: int
    remedy: UpdateRemedy | None
    seed: int

    def __post_init__(self) -> None:
        check_choice(self.method, "method", ("fedsgd", "fedavg"))
        if self.method == "fedsgd" and self.local_steps != 1:
            raise InputError("FedSGD supports only one local step; for more, use method='fedavg'.")
        if self.method == "fedsgd" and not (self.local_epochs is None and self.optimizer is None):
            raise InputError(
                "In FedSGD, clients send the gradient of one batch, without epochs or an "
                "optimiser; for those, use method='fedavg'."
            )
        if self.local_epochs is not None and (self.local_epochs < 1 or self.local_steps != 1):
            raise InputError("Give local_epochs (at least 1) or local_steps, not both.")
        self.clients = [
            read_pair(client, self.net, self.loss, f"Client {place}")
            for place, client in enumerate(self.clients)
        ]
        if not self.clients:
            raise InputError("There are no clients; give a pair (inputs, targets) for each client.")
        check_count(self.batch_size, "batch_size")
        check_count(self.local_steps, "local_steps")
        check_positive(self.lr, "lr")
        check_not_negative(self.noise_multiplier, "noise_multiplier")
        if self.noise_multiplier and self.max_norm is None:
            raise InputError("noise_multiplier is relative to max_norm; give max_norm too.")
        if self.max_norm is not None:
            check_positive(self.max_norm, "max_norm")
        for place, (x, y) in enumerate(self.clients):
            check_labels(self.net, self.loss, x, y, f"Client {place}")
        taking = len(self.clients) if self.per_round is None else self.per_round
        if not 1 <= self.together <= taking <= len(self.clients):
            raise InputError(
                f"The number of clients is {len(self.clients)}, per_round is {taking} and "
                f"together is {self.together}; per_round cannot exceed the number of clients, and "
                "together must be between 1 and per_round."
            )
        self._trained = {name: p for name, p in self.net.named_parameters() if p.requires_grad}
        if not self._trained:
            raise InputError(
                "The network has no parameter with requires_grad, so nothing can be trained; "
                "unfreeze some parameters."
            )
        # How far one unit of an update moves the parameters.
        self._scale = self.lr if self.optimizer is None else 1.0

    def round(self, number: int) -> list[Update]:
        """Run one round, and return the updates that the server receives."""
        draw = torch.Generator().manual_seed(key_of(self.seed, number, "round") % (1 << 63))
        taking = list(range(len(self.clients)))
        if self.per_round is not None:
            order = torch.randperm(len(self.clients), generator=draw)[: self.per_round]
            taking = sorted(order.tolist())
        seen = []
        for group in _groups(taking, self.together):
            sent = [self._sent(client, len(group), number, draw) for client in group]
            # The masks of secure aggregation cancel in the sum, so only the sum is simulated.
            shares = self._shares([(client,) for client in group])
            mean = {
                name: sum(w * v[name] for w, v in zip(shares, sent, strict=True))
                for name in sent[0]
            }
            seen.append(Update(number, group, mean))
        if not is_finite([update.values for update in seen]):
            raise InputError(
                f"The updates of round {number} are not finite, so the training has diverged; use "
                "a smaller lr, or max_norm."
            )
        shares = self._shares([update.clients for update in seen])
        with torch.no_grad():
            for name, parameter in self._trained.items():
                for update, share in zip(seen, shares, strict=True):
                    parameter -= self._scale * share * update.values[name]
            for name, buffer in sent_buffers(self.net).items():
                step = sum(w * u.values[name] for w, u in zip(shares, seen, strict=True))
                # Integers and masks keep their type.
                floating = buffer.is_floating_point()
                buffer.copy_(buffer - step if floating else (buffer.double() - step).round())
        return seen

    def _shares(self, groups: Sequence[Sequence[int]]) -> list[float]:
        """Return the weight of each group of clients in the mean over these groups."""

        def weight(client: int) -> int:
            records = len(self.clients[client][1])
            if self.noise_multiplier:
                return 1
            return records if self.method == "fedavg" else min(records, self.batch_size)

        weights = [sum(map(weight, group)) for group in groups]
        return [each / sum(weights) for each in weights]

    def _sent(self, client: int, together: int, number: int, draw: torch.Generator) -> State:
        """Return the update of a client that starts from the server's state."""
        before = {name: buffer.clone() for name, buffer in sent_buffers(self.net).items()}
        with kept_buffers(self.net):
            update = self._leaving(self._update(client, draw), together, draw)
            if self.remedy is not None:
                update = self.remedy.applied(update, number, draw)
            after = sent_buffers(self.net)
            if self.remedy is not None:
                held = [name for name in before if not self.remedy.sends(name, number)]
                after = after | {name: before[name] for name in held}
            return update | {name: moved_by(before[name], after[name]) for name in before}

    def _update(self, client: int, draw: torch.Generator) -> State:
        batches = self._batches(len(self.clients[client][1]), draw)
        if self.method == "fedsgd":
            return self._gradient(client, next(batches))
        start = {name: p.detach().clone() for name, p in self._trained.items()}
        new_optimizer = self.optimizer or partial(torch.optim.SGD, lr=self.lr)
        optimizer = new_optimizer(list(self._trained.values()))
        for rows in batches:
            gradient = self._gradient(client, rows)
            for name, parameter in self._trained.items():
                parameter.grad = gradient[name]
            optimizer.step()
        update = {}
        with torch.no_grad():
            for name, parameter in self._trained.items():
                parameter.grad = None
                update[name] = (start[name] - parameter) / self._scale
                parameter.copy_(start[name])
        return update

    def _batches(self, records: int, draw: torch.Generator) -> Iterator[Tensor]:
        """Yield the records of every local step."""
        if self.local_epochs is None:
            for _ in range(self.local_steps):
                yield torch.randperm(records, generator=draw)[: self.batch_size]
        for _ in range(self.local_epochs or 0):
            yield from torch.randperm(records, generator=draw).split(self.batch_size)

    def _gradient(self, client: int, chosen: Tensor) -> State:
        x, y = self.clients[client]
        rows = chosen.to(y.device)
        return mean_gradient(self.net, self.loss, rows_of(x, rows), y[rows])

    def _leaving(self, update: State, together: int, draw: torch.Generator) -> State:
        """Return an update scaled down to ``max_norm``, with this client's share of the noise."""
        if self.max_norm is None:
            return update
        norm = record_lengths(torch.cat([v.flatten() for v in update.values()])[None])[0]
        factor = torch.clamp(self.max_norm / (norm + 1e-12), max=1.0)
        update = {name: v * factor for name, v in update.items()}
        if not self.noise_multiplier:
            return update
        # So that the sum over k clients carries ``multiplier·C``.
        share = self.noise_multiplier * self.max_norm / math.sqrt(together)
        return {
            name: v
            + share * torch.randn(v.shape, generator=draw, dtype=v.dtype, device="cpu").to(v)
            for name, v in update.items()
        }


def mean_gradient(
    net: nn.Module, loss: str | nn.Module | Loss, x: Inputs, y: Tensor, where: str = ""
) -> State:
    """Return the gradient of the mean loss, by parameter name.

    If ``where`` is given, the labels are checked, and errors name their origin, such as "Batch 3".
    """
    trained = {name: p for name, p in net.named_parameters() if p.requires_grad}
    with torch.enable_grad():
        output = call(net, x)
        if where:
            check_classes(loss, output, y, where)
        mean = per_record(loss)(output, y).mean()
    gradients = torch.autograd.grad(mean, list(trained.values()), materialize_grads=True)
    return dict(zip(trained, gradients, strict=True))


def _groups(clients: Sequence[int], together: int) -> list[tuple[int, ...]]:
    """Return clients in groups of ``together``, in order; remaining clients join the last group."""
    starts = [g * together for g in range(max(1, len(clients) // together))]
    ends = [*starts[1:], len(clients)]
    return [tuple(clients[a:b]) for a, b in zip(starts, ends, strict=True)]
