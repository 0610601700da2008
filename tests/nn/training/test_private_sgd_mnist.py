"""MNIST to 95 % with dFIL of all records, killed and resumed: the benchmark does it and checks."""

import subprocess
import sys
from pathlib import Path

import pytest

import seepage as sp

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "private_sgd_mnist.py"


@pytest.mark.minutes
def test_mnist_is_learnt_and_survives_a_kill():
    try:
        sp.data.load_mnist(download=False)
    except sp.InputError as error:
        pytest.skip(f"the data set is not at hand: {error}")
    done = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True)  # noqa: S603
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "same final numbers" in done.stdout
    assert "60,000 records" in done.stdout
