"""Records the updates of a Flower project, on the server or in a client, so they can be audited.

An update is ``θ_sent − θ_returned``, layer by layer: what the client moved the model by, with the
sign of a gradient. Needs ``flwr``: ``pip install 'seepage[flower]'``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor, nn

from seepage.errors import InputError
from seepage.layers.federated.gradients import (
    WIDTH,
    LayerGradients,
    joined,
    load_gradients,
    save_gradients,
)
from seepage.layers.federated.recording import blank_recording, record_updates
from seepage.nn.gradients.network_checks import unwrapped

if TYPE_CHECKING:
    from flwr.app import ArrayRecord, Message, MetricRecord

try:
    from flwr.serverapp.strategy import Strategy
except ImportError:  # the rest of this file works without, and says what is missing
    Strategy = object


class UpdateRecorder:
    """Keeps updates layer by layer, with the round and the node each came from.

    Parameters
    ----------
    net
        The network that is trained; it names the layers.
    path
        Where to write after every round, for the owner's eyes only; by default nowhere. A file that
        is there already is gone on with, if it was recorded with the same layers, width and seed.
    layers, width, seed
        As for :func:`seepage.layers.record_gradients`.
    """

    def __init__(
        self,
        net: nn.Module,
        path: str | os.PathLike[str] | None = None,
        *,
        layers: Sequence[str] | None = None,
        width: int = WIDTH,
        seed: int = 0,
    ) -> None:
        self.net, self.path = net, None if path is None else Path(path)
        self._options: dict[str, Any] = {"layers": layers, "width": width, "seed": seed}
        self._parts: list[LayerGradients] = []
        self.rounds: list[int] = []
        self.nodes: list[int] = []
        if self.path is not None and self.path.exists():
            self._go_on(self.path)

    def __len__(self) -> int:
        return len(self.rounds)

    def add(
        self, sent: dict[str, Tensor], returned: dict[str, Tensor], server_round: int, node: int
    ) -> None:
        """Keep one client's update: the parameters it was sent, and those it returned."""
        # Buffers are no part of an update, and some (masks) cannot even be subtracted.
        names = [name for name, _ in unwrapped(self.net).named_parameters() if name in sent]
        missing = [name for name in names if name not in returned]
        if missing:
            raise InputError(f"Node {node} did not return the parameter {missing[0]!r}.")
        update = {name: sent[name] - returned[name] for name in names}
        self._parts.append(record_updates(self.net, [update], **self._options))
        self.rounds.append(server_round)
        self.nodes.append(node)

    def gradients(self) -> LayerGradients:
        """Return the updates recorded so far, for :func:`seepage.layers.v_information`.

        They know their nodes, by which that groups them.
        """
        if not self._parts:
            raise InputError("No update was recorded yet.")
        # Numbers of 64 bits without a sign, which lists of small and large ones would not stay.
        nodes = np.array(self.nodes, dtype=np.uint64)
        self._parts = [replace(joined(self._parts), nodes=nodes)]
        return self._parts[0]

    def save(self) -> None:
        """Write what was recorded so far, if there is a path."""
        if self.path is not None and self._parts:
            save_gradients(self.gradients(), self.path, round=np.array(self.rounds))

    def _go_on(self, path: Path) -> None:
        found, columns = load_gradients(path)
        if any(len(columns.get(name, ())) != len(found) for name in ("round", "node")):
            raise InputError(
                f"{path} holds gradients without the rounds and nodes they came from, so it was "
                "not written by a recorder; name another file."
            )
        try:
            blank_recording(self.net, **self._options).check_same_projection(found)
        except InputError as error:
            raise InputError(f"{path} cannot be gone on with. {error}") from error
        self._parts = [found]
        self.rounds, self.nodes = columns["round"].tolist(), columns["node"].tolist()


class RecordingStrategy(Strategy):  # type: ignore[misc]
    """A Flower strategy that does what another does, and records every client's update.

    Parameters
    ----------
    strategy
        Any strategy of ``flwr.serverapp.strategy``, such as ``FedAvg``.
    recorder
        Where the updates go.
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
    ) -> Iterable[Message]:
        """Remember what is sent."""
        self._sent = _tensors(arrays)
        messages: Iterable[Message] = self.strategy.configure_train(
            server_round, arrays, config, grid
        )
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Record what came back."""
        kept = list(replies)
        for reply in kept:
            if not reply.has_error():
                returned = _tensors(_arrays_of(reply))
                node = reply.metadata.src_node_id
                self.recorder.add(self._sent, returned, server_round, int(node))
        self.recorder.save()
        total: tuple[ArrayRecord | None, MetricRecord | None] = self.strategy.aggregate_train(
            server_round, kept
        )
        return total

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: Any, grid: Any
    ) -> Iterable[Message]:
        """Leave evaluation to the other strategy."""
        messages: Iterable[Message] = self.strategy.configure_evaluate(
            server_round, arrays, config, grid
        )
        return messages

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Leave evaluation to the other strategy."""
        return self.strategy.aggregate_evaluate(server_round, replies)

    def summary(self) -> None:
        """Log what the other strategy is."""
        self.strategy.summary()


def recording_mod(recorder: UpdateRecorder) -> Any:
    """Return a mod for Flower's ``ClientApp`` that records what this client sends.

    ``ClientApp(mods=[recording_mod(UpdateRecorder(net, "updates.npz")), …])``. Put it first: Flower
    wraps the first mod around all others, so that it sees the update as it leaves, after the mods
    that follow it in the list (clipping, noise) have changed it.
    """

    def mod(message: Message, context: Any, call_next: Any) -> Message:
        reply = call_next(message, context)
        if message.metadata.message_type.startswith("train") and not reply.has_error():
            sent, returned = _tensors(_arrays_of(message)), _tensors(_arrays_of(reply))
            recorder.add(sent, returned, len(recorder) + 1, int(context.node_id))
            recorder.save()
        return reply

    return mod


def _arrays_of(message: Message) -> ArrayRecord:
    records = list(message.content.array_records.values())
    if len(records) != 1:
        raise InputError(
            f"A message of training carries {len(records)} sets of arrays, so it is not clear "
            "which are the parameters; send one ArrayRecord."
        )
    return records[0]


def _tensors(arrays: ArrayRecord) -> dict[str, Tensor]:
    return dict(arrays.to_torch_state_dict())
