"""One private run in the loops people have: η̄ and ε from five libraries' loops and one by hand.

The same network, digits, batches and noise (from one seed) in a loop by hand, in ``PrivateSGD``,
Hugging Face's ``Trainer``, Lightning, Accelerate and Opacus. Claim: every record's η̄ agrees with
that of the loop by hand to 1e-6, and ε too. Opacus divides by each gradient's norm plus 1e-6, so it
is compared with a loop by hand that does so too; the table also has its distance from the other.
Run with ``python benchmarks/training_loops.py``; it needs Lightning, and results are kept in
``benchmarks/results/training_loops.json``.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import lightning.pytorch
import numpy as np
import torch
import transformers
from accelerate import Accelerator
from opacus import PrivacyEngine
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.utils.data import DataLoader, TensorDataset

import seepage as sp
from keeping import keep
from seepage.nn.training.secure_noise import quick_noise
from seepage.support.keyed_stream import KeyedStream

KEPT = Path(__file__).parent / "results" / "training_loops.json"
RATE, DIVISOR, SIGMA, C, LR, EPOCHS, SEED, DELTA = 0.125, 225, 1.0, 1.0, 2.0, 3, 1, 1e-5
STEPS = int(EPOCHS / RATE)
GIVEN = {"sample_rate": RATE, "noise_multiplier": SIGMA, "seed": SEED, "randomness": "fast"}
STREAM = KeyedStream.of_seed(SEED)
PROBES = STREAM.child("probes").number()  # the seed that the other loops take from the run's seed


class Network(nn.Module):
    """Linear layers and tanh, and the loss if labels are given, as Hugging Face's models do it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
        """Return logits, or with labels a mapping with the loss."""
        logits = self.layers(x)
        if labels is None:
            return logits
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Module(lightning.pytorch.LightningModule):  # type: ignore[misc]
    """The network as a module of Lightning."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = Network().layers

    def forward(self, x: Tensor) -> Any:
        """Return logits."""
        return self.layers(x)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        """Return the loss."""
        return nn.functional.cross_entropy(self(batch[0]), batch[1])

    def configure_optimizers(self) -> Any:
        """Return the optimiser."""
        return torch.optim.SGD(self.parameters(), lr=LR)


def digits() -> tuple[Tensor, Tensor]:
    """Return the digits of scikit-learn."""
    found = load_digits()
    return torch.tensor(found.data / 16), torch.tensor(found.target)


X, y = digits()


def by_hand(added: float = 0.0) -> Any:
    """Clip the gradient of every record by torch.func, add noise, step, and observe.

    ``added`` is a small number that some libraries add to the norms.
    """
    net = Network()
    sampler = sp.nn.PoissonSampler(len(X), sample_rate=RATE, seed=SEED)
    accountant = sp.nn.FisherAccountant(
        net,
        "cross_entropy",
        n=len(X),
        sample_rate=RATE,
        noise_multiplier=SIGMA,
        max_grad_norm=C,
        seed=PROBES,
    )

    def loss(parameters: dict[str, Tensor], x: Tensor, target: Tensor) -> Tensor:
        return nn.functional.cross_entropy(functional_call(net, parameters, (x,)), target)

    for step in range(STEPS):
        index = sampler.batch(step)
        accountant.observe(index, X[index], y[index])
        held = {name: p.detach() for name, p in net.named_parameters()}
        each = vmap(grad(loss), (None, 0, 0))(held, X[index], y[index])
        norms = torch.sqrt(sum(g.flatten(1).square().sum(1) for g in each.values()))
        factor = (C / (norms + added)).clamp(max=1.0)
        add_noise = quick_noise(STREAM, step)
        with torch.no_grad():
            for name, p in net.named_parameters():
                total = torch.tensordot(factor, each[name], 1)
                p -= LR * add_noise(name, total, SIGMA * C) / DIVISOR
    return accountant


def by_private_sgd() -> Any:
    """Train with ``PrivateSGD``."""
    trainer = sp.nn.PrivateSGD(
        Network(),
        "cross_entropy",
        steps=STEPS,
        lr=LR,
        expected_batch=DIVISOR,
        max_grad_norm=C,
        **GIVEN,
    )
    return trainer.fit(X, y).accountant_


def by_hugging_face() -> Any:
    """Train with Hugging Face's trainer."""
    records = [{"x": x, "labels": target} for x, target in zip(X, y, strict=True)]
    with tempfile.TemporaryDirectory() as folder:
        args = transformers.TrainingArguments(
            folder,
            num_train_epochs=EPOCHS,
            per_device_train_batch_size=DIVISOR,
            max_grad_norm=C,
            learning_rate=LR,
            optim="sgd",
            lr_scheduler_type="constant",
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
        )
        trainer = sp.nn.PrivateTrainer(
            Network(), args, train_dataset=records, view=sp.nn.Input(key="x"), **GIVEN
        )
        trainer.train()
    return trainer.accountant_


def by_lightning() -> Any:
    """Train with Lightning's trainer."""
    private = sp.nn.PrivateCallback(
        "cross_entropy", expected_batch=DIVISOR, max_grad_norm=C, **GIVEN
    )
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = lightning.pytorch.Trainer(
        max_epochs=EPOCHS,
        callbacks=[private],
        accelerator="cpu",
        enable_checkpointing=False,
        **quiet,
    )
    trainer.fit(Module(), private.loader(TensorDataset(X, y)))
    return private.accountant_


def by_accelerate() -> Any:
    """Train in a loop of Accelerate."""
    accelerator, net = Accelerator(cpu=True), Network()
    model, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=LR))
    private = sp.nn.PrivateGradients(
        accelerator.unwrap_model(model),
        "cross_entropy",
        n=len(X),
        expected_batch=DIVISOR,
        max_grad_norm=C,
        **GIVEN,
    )
    loader = private.loader(TensorDataset(X, y))
    for _ in range(EPOCHS):
        for x, target in loader:
            private.backward(x, target)
            optimizer.step()
            optimizer.zero_grad()
    return private.accountant_


class Batches:
    """The run's batches, as a batch sampler that states its rate as Opacus's does."""

    sample_rate = RATE

    def __init__(self) -> None:
        self.sampler = sp.nn.PoissonSampler(len(X), sample_rate=RATE, seed=SEED)
        self.step = 0

    def __len__(self) -> int:
        return int(1 / RATE)

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(len(self)):
            yield self.sampler.batch(self.step).tolist()
            self.step += 1


def by_opacus() -> Any:
    """Train with Opacus, whose generator gets the seed of every step's noise."""
    net, loss = Network().layers, nn.CrossEntropyLoss()
    noise, engine = torch.Generator(), PrivacyEngine(accountant="rdp")
    net, optimizer, loader = engine.make_private(
        module=net,
        optimizer=torch.optim.SGD(net.parameters(), lr=LR),
        data_loader=DataLoader(TensorDataset(torch.arange(len(X)), X, y), batch_sampler=Batches()),
        noise_multiplier=SIGMA,
        max_grad_norm=C,
        poisson_sampling=False,  # the batches are already those of a Poisson sampler
        noise_generator=noise,
    )
    optimizer.expected_batch_size = DIVISOR
    accountant = sp.nn.attach(optimizer, net, loss, loader, seed=PROBES)
    for _ in range(EPOCHS):
        for index, x, target in loader:
            noise.manual_seed(STREAM.child("noise", accountant.steps, "cpu").number())
            accountant.observe(index, x, target)
            optimizer.zero_grad()
            loss(net(x), target).backward()
            optimizer.step()
    return accountant


LOOPS: dict[str, tuple[int, Callable[[], Any]]] = {  # the lines of a user's code that change
    "by hand": (0, by_hand),
    "PrivateSGD": (0, by_private_sgd),
    "Hugging Face Trainer": (1, by_hugging_face),
    "Lightning": (3, by_lightning),
    "Accelerate": (3, by_accelerate),
    "by hand, norm + 1e-6": (0, partial(by_hand, 1e-6)),
    "Opacus": (2, by_opacus),
}


def main() -> None:
    """Print the table and keep it."""
    torch.set_default_dtype(torch.float64)  # Opacus draws its noise in this type
    warnings.simplefilter("ignore")
    rows: dict[str, dict[str, float]] = {}
    found: dict[str, np.ndarray] = {}
    print(f"{STEPS} steps, {len(X):,} records, rate {RATE}, σ = {SIGMA}, C = {C}, δ = {DELTA}")
    print("loop                  lines  median η̄     worst η̄      off by at most      ε")
    for name, (lines, train) in LOOPS.items():
        accountant = train()
        values = np.asarray(accountant.records("dfil"))
        found[name] = values
        assert (np.isnan(values) == np.isnan(found["by hand"])).all()
        own = "by hand, norm + 1e-6" if name == "Opacus" else "by hand"
        off = float(np.nanmax(np.abs(values / found[own] - 1)))
        epsilon = accountant.privacy(DELTA, method="rdp", neighbours="zero-out").epsilon
        rows[name] = {
            "lines": lines,
            "median": float(np.nanmedian(values)),
            "worst": float(np.nanmax(values)),
            "off": off,
            "off from the first row": float(np.nanmax(np.abs(values / found["by hand"] - 1))),
            "epsilon": epsilon,
        }
        row = rows[name]
        print(
            f"{name:21} {lines:5d}  {row['median']:.9f}  {row['worst']:.9f}  {off:14.1e}  "
            f"{epsilon:.6f}",
            flush=True,
        )
    apart = rows["Opacus"]["off from the first row"]
    print(f"Opacus, against the first row: {apart:.1e} (it adds 1e-6 to the norms)")
    settings = {"steps": STEPS, "records": len(X), "rate": RATE, "sigma": SIGMA, "clip": C}
    keep({"delta": DELTA, **settings, "loops": rows}, KEPT)


if __name__ == "__main__":
    main()
