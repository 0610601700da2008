"""A grid of Flower's that carries messages to clients in this process."""

from __future__ import annotations

import copy
from types import SimpleNamespace

from flwr.app import Context, RecordDict
from flwr.serverapp import Grid


class InProcess(Grid):
    """Carries messages to clients in this process, whose state lasts."""

    def __init__(self, client, nodes):
        self.client, self.nodes = client, nodes
        self.contexts = {
            node: Context(1, node, {"partition-id": part}, RecordDict(), {})
            for node, part in nodes.items()
        }

    def get_node_ids(self):
        return list(self.nodes)

    def send_and_receive(self, messages, *, timeout=None):
        return [self._answer(message) for message in messages]

    def _answer(self, message):
        # What arrives is a copy, as if it had travelled: clients take it apart.
        arrived = copy.deepcopy(message)
        return self.client(arrived, self.contexts[message.metadata.dst_node_id])

    def set_run(self, *args, **kwargs): ...
    @property
    def run(self):
        return SimpleNamespace(run_id=1)

    def create_message(self, *args, **kwargs): ...
    def push_messages(self, messages): ...
    def pull_messages(self, message_ids): ...
