"""Networks that FSDP2 spreads over two gloo processes, against the same networks in one."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "huggingface"))

import sharded_run  # noqa: E402

pytestmark = pytest.mark.slow


def both_processes(which, folder):
    """Run the program by torchrun, and return what each process found."""
    where = os.pathsep.join(str(Path(path).resolve()) for path in sys.path if path)
    environment = os.environ | {"PYTHONPATH": where, "OMP_NUM_THREADS": "1"}
    run = ["torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"]
    program = ["--nproc-per-node", "2", str(HERE / "sharded_run.py"), which, str(folder)]
    command = [sys.executable, "-W", "ignore", "-m", *run, *program]
    done = subprocess.run(  # noqa: S603
        command, env=environment, capture_output=True, text=True, timeout=400, check=False
    )
    assert done.returncode == 0, done.stderr
    return [np.load(folder / f"{which}-{rank}.npz") for rank in (0, 1)]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return both_processes("some", tmp_path_factory.mktemp("sharded"))


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone")
    sharded_run.some(folder)
    return np.load(folder / "some-0.npz")


@pytest.mark.parametrize("part", ["step", "chunks", "empty", "thin", "unclipped"])
def test_a_step_is_that_of_one_process(part, found, alone):
    # The curvature of thin steps is fitted to the first process's own records: traces agree to the
    # uncertainties that both runs state.
    doubt = float(found[0][f"{part} doubt"] + alone[f"{part} doubt"])
    assert doubt == 0 if part != "thin" else 0 < doubt < 1e-5
    for name in ("traces", "norms", "gradient"):
        rtol = doubt if part == "thin" and name == "traces" else 1e-9
        whole = found[0][f"{part} {name}"] + found[1][f"{part} {name}"]
        np.testing.assert_allclose(whole, alone[f"{part} {name}"], rtol=rtol, atol=1e-12)


def test_no_process_holds_the_whole_network(found):
    for one in found:
        assert 0 < one["most"] < 0.3 * one["all"]


def test_what_needs_the_whole_network_is_refused(found):
    for one in found:
        assert "sharded across processes" in str(one["derivative"])
        assert "The processes do not run the same training" in str(one["apart"])


@pytest.mark.parametrize("name", ["trained dfil", "trained weights"])
def test_a_private_run_is_that_of_one_process(name, found, alone):
    for one in found:
        np.testing.assert_allclose(one[name], alone[name], rtol=1e-8, atol=1e-10)


@pytest.mark.minutes
def test_models_are_those_of_one_process(tmp_path):
    for name in ("together", "alone"):
        (tmp_path / name).mkdir()
    found = both_processes("models", tmp_path / "together")
    sharded_run.models(tmp_path / "alone")
    alone = np.load(tmp_path / "alone" / "models-0.npz")
    assert len(alone.files) == 4
    for name in alone.files:
        assert (alone[name] > 0).all()
        np.testing.assert_allclose(found[0][name] + found[1][name], alone[name], rtol=1e-9)
