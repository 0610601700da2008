"""torchrun: the program of the documentation in two gloo processes, and its numbers in one."""

import io
import os
import re
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "torchrun.md"
FENCES = re.findall(
    r"^```(python|text)\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
)
PROGRAM = "".join(text for kind, text in FENCES if kind == "python")
# torch cannot leave its group and join it again, so what is added comes before the last lines.
LEAVE = "if dist.is_initialized():\n    dist.destroy_process_group()\n"
BODY = PROGRAM.removesuffix(LEAVE)
# A thread of gloo that lets go of a tensor while the interpreter shuts down aborts the process
# (pytorch/pytorch#179291), so in the test the interpreter does not shut down.
END = """
import sys
sys.stdout.flush()
os._exit(0)
"""
SHOWN = "".join(text for kind, text in FENCES if kind == "text")

# What the page's program knows at its end, stored by every process for the comparison.
STORE = """
import os
import numpy as np
trained = trainer.accountant_.records("dfil")
loop = sp.nn.gather_shares(accountant).records("dfil")
np.savez(
    f"found-{rank}.npz", loop=loop.values, loop_errors=loop.standard_errors,
    sharded=records.values, sharded_errors=records.standard_errors,
    trained=trained.values,
    trained_errors=trained.standard_errors, own=trainer.accountant_.individual_privacy().costs,
    history=[now.worst_dfil for now in trainer.history_], observed=accountant.run.sums.uses.numpy(),
    network=np.concatenate([p.detach().numpy().ravel() for p in net.parameters()]),
)
"""

# In two processes only: going on from the checkpoint, a seed of its own, and disagreement.
MORE = """
from pathlib import Path

def again(**settings):
    torch.manual_seed(rank)  # another network in the second process; the first one's counts
    fresh = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10)).double()
    kind = {} if "batch_size" in settings else {"sample_rate": 0.11, "expected_batch": 200}
    given = {"steps": 23, "lr": 2.0} | kind | settings
    return sp.nn.PrivateSGD(fresh, "cross_entropy", **given)

longer = again(seed=1, checkpoint="run.safetensors").fit(X, y, X, y)
np.save(f"longer-{rank}.npy", longer.accountant_.records("dfil").values)
own = again(steps=2).fit(X, y)
weights = torch.cat([p.detach().flatten() for p in own.net.parameters()])
np.savez(f"own-{rank}.npz", weights=weights, seed=own._stream.fingerprint())
sketched = {"sketch": 2, "sketch_records": [0, 1]}
fixed = again(steps=3, batch_size=200, sampling="fixed", seed=5, **sketched).fit(X, y)
account = fixed.accountant_
np.savez(f"fixed-{rank}.npz", rows=account.records("dfil").values, fil=account.fil().upper)
try:
    again(steps=2, seed=rank).fit(X, y)
except sp.errors.InputError as error:
    Path(f"refusal-{rank}.txt").write_text(str(error))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Run the program by torchrun; whatever it leaves is in the folder."""
    folder = tmp_path_factory.mktemp("torchrun")
    (folder / "train.py").write_text(BODY + STORE + MORE + LEAVE + END, encoding="utf-8")
    where = os.pathsep.join(str(Path(path).resolve()) for path in sys.path if path)
    environment = os.environ | {"PYTHONPATH": where, "OMP_NUM_THREADS": "1"}
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--local-addr",
        "127.0.0.1",
        "--nproc-per-node",
        "2",
        "train.py",
    ]
    done = subprocess.run(  # noqa: S603
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (folder / "printed.txt").write_text(done.stdout)
    return folder


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Run the same program in this process."""
    here = Path.cwd()
    folder = tmp_path_factory.mktemp("alone")
    os.chdir(folder)
    try:
        namespace = {"__name__": "__main__"}
        with redirect_stdout(io.StringIO()):
            exec(PROGRAM + STORE, namespace)  # noqa: S102
    finally:
        os.chdir(here)
    return namespace, np.load(folder / "found-0.npz")


def test_the_page_shows_what_torchrun_prints(folder):
    assert (folder / "printed.txt").read_text() == SHOWN


@pytest.mark.parametrize("rank", [0, 1])
def test_every_record_leaks_as_in_one_process(folder, alone, rank):
    found = np.load(folder / f"found-{rank}.npz")
    for name in (
        *("loop", "loop_errors", "sharded", "sharded_errors", "trained", "trained_errors"),
        *("own", "history", "network"),
    ):
        assert found[name] == pytest.approx(alone[1][name], rel=1e-9, abs=1e-12, nan_ok=True), name
    assert (found["loop"] > 0).sum() > 1000


def test_the_processes_shared_the_work(folder, alone):
    shares = [np.load(folder / f"found-{rank}.npz")["observed"] for rank in (0, 1)]
    assert not (shares[0] * shares[1]).any()
    assert (shares[0] + shares[1]).tolist() == alone[1]["observed"].tolist()


def _trained(namespace, **settings):
    nn, torch = namespace["nn"], namespace["torch"]
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10)).double()
    kind = {} if "batch_size" in settings else {"sample_rate": 0.11, "expected_batch": 200}
    given = {"lr": 2.0} | kind | settings
    trainer = namespace["sp"].nn.PrivateSGD(net, "cross_entropy", **given)
    return trainer.fit(namespace["X"], namespace["y"])


def test_a_run_of_two_processes_goes_on_in_two_and_in_one(folder, alone):
    checkpoint = folder / "run.safetensors"
    assert checkpoint.stat().st_mode & 0o777 == 0o600
    whole = _trained(alone[0], steps=23, seed=1).accountant_.records("dfil").values
    for rank in (0, 1):
        assert np.load(folder / f"longer-{rank}.npy") == pytest.approx(whole, rel=1e-9, nan_ok=True)
    rest = _trained(alone[0], steps=25, seed=1, checkpoint=checkpoint)
    whole = _trained(alone[0], steps=25, seed=1).accountant_.records("dfil").values
    assert rest.accountant_.records("dfil").values == pytest.approx(whole, rel=1e-9, nan_ok=True)


def test_batches_of_one_size_and_sketches_are_shared_too(folder, alone):
    whole = _trained(
        alone[0], steps=3, seed=5, batch_size=200, sampling="fixed", sketch=2, sketch_records=[0, 1]
    ).accountant_
    for rank in (0, 1):
        found = np.load(folder / f"fixed-{rank}.npz")
        assert found["rows"] == pytest.approx(whole.records("dfil").values, rel=1e-9, nan_ok=True)
        assert found["fil"] == pytest.approx(whole.fil().upper, rel=1e-6, nan_ok=True)


def test_a_drawn_seed_and_the_first_network_are_everyones(folder):
    first, second = (np.load(folder / f"own-{rank}.npz") for rank in (0, 1))
    assert first["seed"] == second["seed"]
    assert first["weights"].tolist() == second["weights"].tolist()


def test_processes_that_do_not_agree_are_refused(folder):
    for rank in (0, 1):
        assert "the same settings" in (folder / f"refusal-{rank}.txt").read_text()
