"""What test_sharding.py runs in two processes with a network spread over them, and in one."""

import os
import sys
import weakref
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

import seepage as sp
from seepage.nn.problem import sharding

N = 30
LAYERS = ("GPT2Block", "LlamaDecoderLayer", "T5Block", "BertLayer", "ViTLayer")


class Gathered:
    """How much of a network is put together at any one time."""

    def __init__(self):
        self.now = self.most = 0
        self.put_together = sharding._put_together

    def __call__(self, part):
        whole = self.put_together(part)
        self.now += whole.numel()
        self.most = max(self.most, self.now)
        weakref.finalize(whole.untyped_storage(), self.freed, whole.numel())
        return whole

    def freed(self, count):
        self.now -= count


def problem(spread):
    """Return a network, one layer of which is frozen and another used twice."""
    torch.manual_seed(0)
    twice = nn.Linear(9, 9)
    body = (nn.Linear(6, 9), nn.Tanh(), nn.LayerNorm(9), twice, nn.Tanh(), twice)
    net = nn.Sequential(*body, nn.GELU(), nn.Linear(9, 3)).double()
    net[0].requires_grad_(False)
    if spread:
        for layer in (net[0], twice, net):
            fully_shard(layer)
    return net, torch.randn(N, 6, dtype=torch.float64), torch.arange(N) % 3


def hugging(name, adapters, spread):
    """Return the traces of records of a model of Hugging Face, by their numbers."""
    from hf_models import collated, model, of_type, with_adapters

    net, batch = model(name).double(), of_type(collated(name), torch.float64)
    if adapters:
        net = with_adapters(net, name)
    if spread:
        for module in list(net.modules()):
            if type(module).__name__ in LAYERS:
                fully_shard(module)
        fully_shard(net)
    rank, world = place()
    mine = list(range(3))[rank::world]
    part = {key: value[mine] for key, value in batch.items()}
    how = {"noise_multiplier": 0.5, "max_grad_norm": 1.5, "method": "finite", "scale": 1e-3}
    leak = sp.nn.leakage(net, part, **how)
    found = leak.engine.step(leak.x, leak.y, probes=2, index=torch.tensor(mine).long())
    out = np.zeros(3)
    out[mine] = found.traces.mean(1)
    return out


def place():
    joined = dist.is_initialized()
    return (dist.get_rank(), dist.get_world_size()) if joined else (0, 1)


def step(spread, mine, **how):
    """Return traces, norms and the clipped sum of some records."""
    net, x, y = problem(spread)
    given = {"clip": sp.nn.HardClip(0.3), "method": "finite", "scale": 1e-3} | how
    engine = sp.nn.Engine(net, "cross_entropy", **given)
    found = engine.step(x[mine], y[mine], probes=2, index=torch.tensor(mine).long(), update=True)
    traces, norms = np.zeros((N, 2)), np.zeros(N)
    traces[mine], norms[mine] = found.traces.numpy(), found.norms.numpy()
    total = torch.cat([part.flatten() for part in found.gradient.values()]).numpy()
    return {"traces": traces, "norms": norms, "gradient": total, "doubt": engine.doubt}


def trained(spread, steps, checkpoint=None):
    """Return the account and the parameters of a private run with AdamW."""
    net, x, y = problem(spread)
    trainer = sp.nn.PrivateSGD(
        net,
        "cross_entropy",
        steps=steps,
        batch_size=6,  # so that parts of batches are empty now and then
        optimizer=partial(torch.optim.AdamW, lr=0.05),
        seed=2,
        method="finite",
        scale=1e-3,
        checkpoint=checkpoint,
    ).fit(x, y, x, y)
    weights = [sharding.put_together(p.detach()).flatten() for p in net.parameters()]
    return {"dfil": trainer.accountant_.records("dfil").values, "weights": torch.cat(weights)}


def refusal(work):
    """Return the sentence that something is refused with."""
    try:
        work()
    except sp.InputError as error:
        return str(error)
    return ""


def some(folder):
    """Store the steps and the private run that this process took, and what it was refused."""
    rank, world = place()
    spread = world > 1
    shorter = Path(folder, "run.safetensors")
    trained(spread, 4, shorter)
    found = {f"trained {key}": value for key, value in trained(spread, 8, shorter).items()}
    mine = list(range(N))[rank::world]
    unlike = mine if not spread else list(range(20)) if rank == 0 else list(range(20, N))
    alone = list(range(N)) if rank == 0 else []
    parts = {
        "step": (mine, {}),
        "chunks": (unlike, {"chunk_size": 7}),
        "empty": (alone, {}),
        "thin": (mine, {"method": "thin"}),
        "unclipped": (mine, {"clip": sp.nn.NoClip()}),
    }
    for name, (rows, how) in parts.items():
        found |= {f"{name} {key}": value for key, value in step(spread, rows, **how).items()}
    if spread:
        net, x, y = problem(spread)
        engine = sp.nn.Engine(net, "cross_entropy")
        found["derivative"] = refusal(lambda: engine.radial_pull(x, y))
        found["apart"] = refusal(lambda: engine.step(x[:, : 6 - rank], y))
        watched = sharding._put_together = Gathered()
        net = nn.Sequential(*(nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(9))).double()
        for layer in (*net, net):
            fully_shard(layer)
        for method in ("finite", "thin"):
            engine = sp.nn.Engine(net, "cross_entropy", method=method, scale=1e-3)
            engine.step(x, y, probes=1, update=True)
        found["most"] = watched.most
        found["all"] = sum(p.numel() for p in net.parameters())
    np.savez(Path(folder, f"some-{rank}.npz"), **found)


def models(folder):
    """Store what models of Hugging Face gave this process."""
    rank, world = place()
    found = {}
    for name, adapters in (("gpt2", False), ("gpt2", True), ("llama", True), ("t5", False)):
        found[f"{name} {adapters}"] = hugging(name, adapters, world > 1)
    np.savez(Path(folder, f"models-{rank}.npz"), **found)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    {"some": some, "models": models}[sys.argv[1]](sys.argv[2])
    # A thread of gloo that lets go of a tensor while the interpreter shuts down aborts the process
    # (pytorch/pytorch#179291), so the interpreter does not shut down.
    os._exit(0)
