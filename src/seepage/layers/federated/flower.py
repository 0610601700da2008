"""Records the updates of a Flower project, on the server or in a client, for an audit.

An update is ``θ_sent − θ_returned``, layer by layer: the client's change to the model, with the
sign of a gradient. Buffers (BatchNorm's running statistics), which are sent with the parameters,
are recorded too, as are metrics that clients send (number of records, loss). Needs ``flwr``: ``pip
install 'seepage[flower]'``.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from torch import Tensor, nn

from seepage.errors import InputError, accepts_other_names
from seepage.layers.federated.buffers import moved_by
from seepage.layers.federated.gradients import WIDTH, LayerGradients, joined
from seepage.layers.federated.recording import (
    blank_recording,
    dequantised,
    real_names,
    record_updates,
    with_scales,
)
from seepage.layers.federated.sent_models import Models, Sent, store_model
from seepage.layers.federated.sent_names import with_own_names
from seepage.layers.federated.stored_recordings import (
    RoundFile,
    append_part,
    load_gradients,
    load_models,
    parts_of,
    read_columns,
)
from seepage.layers.layer_parameters import layer_parameters
from seepage.nn.gradients.network_checks import unwrapped
from seepage.support.files import only_writer

PARTITION = "partition-id"  # Flower's name for the number of a client's share of the data

if TYPE_CHECKING:
    from flwr.app import ArrayRecord, Message

try:
    from flwr.serverapp.strategy import Strategy
except ImportError:  # the rest of this file works without it
    Strategy = object


@accepts_other_names
class UpdateRecorder:
    """Records updates layer by layer, with the client, node, round and run of each update.

    Buffers that a client sends are stored as a separate entry of their layer: ``"bn1.buffers"`` in
    addition to ``"bn1"``.

    Parameters
    ----------
    net
        The network to be trained, which determines the names of the layers.
    path
        The folder to which every round adds a file, readable by its owner only; by default, updates
        are kept in memory. Several recorders, even in several processes, may write to one folder.
    layers, width, seed
        As for :func:`seepage.layers.record_gradients`.
    models
        Whether to keep the model sent in every round, as sent to the round's first client. An
        attacker whose data resemble the clients' data starts from these models
        (:class:`seepage.attacks.ShadowClients`). By default, models of up to 256 MiB are kept.
    resume
        Whether to add to an existing recording, with the same layers, width and seed; otherwise an
        existing recording raises an error. Flower draws new nodes in every simulation, so a second
        run would count every client twice, and chance differences would look significant. Rounds
        that are already recorded therefore raise an error, unless they belong to another run and
        all clients have keys.
    """

    def __init__(
        self,
        net: nn.Module,
        path: str | os.PathLike[str] | None = None,
        *,
        layers: Sequence[str] | None = None,
        width: int = WIDTH,
        seed: int = 0,
        models: bool | None = None,
        resume: bool = False,
    ) -> None:
        self.net, self.path = unwrapped(net), None if path is None else Path(path)
        layer_parameters(self.net, layers)  # refuses unknown names
        self._options: dict[str, Any] = {"layers": layers, "width": width, "seed": seed}
        self._real = real_names(self.net)
        self._keeps_models = models
        self._models: Models = {}  # those not written yet
        self._new: list[LayerGradients] = []
        self._read: dict[Path, list[Origin]] = {}  # of files, as far as they were needed
        self._like: LayerGradients | None = None  # the entries of all updates, without any
        self._taken_on = False  # from a folder
        self._run = 1 + secrets.randbits(62)  # for updates whose run is not stated; 0: unknown
        if self.path is not None and self.path.is_file():
            raise InputError(
                f"{self.path} is a single file from an earlier version: it can be audited but not "
                "continued; name a folder."
            )
        self._parts = self._listed()  # the folder's files when it was last looked at
        if self._parts and not resume:
            raise InputError(
                f"{self.path} exists already. Flower draws new nodes in every run, so clients of "
                "another run would be counted twice. Name another folder, or give resume=True to "
                "add later rounds of the same nodes, or runs whose clients have keys."
            )
        self._before = {part.round for part in self._parts}
        self._take_on()

    def __len__(self) -> int:
        return len(self._origins())

    @property
    def rounds(self) -> list[int]:
        """The server's round number for every update."""
        return [origin.round for origin in self._origins()]

    @property
    def nodes(self) -> list[int]:
        """The node that every update came from."""
        return [origin.node for origin in self._origins()]

    @property
    def clients(self) -> list[str]:
        """The key of every update's client, empty if none was given."""
        return [origin.client for origin in self._origins()]

    def add(
        self,
        sent: dict[str, Tensor],
        returned: dict[str, Tensor],
        server_round: int,
        node: int,
        metrics: Mapping[str, float] | None = None,
        run: int = 0,
        client: object = "",
    ) -> None:
        """Record one client's update from the state sent to it and the state it returned.

        Everything that the client returned is recorded: the change of every array that was sent to
        it, other arrays as they are, and metrics (numbers of records, losses). ``run`` is Flower's
        run number; by default, the recorder's own number is used. ``client`` is a key that stays
        the same in every run (the name of a hospital, the number of a partition), by which clients
        of several runs are matched. A second update of a client in a round raises an error. Without
        client keys, an update of a round that was recorded in another run raises an error too.
        """
        origin = Origin(int(server_round), int(node), int(run), str(client))
        self._refuse_again(origin, self._origins(origin.round))
        sent, returned = (with_own_names(self.net, state) for state in (sent, returned))
        returned = with_scales(returned, self._real)
        parameters = [name for name, _ in self.net.named_parameters() if name in sent]
        missing = [name for name in parameters if name not in returned]
        if missing:
            raise InputError(
                f"Node {node} did not return the parameter {missing[0]!r}; clients must return "
                "every parameter that was sent to them."
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
        recorded = record_updates(self.net, [update], **self._options)
        if self._like is None:
            self._like = recorded.rows(slice(0))
        try:
            self._like.check_same_projection(recorded)
        except InputError as error:
            raise InputError(
                f"Node {node} sent entries that differ from the first update. {error}"
            ) from error
        numbers = {name: np.array([float(value)]) for name, value in (metrics or {}).items()}
        self._new.append(replace(recorded, metrics=numbers, **origin.columns()))
        key = Sent(origin.round, origin.run)
        if key not in self._models and self._keeps(sent):
            self._models[key] = {k: value.detach().cpu().clone() for k, value in sent.items()}

    def _keeps(self, sent: Mapping[str, Tensor]) -> bool:
        """Return whether a sent model is kept."""
        if self._keeps_models is None:
            size: int = sum(value.numel() * value.element_size() for value in sent.values())
            return size <= 1 << 28
        return bool(self._keeps_models)

    def gradients(self) -> LayerGradients:
        """Return the updates recorded so far, for :func:`seepage.layers.v_information`.

        The result includes the client, node, round and run of each update.
        """
        held = [load_gradients(self.path)[0]] if self.path is not None and self._listed() else []
        if not held and not self._new:
            raise InputError("No update has been recorded yet; run at least one round.")
        return joined([*held, *self._with_run()])

    def models(self) -> Models:
        """Return the models sent to the clients, by round and run, if they were kept."""
        written = {} if self.path is None or not self._listed() else load_models(self.path)
        new = {Sent(key.round, key.run or self._run): m for key, m in self._models.items()}
        return written | new

    def save(self) -> None:
        """Append the updates recorded since the last write to the folder, if there is one."""
        if self.path is None or not self._new:
            return
        with only_writer(self.path):
            self._parts = self._listed()
            self._take_on()
            for part in self._new:  # others may have written since
                for origin in _origins_of(part):
                    self._refuse_again(origin, self._origins(origin.round, written=True))
            self._parts += append_part(joined(self._with_run()), self.path, self._parts)
            for key, state in self._models.items():
                store_model(self.path, Sent(key.round, key.run or self._run), state)
            self._new.clear()
            self._models.clear()

    def refuse_round(self, server_round: int) -> None:
        """Raise an error if updates of a round that is about to begin are already recorded.

        Recorded updates with client keys may belong to another run; this is known only once new
        updates arrive, so no error is raised for them.
        """
        if not all(origin.client for origin in self._origins(server_round)):
            raise InputError(self._there_already(server_round))

    def _refuse_again(self, new: Origin, there: Sequence[Origin]) -> None:
        """Raise an error for a round of another run, or a client's second update in a round."""
        if new.round in self._before and not new.run and there:
            raise InputError(self._there_already(new.round))
        for old in there:
            # While its run is not stated, an update belongs to the run of the others.
            if new.run and old.run and new.run != old.run:
                if not (new.client and old.client):
                    raise InputError(self._there_already(new.round))
            elif new.client and new.client == old.client:
                raise InputError(
                    f"Client {new.client} already has an update for round {new.round} in the "
                    "recording; give every client its own key."
                )
            elif new.node == old.node:
                raise InputError(
                    f"Node {new.node} already has an update for round {new.round} in the "
                    "recording; give every round its own number, and every run its own recorder."
                )

    def _there_already(self, server_round: int) -> str:
        where = "this recorder" if self.path is None else str(self.path)
        return (
            f"Round {server_round} is in {where} already, from another run with different nodes. "
            "Record every run in its own folder, give clients keys, or continue with the number of "
            "the next round."
        )

    def _with_run(self) -> list[LayerGradients]:
        """Return the updates not yet written; those without a run get the recorder's own run."""
        own = np.array([self._run], dtype=np.uint64)
        return [part if np.any(part.runs) else replace(part, runs=own) for part in self._new]

    def _listed(self) -> list[RoundFile]:
        """Return the files in the folder."""
        if self.path is None or not self.path.is_dir():
            return []
        parts = parts_of(self.path)
        if not parts and any(not file.name.startswith(".") for file in self.path.iterdir()):
            raise InputError(
                f"{self.path} contains files other than recorded rounds; name another folder."
            )
        return parts

    def _origins(self, server_round: int | None = None, *, written: bool = False) -> list[Origin]:
        """Return the origins of all updates, or of those of one round."""
        found: list[Origin] = []
        for part in self._listed() if server_round is None else self._parts:
            if server_round is None or part.round == server_round:
                if part.path not in self._read:
                    self._read[part.path] = _origins_in(part.path)
                found += self._read[part.path]
        for recorded in [] if written else self._new:
            found += _origins_of(recorded)
        return [o for o in found if server_round is None or o.round == server_round]

    def _take_on(self) -> None:
        """Take over the entries and the run from the folder's last file, if there is one."""
        if not self._parts or self._taken_on:
            return
        last = max(self._parts, key=lambda part: part.number).path
        recording = self._continued(last)
        if self._like is not None:
            self._like.check_same_projection(recording)
        self._like, self._read[last] = recording.rows(slice(0)), _origins_in(last)
        self._run, self._taken_on = self._read[last][-1].run, True

    def _continued(self, path: Path) -> LayerGradients:
        recording, _ = load_gradients(path)
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
            raise InputError(f"{path.parent} cannot be continued. {error}") from error
        return recording


class Origin(NamedTuple):
    """Where an update comes from; a run of 0 or an empty client key means unknown."""

    round: int
    node: int
    run: int
    client: str

    def columns(self) -> dict[str, Any]:
        """Return the columns of a recording that contains only this update."""
        return {
            "rounds": np.array([self.round]),
            "nodes": np.array([self.node], dtype=np.uint64),  # unsigned 64-bit integers
            "runs": np.array([self.run], dtype=np.uint64),
            "clients": np.array([self.client]),
        }


def _origins_in(path: Path) -> list[Origin]:
    return _zipped(*read_columns(path, "round", "node", "run", "client"))


def _origins_of(recorded: LayerGradients) -> list[Origin]:
    return _zipped(recorded.rounds, recorded.nodes, recorded.runs, recorded.clients)


def _zipped(*columns: np.ndarray | None) -> list[Origin]:
    rows = zip(*(np.asarray(column).tolist() for column in columns), strict=True)
    return [Origin(int(a), int(b), int(c), str(d)) for a, b, c, d in rows]


class RecordingStrategy(Strategy):  # type: ignore[misc]
    """A Flower strategy that wraps another strategy and records every update.

    Parameters
    ----------
    strategy
        Any strategy from ``flwr.serverapp.strategy``, such as ``FedAvg``.
    recorder
        The recorder that stores the updates.
    client
        The name of a metric, or of an entry of a ``ConfigRecord``, in which clients state their key
        (see :meth:`UpdateRecorder.add`). The key is not recorded as a metric. Clients that do not
        send a key are identified only by their nodes.
    """

    def __init__(self, strategy: Any, recorder: UpdateRecorder, *, client: str = PARTITION) -> None:
        if Strategy is object:
            raise ImportError(
                "Recording the updates of a Flower project needs flwr, which is not installed; "
                "run: pip install 'seepage[flower]'"
            )
        self.strategy, self.recorder, self.client = strategy, recorder, client
        self._sent: dict[str, Tensor] = {}

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: Any, grid: Any
    ) -> Any:
        """Store the state sent to clients; raise an error if the round is already recorded."""
        self.recorder.refuse_round(server_round)
        self._sent = _tensors(arrays)
        return self.strategy.configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        """Record the updates that clients returned, and delegate the aggregation."""
        kept = list(replies)
        for reply in kept:
            if not reply.has_error():
                returned = _tensors(_arrays_of(reply))
                node, run = int(reply.metadata.src_node_id), int(reply.metadata.run_id)
                key, metrics = _key_of(reply, self.client), _metrics_of(reply)
                metrics.pop(self.client, None)
                self.recorder.add(self._sent, returned, server_round, node, metrics, run, key)
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

    Use the mod as ``ClientApp(mods=[recording_mod(UpdateRecorder(net, "updates", resume=True)),
    …])``; ``resume`` allows clients to start late, or to be restarted in every round. The client's
    key is the ``partition-id`` in the configuration of its node, if any. Put the mod first: Flower
    wraps the first mod around all others. This mod then sees the update as sent, after the mods
    that follow it in the list (clipping, noise) have been applied. With secure aggregation, put the
    mod right after ``secaggplus_mod`` to record the update itself; before ``secaggplus_mod``, only
    masked updates are visible, and nothing is recorded. Rounds are numbered by the server, and
    Flower's strategies send the number as ``server-round``; without this number, the node's own
    rounds are counted.
    """

    def mod(message: Message, context: Any, call_next: Any) -> Message:
        reply = call_next(message, context)
        if message.metadata.message_type.startswith("train") and not reply.has_error():
            sent, returned = (_tensors(_arrays_of(each)) for each in (message, reply))
            if sent and returned:  # messages that agree on masks are no updates
                node, run = int(context.node_id), int(message.metadata.run_id)
                number = _round_of(message, recorder, node)
                key = str(getattr(context, "node_config", {}).get(PARTITION, ""))
                metrics = _metrics_of(reply)
                metrics.pop(PARTITION, None)
                recorder.add(sent, returned, number, node, metrics, run, key)
                recorder.save()
        return reply

    return mod


def _round_of(message: Message, recorder: UpdateRecorder, node: int) -> int:
    """Return the server's round number or, if it is not sent, the node's own count."""
    for config in message.content.config_records.values():
        if "server-round" in config:
            return int(config["server-round"])
    return recorder.nodes.count(node) + 1


def _key_of(message: Message, name: str) -> str:
    """Return the key that a client sent, or an empty string."""
    records = (*message.content.metric_records.values(), *message.content.config_records.values())
    keys = [record[name] for record in records if name in record]
    return f"{keys[0]:.17g}" if keys and isinstance(keys[0], float) else str(*keys[:1])


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
