"""Two processes that train together account for the same run as one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import two_processes

from seepage.nn.accounting.joining import gather_shares
from seepage.nn.accounting.processes import world_size

SCRIPT = Path(two_processes.__file__)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("processes")
    where = os.pathsep.join(path for path in sys.path if path)
    environment = os.environ | {"PYTHONPATH": where, "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(  # noqa: S603
            [sys.executable, str(SCRIPT), str(rank), str(folder)], env=environment
        )
        for rank in (0, 1)
    ]
    assert [process.wait(timeout=300) for process in processes] == [0, 0]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1)]


@pytest.fixture(scope="module")
def alone():
    net, x, y = two_processes.problem()
    account = two_processes.accountant(net)
    two_processes.train(net, account, x, y, lambda index: torch.ones_like(index, dtype=torch.bool))
    return account


@pytest.mark.slow
def test_both_processes_learn_the_whole(found, alone):
    for one in found:
        rows = np.asarray(alone.records("dfil")).tolist()
        assert one["rows"] == pytest.approx(rows, rel=1e-9, nan_ok=True)
        errors = np.asarray(alone.records("dfil").standard_errors).tolist()
        assert one["errors"] == pytest.approx(errors, rel=1e-9, nan_ok=True)
        assert one["epsilon"] == alone.privacy().epsilon
        assert one["steps"] == alone.steps
        costs = alone.individual_privacy().costs
        assert np.asarray(one["costs"]) == pytest.approx(costs, rel=1e-9)


@pytest.mark.slow
def test_sketches_are_joined(found, alone):
    for one in found:
        assert one["upper"] == pytest.approx(alone.fil().upper.tolist(), rel=1e-6, nan_ok=True)
        assert one["lower"] == pytest.approx(alone.fil().lower.tolist(), rel=1e-6, nan_ok=True)


@pytest.mark.slow
def test_the_shares_stay_apart(found, alone):
    assert sum(one["own uses"] for one in found) == int(alone.run.sums.uses.sum())


@pytest.mark.slow
def test_processes_out_of_step_are_refused(found):
    assert all("between 6 and 7 steps" in one["refusal"] for one in found)


def test_a_single_process_is_its_own_whole(alone):
    assert world_size() == 1
    np.testing.assert_array_equal(gather_shares(alone).records("dfil"), alone.records("dfil"))
