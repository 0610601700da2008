"""A loop of Accelerate, private: the numbers of a loop by hand, and of a resumed run."""

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


class Run:
    """The recipe of docs/how-to/private-sgd.md."""

    def __init__(self, seed: int | None, folder: Path, kind: str = "SGD") -> None:
        from accelerate import Accelerator

        self.accelerator = Accelerator(cpu=True)
        optimizer = getattr(torch.optim, kind)
        net = Classifier()
        self.model, self.optimizer = self.accelerator.prepare(
            net, optimizer(net.parameters(), lr=LR)
        )
        self.private = sp.nn.PrivateGradients(
            self.accelerator.unwrap_model(self.model),
            "cross_entropy",
            n=N,
            **DECLARED | {"seed": seed, "key_folder": folder},
        )
        self.accelerator.register_for_checkpointing(self.private)

    def train(self, steps: int) -> None:
        while self.private.steps < steps:
            for x, y in self.private.loader(TensorDataset(*data())):
                self.private.backward(x, y)
                self.optimizer.step()
                self.optimizer.zero_grad()
                if self.private.steps == steps:
                    break

    def weights(self) -> np.ndarray:
        return torch.cat([p.detach().flatten() for p in self.model.parameters()]).numpy()

    def dfil(self) -> np.ndarray:
        return np.asarray(sp.nn.gather_shares(self.private.accountant_).records("dfil"))


def test_the_recipe_gives_the_numbers_of_a_loop_by_hand(tmp_path: Path) -> None:
    net, account = by_hand()
    run = Run(11, tmp_path)
    run.train(STEPS)
    hand = torch.cat([p.detach().flatten() for p in net.parameters()]).numpy()
    np.testing.assert_allclose(run.weights(), hand, rtol=1e-9)
    np.testing.assert_allclose(run.dfil(), account.records("dfil"), rtol=1e-6)


@pytest.mark.parametrize("seed", [11, None])
def test_a_run_resumes_bit_for_bit(tmp_path: Path, seed: int | None) -> None:
    whole = Run(seed, tmp_path, "AdamW")
    whole.train(6)
    whole.accelerator.save_state(tmp_path / "state")
    whole.train(STEPS)
    rest = Run(seed, tmp_path, "AdamW")
    rest.accelerator.load_state(tmp_path / "state")
    rest.train(STEPS)
    np.testing.assert_array_equal(rest.weights(), whole.weights())
    np.testing.assert_array_equal(rest.dfil(), whole.dfil())


PROGRAM = """
import os, sys
from pathlib import Path
import numpy as np
from test_accelerate import Run

run = Run(11, Path("."))
run.train(6)
run.accelerator.save_state("state")
run.train(10)
rank = run.accelerator.process_index
np.savez(f"whole-{rank}.npz", net=run.weights(), dfil=run.dfil())
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
    net, account = by_hand()
    hand = torch.cat([p.detach().flatten() for p in net.parameters()]).numpy()
    for name in ("whole-0", "whole-1"):
        found = np.load(tmp_path / f"{name}.npz")
        np.testing.assert_allclose(found["net"], hand, rtol=1e-9)
        np.testing.assert_allclose(found["dfil"], account.records("dfil"), rtol=1e-6)
