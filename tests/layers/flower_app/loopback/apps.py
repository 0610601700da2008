"""A server that records updates, and clients whose data lie apart by their number."""

from __future__ import annotations

from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from torch import nn

from seepage.layers.flower import RecordingStrategy, UpdateRecorder

LR = 0.1


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))


def data(part: int) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(part)
    return torch.randn(64, 4, generator=draw) + 2 * part, torch.arange(64) % 2


def train(message: Message, context: Context) -> Message:
    """Take one step of gradient descent."""
    net = network()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = data(int(context.node_config["partition-id"]))
    loss = nn.functional.cross_entropy(net(x), y)
    for p, g in zip(
        net.parameters(), torch.autograd.grad(loss, list(net.parameters())), strict=True
    ):
        p.data -= LR * g
    content = RecordDict(
        {
            "arrays": ArrayRecord(net.state_dict()),
            "metrics": MetricRecord({"num-examples": len(y)}),
        }
    )
    return Message(content=content, reply_to=message)


def strategy(recorder: UpdateRecorder) -> RecordingStrategy:
    plain = FedAvg(fraction_evaluate=0.0, min_available_nodes=2, min_train_nodes=2)
    return RecordingStrategy(plain, recorder)


client = ClientApp()
client.train()(train)
server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    recorder = UpdateRecorder(network(), Path(str(context.run_config["folder"])) / "updates.npz")
    strategy(recorder).start(
        grid=grid,
        initial_arrays=ArrayRecord(network().state_dict()),
        num_rounds=int(context.run_config["rounds"]),
    )
