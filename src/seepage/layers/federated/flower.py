"""Records the updates of a Flower project, on the server or in a client, for an audit.

An update is ``θ_sent − θ_returned``, layer by layer: the client's change to the model, with the
sign of a gradient. Buffers (BatchNorm's running statistics), which are sent with the parameters,
are recorded too, as are metrics that clients send (number of records, loss). Needs ``flwr``: ``pip
install 'seepage[flower]'``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor, nn

from seepage.errors import InputError, accepts_other_names
from seepage.layers.federated.buffers import moved_by
from seepage.layers.federated.gradients import (
    WIDTH,
    LayerGradients,
    joined,
    load_gradients,
    save_gradients,
)
from seepage.layers.federated.recording import (
    blank_recording,
    dequantised,
    real_names,
    record_updates,
)
from seepage.layers.federated.sent_names import with_own_names
from seepage.layers.layer_parameters import layer_parameters
from seepage.nn.gradients.network_checks import unwrapped
from seepage.support.files import only_writer

if TYPE_CHECKING:
    from flwr.app import ArrayRecord, Message

try:
    from flwr.serverapp.strategy import Strategy
except ImportError:  # the rest of this file works without it
    Strategy = object


@accepts_other_names
class UpdateRecorder:
    """Records updates layer by layer, with the round and the node of each update.

    Buffers that a client sends are a separate entry next to their layer: ``"bn1.buffers"`` next to
    ``"bn1"``.

    Parameters
    ----------
    net
        The network to be trained, which determines the names of the layers.
    path
        The file to write after every round, readable only by its owner; by default, no file is
        written. Several recorders of one run, even in different processes, may write to one file.
        Each recorder appends its new updates and reads those of the other recorders.
    layers, width, seed
        As for :func:`seepage.layers.record_gradients`.
    resume
        Whether to continue an existing file that has the same layers, width and seed; if False, an
        existing file raises an error. Flower renumbers its nodes in every simulation. A second run
        in the same file would therefore count every client twice, which inflates the significance
        of any labels. For the same reason, a round that the file already contains from another run
        raises an error.
    """

    def __init__(
        self,
        net: nn.Module,
        path: str | os.PathLike[str] | None = None,
        *,
        layers: Sequence[str] | None = None,
        width: int = WIDTH,
        seed: int = 0,
        resume: bool = False,
    ) -> None:
        self.net, self.path = unwrapped(net), None if path is None else Path(path)
        layer_parameters(self.net, layers)  # refuses unknown names
        self._options: dict[str, Any] = {"layers": layers, "width": width, "seed": seed}
        self._real = real_names(self.net)
        self._written: list[LayerGradients] = []  # the file's content when last read
        self._new: list[LayerGradients] = []
        if self.path is not None and self.path.exists():
            if not resume:
                raise InputError(
                    f"{self.path} exists already. Flower renumbers its nodes in every run, so "
                    "clients from another run would be counted twice: name another file, or pass "
                    "resume=True to add later rounds of the same nodes."
                )
            self._written = [self._read(self.path)]
        self._before = _origins(self._written)  # what was there before this recorder
        self._seen = _origins(self._written)

    def __len__(self) -> int:
        return sum(len(part) for part in self._parts())

    @property
    def rounds(self) -> list[int]:
        """The server's round number for every update."""
        return [int(number) for part in self._parts() for number in _known(part.rounds)]

    @property
    def nodes(self) -> list[int]:
        """The node that sent each update."""
        return [int(number) for part in self._parts() for number in _known(part.nodes)]

    def add(
        self,
        sent: dict[str, Tensor],
        returned: dict[str, Tensor],
        server_round: int,
        node: int,
        metrics: Mapping[str, float] | None = None,
        run: int = 0,
    ) -> None:
        """Record one client's update from the state sent to it and the state it returned.

        Everything that the client returned is recorded: changes of the arrays that were sent to it,
        the values of other arrays, and metrics (number of records, losses). ``run`` is Flower's run
        number, if known. A round from another run raises an error, as does a node's second update
        in one round.
        """
        self._refuse_again(server_round, node, run, self._seen)
        sent, returned = (with_own_names(self.net, state) for state in (sent, returned))
        parameters = [name for name, _ in self.net.named_parameters() if name in sent]
        missing = [name for name in parameters if name not in returned]
        if missing:
            raise InputError(
                f"Node {node} did not return the parameter {missing[0]!r}; clients must return "
                "every parameter that they train."
            )
        for name, value in returned.items():
            if name in sent and sent[name].shape != value.shape:
                raise InputError(
                    f"Node {node} returned {name!r} with the shape {tuple(value.shape)}, but was "
                    f"sent {tuple(sent[name].shape)}; return arrays with the shapes sent."
                )
        returned = {
            name: dequantised(value, name, real=name in self._real)
            for name, value in returned.items()
        }
        update = {
            name: moved_by(sent[name], value) if name in sent else value
            for name, value in returned.items()
        }
        # Node ids are unsigned 64-bit integers.
        whose = np.array([node], dtype=np.uint64)
        recorded = record_updates(self.net, [update], **self._options, nodes=whose)
        if self._parts():
            try:
                self._parts()[0].check_same_projection(recorded)
            except InputError as error:
                raise InputError(
                    f"Node {node} sent different entries from the other nodes. {error}"
                ) from error
        numbers = {name: np.array([float(value)]) for name, value in (metrics or {}).items()}
        runs = np.array([run], dtype=np.uint64)
        rounds = np.array([server_round])
        self._new.append(replace(recorded, rounds=rounds, runs=runs, metrics=numbers))
        self._seen.setdefault(server_round, {})[node] = run

    def gradients(self) -> LayerGradients:
        """Return the updates recorded so far, for :func:`seepage.layers.v_information`.

        The result includes the rounds and the nodes; V-information groups updates by node.
        """
        if not self._parts():
            raise InputError("No update has been recorded yet; run at least one round.")
        return joined(self._parts())

    def save(self) -> None:
        """Append the updates recorded since the last write to the file, if one was given."""
        if self.path is None or not self._new:
            return
        with only_writer(self.path):
            if self.path.exists():
                self._written = [self._read(self.path)]
            new = list(self._new)
            there = _origins(self._written)
            for number, by_node in _origins(new).items():  # others may have written since
                for node, run in by_node.items():
                    self._refuse_again(number, node, run, there)
            whole = joined([*self._written, *new])
            save_gradients(whole, self.path)
            self._written = [whole]
            del self._new[: len(new)]
            self._seen = _origins(self._parts())

    def refuse_round(self, server_round: int) -> None:
        """Raise an error if updates of a round that is about to begin are already recorded."""
        if server_round in self._seen:
            raise InputError(self._there_already(server_round))

    def _refuse_again(self, server_round: int, node: int, run: int, seen: _Origins) -> None:
        """Raise an error for a round from another run, or a node's second update in one round."""
        earlier = self._before.get(server_round)
        if earlier and (not run or set(earlier.values()) != {run}):
            raise InputError(self._there_already(server_round))
        there = seen.get(server_round, {})
        if run and any(other and other != run for other in there.values()):
            raise InputError(self._there_already(server_round))
        if node in there:
            raise InputError(
                f"The recording already has an update from node {node} in round {server_round}; "
                "give every round its own number, and every run its own recorder."
            )

    def _there_already(self, server_round: int) -> str:
        where = "this recorder" if self.path is None else str(self.path)
        return (
            f"Round {server_round} is already in {where}, from another run with different nodes: "
            "record every run in its own file, or continue with the number of the next round."
        )

    def _parts(self) -> list[LayerGradients]:
        return [*self._written, *self._new]

    def _read(self, path: Path) -> LayerGradients:
        recording, _ = load_gradients(path)
        if recording.nodes is None or recording.rounds is None:
            raise InputError(
                f"{path} contains gradients without rounds and nodes, so it was not written by a "
                "recorder; name another file."
            )
        # What clients send besides the trained parameters is known only once they do.
        state = self.net.state_dict()
        whole, expected = (
            blank_recording(self.net, state, **options)
            for options in ({**self._options, "layers": None}, self._options)
        )
        sure = layer_parameters(self.net, self._options["layers"])
        wanted = [layer for layer in expected if layer in recording.layers or layer in sure]
        held = [layer for layer in recording if layer in expected.layers or layer in whole.layers]
        try:
            expected.only(*wanted).check_same_projection(recording.only(*held))
        except InputError as error:
            raise InputError(f"{path} cannot be continued. {error}") from error
        # Files of earlier versions do not say: 0 is no number of a run.
        runs = (
            np.zeros(len(recording), dtype=np.uint64) if recording.runs is None else recording.runs
        )
        return replace(recording, runs=runs)


_Origins = dict[int, dict[int, int]]  # by round, the run of every node's update


def _origins(parts: Sequence[LayerGradients]) -> _Origins:
    origins_by_round: _Origins = {}
    for part in parts:
        origins = (_known(numbers) for numbers in (part.rounds, part.nodes, part.runs))
        for number, node, run in zip(*origins, strict=True):
            origins_by_round.setdefault(int(number), {})[int(node)] = int(run)
    return origins_by_round


def _known(numbers: np.ndarray | None) -> list[int]:
    return [] if numbers is None else numbers.tolist()


class RecordingStrategy(Strategy):  # type: ignore[misc]
    """A Flower strategy that wraps another strategy and records every update.

    Parameters
    ----------
    strategy
        Any strategy from ``flwr.serverapp.strategy``, such as ``FedAvg``.
    recorder
        The recorder that stores the updates.
    """

    def __init__(self, strategy: Any, recorder: UpdateRecorder) -> None:
        if Strategy is object:
            raise ImportError(
                "Recording the updates of a Flower project needs flwr, which is not installed; "
                "run: pip install 'seepage[flower]'"
            )
        self.strategy, self.recorder = strategy, recorder
        self._sent: dict[str, Tensor] = {}

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: Any, grid: Any
    ) -> Any:
        """Store the state sent to clients; raise an error if the round is already recorded."""
        self.recorder.refuse_round(server_round)
        self._sent = _tensors(arrays)
        return self.strategy.configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        """Record the updates that clients returned."""
        kept = list(replies)
        for reply in kept:
            if not reply.has_error():
                returned = _tensors(_arrays_of(reply))
                node, run = int(reply.metadata.src_node_id), int(reply.metadata.run_id)
                metrics = _metrics_of(reply)
                self.recorder.add(self._sent, returned, server_round, node, metrics, run)
        self.recorder.save()
        return self.strategy.aggregate_train(server_round, kept)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: Any, grid: Any
    ) -> Any:
        """Delegate evaluation to the wrapped strategy."""
        return self.strategy.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> Any:
        """Delegate evaluation to the wrapped strategy."""
        return self.strategy.aggregate_evaluate(server_round, replies)

    def summary(self) -> None:
        """Log the wrapped strategy's summary."""
        self.strategy.summary()


def recording_mod(recorder: UpdateRecorder) -> Any:
    """Return a mod for Flower's ``ClientApp`` that records this client's updates.

    Use it as ``ClientApp(mods=[recording_mod(UpdateRecorder(net, "updates.npz", resume=True)),
    …])``; ``resume`` allows clients to start late, or to restart for every round. Put this mod
    first, because Flower wraps the first mod around all others. In first place, it records the
    update as sent, after the other mods in the list (clipping, noise) were applied. With secure
    aggregation, put this mod directly after ``secaggplus_mod`` to record the update itself. Before
    ``secaggplus_mod``, only masked updates are visible, and nothing is recorded. Flower's
    strategies send the server's round number as ``server-round``; without this number, the node's
    own rounds are counted.
    """

    def mod(message: Message, context: Any, call_next: Any) -> Message:
        reply = call_next(message, context)
        if message.metadata.message_type.startswith("train") and not reply.has_error():
            sent, returned = (_tensors(_arrays_of(each)) for each in (message, reply))
            if sent and returned:  # messages that agree on masks are no updates
                node, run = int(context.node_id), int(message.metadata.run_id)
                number = _round_of(message, recorder.nodes.count(node))
                recorder.add(sent, returned, number, node, _metrics_of(reply), run)
                recorder.save()
        return reply

    return mod


def _round_of(message: Message, before: int) -> int:
    """Return the server's round number or, if there is none, the node's own count."""
    for config in message.content.config_records.values():
        if "server-round" in config:
            return int(config["server-round"])
    return before + 1


def _arrays_of(message: Message) -> ArrayRecord:
    """Return the arrays of a message, or an empty record if there are none."""
    from flwr.app import ArrayRecord

    records = list(message.content.array_records.values())
    if len(records) > 1:
        raise InputError(
            f"A training message contains {len(records)} sets of arrays, so it is unclear which "
            "set contains the parameters; send one ArrayRecord."
        )
    return records[0] if records else ArrayRecord()


def _metrics_of(message: Message) -> dict[str, float]:
    """Return the numbers that a client sent in addition to arrays; list entries are separate."""
    metrics: dict[str, float] = {}
    for record in message.content.metric_records.values():
        for name, value in record.items():
            if isinstance(value, list):
                metrics |= {f"{name}[{k}]": float(each) for k, each in enumerate(value)}
            else:
                metrics[name] = float(value)
    return metrics


def _tensors(arrays: ArrayRecord) -> dict[str, Tensor]:
    return dict(arrays.to_torch_state_dict())
