"""Lightning's trainer, private: the numbers of a loop by hand, resumed and in two processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from private_loop import DECLARED, LR, STEPS, Classifier, N, by_hand, data
from torch.utils.data import TensorDataset

import seepage as sp

lightning = pytest.importorskip("lightning.pytorch", reason="Lightning is not installed")
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*IterableDataset"),
    pytest.mark.filterwarnings("ignore:.*logger"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory"),
    pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`"),
    pytest.mark.filterwarnings("ignore:.*tensorboard"),
]


class Module(lightning.LightningModule):
    """A module as people write it."""

    def __init__(self, optimizer: str = "SGD", lr: float = LR) -> None:
        super().__init__()
        self.net, self.optimizer, self.lr = Classifier(), optimizer, lr

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        x, y = batch
        return torch.nn.functional.cross_entropy(self(x), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return getattr(torch.optim, self.optimizer)(self.parameters(), lr=self.lr)


def fit(folder: Path, module: Module, ckpt_path: str | None = None, **more: object):
    """Train by Lightning as ``by_hand`` does, and return the callback."""
    private = {name: more.pop(name) for name in ("seed", "loss") if name in more}
    callback = sp.nn.PrivateCallback(**{"loss": "cross_entropy"} | DECLARED | private)
    options = {"max_steps": STEPS, "accelerator": "cpu", "devices": 1, "logger": False}
    options |= {"enable_progress_bar": False, "enable_model_summary": False}
    options |= {"enable_checkpointing": False, "default_root_dir": folder}
    callbacks = [callback, *more.pop("callbacks", ())]
    trainer = lightning.Trainer(callbacks=callbacks, **options | more)
    trainer.fit(module, callback.loader(TensorDataset(*data())), ckpt_path=ckpt_path)
    return callback


def flat(net: torch.nn.Module) -> np.ndarray:
    return torch.cat([p.detach().flatten() for p in net.parameters()]).numpy()


def test_the_callback_gives_the_numbers_of_a_loop_by_hand(tmp_path: Path) -> None:
    hand, account = by_hand(named="net.")
    module = Module()
    run = fit(tmp_path, module)
    np.testing.assert_allclose(flat(module), flat(hand), rtol=1e-9)
    np.testing.assert_allclose(run.accountant_.records("dfil"), account.records("dfil"), rtol=1e-6)
    own, other = run.accountant_.privacy(1e-5), account.privacy(1e-5)
    assert own.epsilon == pytest.approx(other.epsilon, rel=1e-9)


@pytest.mark.parametrize("seed", [11, None])
def test_a_run_resumes_bit_for_bit(tmp_path: Path, seed: int | None) -> None:
    """Step 6 is in the middle of the second epoch; AdamW has a state."""
    kept = lightning.callbacks.ModelCheckpoint(
        tmp_path, filename="{step}", every_n_train_steps=6, save_top_k=-1
    )
    how = {"seed": seed, "enable_checkpointing": True}
    first = Module("AdamW", 0.02)
    whole = fit(tmp_path, first, callbacks=[kept], **how)
    assert (tmp_path / "step=6.ckpt").exists()
    second = Module("AdamW", 0.02)
    rest = fit(tmp_path, second, str(tmp_path / "step=6.ckpt"), callbacks=[kept], **how)
    assert rest.accountant_.steps == STEPS
    np.testing.assert_array_equal(flat(second), flat(first))
    np.testing.assert_array_equal(
        rest.accountant_.records("dfil"), whole.accountant_.records("dfil")
    )


def test_the_number_of_epochs_sets_the_steps(tmp_path: Path) -> None:
    run = fit(tmp_path, Module(), max_steps=-1, max_epochs=2)
    assert run.accountant_.steps == 8  # four steps an epoch at a rate of a quarter


def test_a_checkpoint_without_an_account_is_refused(tmp_path: Path) -> None:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    plain = lightning.Trainer(
        max_steps=2, accelerator="cpu", default_root_dir=tmp_path, devices=1, **quiet
    )
    plain.fit(Module(), torch.utils.data.DataLoader(TensorDataset(*data()), batch_size=20))
    plain.save_checkpoint(tmp_path / "plain.ckpt")
    with pytest.raises(sp.InputError, match="has taken 2 steps, but the account contains 0"):
        fit(tmp_path, Module(), str(tmp_path / "plain.ckpt"))


def test_what_would_change_the_gradients_is_refused(tmp_path: Path) -> None:
    with pytest.raises(sp.InputError, match="accumulate_grad_batches"):
        fit(tmp_path, Module(), accumulate_grad_batches=2)
    with pytest.raises(sp.InputError, match="gradient_clip_val"):
        fit(tmp_path, Module(), gradient_clip_val=1.0)
    manual = Module()
    manual.automatic_optimization = False
    with pytest.raises(sp.InputError, match="manual optimization"):
        fit(tmp_path, manual)
    with pytest.raises(sp.InputError, match="before training"):
        sp.nn.PrivateCallback("cross_entropy").accountant_  # noqa: B018


PROGRAM = """
import os, sys
from pathlib import Path
import numpy as np
from test_lightning import Module, fit, flat

module = Module()
run = fit(Path("."), module, devices=2, strategy="ddp")
rank = int(os.environ["LOCAL_RANK"])
np.savez(f"whole-{rank}.npz", net=flat(module), dfil=run.accountant_.records("dfil"))
sys.stdout.flush()
os._exit(0)
"""


@pytest.mark.slow
def test_two_processes_give_the_numbers_of_one(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM, encoding="utf-8")
    where = [str(Path(__file__).parent), *(str(Path(path).resolve()) for path in sys.path if path)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(where), "OMP_NUM_THREADS": "1"}
    launch = ["-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"]
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-W", "ignore", *launch, "--nproc-per-node", "2", "train.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    hand, account = by_hand(named="net.")
    assert len(account.records("dfil")) == N
    for name in ("whole-0", "whole-1"):
        found = np.load(tmp_path / f"{name}.npz")
        np.testing.assert_allclose(found["net"], flat(hand), rtol=1e-9)
        np.testing.assert_allclose(found["dfil"], account.records("dfil"), rtol=1e-6)
