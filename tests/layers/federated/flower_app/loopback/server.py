"""A server that records every update it is sent."""

from __future__ import annotations

from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from torch import nn

from seepage.layers.federated.flower import RecordingStrategy, UpdateRecorder


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))


def strategy(recorder: UpdateRecorder) -> RecordingStrategy:
    plain = FedAvg(fraction_evaluate=0.0, min_available_nodes=2, min_train_nodes=2)
    return RecordingStrategy(plain, recorder)


server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    recorder = UpdateRecorder(network(), Path(str(context.run_config["folder"])) / "updates")
    strategy(recorder).start(
        grid=grid,
        initial_arrays=ArrayRecord(network().state_dict()),
        num_rounds=int(context.run_config["rounds"]),
    )
