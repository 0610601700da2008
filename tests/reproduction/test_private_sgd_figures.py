"""The grid of private networks: many at once are as one by one, and figures follow from results."""

from __future__ import annotations

import itertools
import json
import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import seepage as sp
from reproduction.bounds.figure5 import reproduce as figure5
from reproduction.bounds.figure6 import reproduce as figure6
from reproduction.bounds.weighted_sgd import EvenRun, train
from reproduction.private_sgd import first_steps, precision
from reproduction.private_sgd import grid as private_sgd_grid
from reproduction.private_sgd import results as private_sgd_results
from reproduction.private_sgd.ensemble import Ensemble
from reproduction.private_sgd.estimators import ESTIMATORS, compare
from reproduction.private_sgd.grid import added, run_grid, write_json
from reproduction.private_sgd.networks import cifar_cnn, mnist_cnn
from reproduction.private_sgd.results import (
    Point,
    best_bound,
    crossing,
    front,
    points,
    pooled,
    renyi_two,
)
from reproduction.private_sgd.run import CoordinateRun, ImageTensors, Run
from reproduction.private_sgd.settings import GRIDS, SHOWN, SHOWN_STEPS, Hyperparameters, find_grid
from sampled import sampled
from seepage.nn.jacobian.engine import Engine
from seepage.nn.problem.clipping import SmoothClip

SHAPES = {
    "mnist": (mnist_cnn, (1, 28, 28)),
    "cifar10": (lambda: cifar_cnn((4, 6, 8), side=16, hidden=7), (3, 16, 16)),
}


@pytest.fixture
def doubles():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("doubles")
@pytest.mark.parametrize("data", sampled(list(SHAPES), ["mnist"]))
def test_an_ensemble_is_its_networks_one_by_one(data):
    make, shape = SHAPES[data]
    torch.manual_seed(0)
    x, y = torch.rand(5, *shape), torch.randint(10, (5,))
    thresholds = torch.tensor([0.3, 1.0, 20.0])
    v = torch.randn(2, 5, *shape)
    together = Ensemble(make, [4, 5, 6], shape)
    step = together.step(x, y, v, thresholds)
    for k in range(3):
        torch.manual_seed(4 + k)
        net = make()
        engine = Engine(net, "cross_entropy", clip=SmoothClip(float(thresholds[k])))
        alone = engine.step(x, y, probes=0, update=True)
        assert torch.allclose(together.logits(x)[k], net(x))
        assert torch.allclose(step.norms[k], alone.norms, rtol=1e-9)
        assert torch.allclose(step.lengths[k], alone.norms * engine.clip.factor(alone.norms))
        assert torch.allclose(step.traces[:, k], engine.squared_changes(x, y, v).T, rtol=1e-9)
        sums = [part[k].flatten() for part in together.parts(step.gradients)]
        for mine, theirs in zip(sums, alone.gradient.values(), strict=True):
            assert torch.allclose(mine, theirs.flatten(), rtol=1e-9, atol=1e-12)


def test_a_layer_without_a_rule_is_refused():
    with pytest.raises(TypeError, match="ReLU"):
        Ensemble(lambda: nn.Sequential(nn.Linear(3, 3), nn.ReLU()), [0], (3,))


def _images(records=40, seed=0):
    source = torch.Generator().manual_seed(seed)
    X = torch.rand(records, 1, 28, 28, generator=source)
    y = torch.randint(10, (records,), generator=source)
    return ImageTensors(X, y, X[:20], y[:20])


SMALL = replace(
    GRIDS["mnist"],
    settings=(Hyperparameters(0.5, 0.1, 1), Hyperparameters(2, 0.03, 8)),
    steps=(2, 4),
    batch_size=10,
)


@pytest.mark.slow
def test_a_step_is_private_sgd_with_momentum():
    images = _images()
    run = Run(SMALL, images, seed=3, probes=1)
    nets = []
    for k in range(2):
        torch.manual_seed(6 + k)  # the seeds of run 3 with two settings
        nets.append(mnist_cnn())
    speeds = [[torch.zeros_like(p) for p in net.parameters()] for net in nets]
    totals = torch.zeros(2, 40, dtype=torch.float64)
    source = torch.Generator().manual_seed(3)
    for step in range(3):
        index = run.sampler.batch(step)
        v = torch.where(torch.rand(1, len(index), 1, 28, 28, generator=source) < 0.5, -1.0, 1.0)
        sums = []
        for k, setting in enumerate(SMALL.settings):
            engine = Engine(nets[k], "cross_entropy", clip=SmoothClip(setting.max_grad_norm))
            x, y = images.X[index], images.y[index]
            noise = setting.noise_multiplier * setting.max_grad_norm
            totals[k, index] += engine.squared_changes(x, y, v)[:, 0].double() / noise**2
            sums.append(list(engine.step(x, y, probes=0, update=True).gradient.values()))
        (networks,) = run.networks
        drawn = networks.parts(torch.randn(networks.parameters.shape, generator=source))
        for place, normal in enumerate(drawn):
            for k, setting in enumerate(SMALL.settings):
                p = list(nets[k].parameters())[place]
                noise = setting.noise_multiplier * setting.max_grad_norm
                noise = noise * normal[k].reshape(p.shape)
                speeds[k][place].mul_(0.5).add_((sums[k][place] + noise) / 10)
                with torch.no_grad():
                    p -= setting.learning_rate * speeds[k][place]
        run.advance()
    for place, stacked in enumerate(networks.parts(networks.parameters)):
        for k, net in enumerate(nets):
            mine = list(net.parameters())[place].detach().flatten()
            assert torch.allclose(stacked[k].flatten(), mine, atol=2e-5)
    plain, mixed = run.sums["plain"], run.sums["mixture"]
    assert torch.allclose(plain, totals, rtol=2e-3)
    assert (mixed <= plain * (1 + 1e-9)).all()
    assert plain.sum() > mixed.sum() > 0


@pytest.mark.parametrize("together", [None, 1])
def test_a_batch_that_is_filled_up_is_the_same_batch(together):
    plain, filled = (Run(replace(SMALL, together=size), _images(), 3) for size in (None, together))
    filled.filled_to = 8
    for run in (plain, filled):  # the same directions, whatever the size of the batch
        run.directions = lambda x: torch.ones(1, *x.shape)
    for _ in range(3):
        plain.advance()
        filled.advance()
    assert torch.allclose(plain.parameters, filled.parameters, atol=1e-6)
    assert torch.allclose(plain.sums["plain"], filled.sums["plain"], rtol=1e-3)


@pytest.mark.minutes
def test_who_is_probed_stands_for_the_others():
    images = _images(400)
    few = Run(replace(SMALL, batch_size=100, probed=0.3), images, 0)
    few.directions = lambda x: x[None]  # a direction of their own, so that nothing is random
    every = Run(replace(SMALL, batch_size=100), images, 0)
    every.directions = few.directions
    sums = torch.zeros(2)
    for step in range(30):
        for run, place in ((few, 0), (every, 1)):
            index, _, standing = run._drawn()
            assert len(index) == len(run.sampler.batch(step))
            assert float(standing.sum()) == pytest.approx(len(index))
            assert len(standing) == (math.ceil(0.3 * len(index)) if run is few else len(index))
            found = run._one_step(
                run.X[index],
                images.y[index],
                run.directions(run.X[index[: len(standing)]]),
                torch.ones(len(index)),
            )
            run.account(index[: len(standing)], found, standing)
            sums[place] = run.sums["plain"].sum()
            run.step += 1
    assert float(sums[0] / sums[1]) == pytest.approx(1, abs=0.05)
    # The records that have leaked most are probed for certain: the first half of those probed.
    index, _, standing = few._drawn()
    half = len(standing) // 2
    exposures = few._exposures(index)
    assert (standing[:half] == 1).all()
    assert exposures[:half].min() >= exposures[half:].max()


def test_half_the_digits_change_little():
    exact, rough = (Run(SMALL, _images(), 3, 4, kind) for kind in (torch.float32, torch.bfloat16))
    for _ in range(3):
        exact.advance()
        rough.advance()
    assert torch.allclose(exact.parameters, rough.parameters, atol=2e-3)
    seen = exact.sums["plain"] > 0
    ratio = rough.sums["plain"][seen] / exact.sums["plain"][seen]
    assert float((ratio - 1).abs().max()) < 0.05


@pytest.mark.slow
def test_weights_even_out_who_pays_and_change_no_other_network():
    grid = replace(SMALL, settings=SMALL.settings[:1] * 2, batch_size=20)
    even = EvenRun(grid, _images(), 0, (False, True))
    plain = Run(grid, _images(), 0, 2)
    plain.networks[0].parameters[1:] = plain.networks[0].parameters[0]
    for _ in range(40):
        plain.advance()
        even.advance()
    assert torch.allclose(even.parameters[0], plain.parameters[0], atol=1e-4)
    spread = [float(sums.std() / sums.mean()) for sums in even.sums["plain"]]
    assert spread[1] < 0.8 * spread[0]
    assert (even._weights[1] <= 1).all()


@pytest.mark.slow
def test_weighted_training_is_told_beside_plain():
    found = train(find_grid("mnist-as-run"), _images(400), records=120, steps=8, runs=1)
    assert [(one.noise, one.kind) for one in found] == [
        (0.5, "plain"),
        (0.5, "weighted"),
        (1.0, "plain"),
        (1.0, "weighted"),
    ]
    assert found[0].unequal == found[0].largest / np.median(found[0].dfil)
    assert found[1].unequal < found[0].unequal


@pytest.mark.minutes
def test_one_coordinate_is_a_noisier_account_of_the_same():
    run = CoordinateRun(replace(SMALL, batch_size=30), _images(), 0, 8)
    for _ in range(25):
        run.advance()
    signs, coordinate = run.sums["plain"], run.sums["one coordinate"]
    assert float(coordinate.sum() / signs.sum()) == pytest.approx(1, abs=0.3)
    assert float((coordinate / signs).std()) > 0.2


def test_a_grid_is_written_as_it_goes(tmp_path):
    said, written = [], []
    path = tmp_path / "found.json"

    def write(found):
        written.append(len(found["rows"]))
        write_json(path, found)

    found = run_grid(SMALL, _images(), runs=2, minutes=5, write=write, say=said.append)
    assert written == [2, 4, 4, 4]
    assert json.loads(path.read_text()) == found
    assert [p.name for p in tmp_path.iterdir()] == ["found.json"]
    assert len(said) == 4
    first = found["rows"][0]
    assert (first["steps"], first["noise_multiplier"], len(first["accuracy"])) == (2, 0.5, 2)
    assert first["plain"]["median"] <= first["plain"]["largest"]
    singles = first["largest of single runs"]
    assert min(singles) / 2 <= first["plain"]["largest"] <= max(singles)
    assert found["unknowns"] == 784


def test_a_grid_stops_when_the_time_is_over():
    said = []
    found = run_grid(SMALL, _images(), runs=1, minutes=0, write=lambda found: None, say=said.append)
    assert found == {}
    assert said == ["the time is over after 0 steps of run 1"]


@pytest.mark.parametrize("calls", sampled([2, 4, 7], [4]))
def test_a_grid_that_was_broken_off_goes_on_as_if_it_had_not_been(tmp_path, monkeypatch, calls):
    def go(**given):
        return run_grid(
            SMALL,
            _images(),
            runs=2,
            minutes=5,
            write=lambda found: None,
            say=lambda line: None,
            **given,
        )

    want = go()
    state = tmp_path / "found.json.state.npz"
    clock = itertools.chain([0.0] * calls, itertools.repeat(1e6))
    with monkeypatch.context() as patch:
        patch.setattr("reproduction.private_sgd.grid.time.monotonic", lambda: next(clock))
        assert go(state=state) != want
    assert state.exists()
    assert go(state=state) == want
    assert not state.exists()


def test_runs_that_diverge_are_marked():
    wild = replace(SMALL, settings=(Hyperparameters(1e30, 1e9, 1),), steps=(3,))
    images = _images()
    found = run_grid(wild, images, runs=1, minutes=5, write=lambda f: None, say=str)
    assert found["rows"][0]["diverged"]
    assert points(found) == []


def test_the_shown_run_keeps_its_ends(monkeypatch):
    monkeypatch.setattr(private_sgd_grid, "SHOWN_STEPS", 2)
    shown = replace(SMALL, settings=(SHOWN,), steps=(2,))
    found = run_grid(shown, _images(), runs=1, minutes=5, write=lambda f: None, say=str)
    row = found["rows"][0]
    assert row["highest"][0][1] == row["plain"]["largest"]
    assert [v for _, v in row["highest"]] == sorted((v for _, v in row["highest"]), reverse=True)
    assert len(row["lowest"]) == 8


def test_a_run_made_elsewhere_is_added_and_says_so():
    one, other = (
        run_grid(
            replace(SMALL, settings=SMALL.settings[:count], steps=steps),
            _images(),
            runs=1,
            minutes=5,
            write=lambda f: None,
            say=str,
        )
        for count, steps in ((2, (1,)), (1, (1, 2)))
    )
    assert added(None, one) is one
    both = added(one, other | {"machine": "another", "torch": "1.0"})
    assert both["machine"] == one["machine"]
    assert both["rows"][0] == one["rows"][1]  # the first setting after one step is the new one's
    assert [(row["machine"], row["steps"]) for row in both["rows"][1:]] == [
        ("another", 1),
        ("another", 2),
    ]


@pytest.mark.slow
def test_estimators_agree_on_average():
    one = replace(SMALL, settings=(Hyperparameters(1, 0.1, 4),))
    found = compare(one, _images(), steps=6, say=str)
    rows = {row["estimator"]: row for row in found["rows"]}
    assert list(rows) == list(ESTIMATORS)
    assert rows["reference"]["relative deviation"] == 0.0
    assert rows["1 coordinate"]["relative deviation"] > rows["50 coordinates"]["relative deviation"]
    assert rows["50 coordinates"]["largest"] == pytest.approx(rows["reference"]["largest"], rel=0.4)


@pytest.mark.parametrize(("script", "data"), [("private_sgd_grid", ["mnist"])])
def test_the_command_line(script, data, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(private_sgd_grid, "load_images", lambda grid: _images(700))
    out = tmp_path / "found.json"
    arguments = [*data, "--out", str(out), "--settings", "1", "--steps", "1", "--minutes", "1"]
    assert private_sgd_grid.main(arguments) == 0
    assert len(json.loads(out.read_text())["rows"]) == 1
    assert private_sgd_grid.main(["mnits", "--out", str(out)]) == 2
    assert "did you mean 'mnist'" in capsys.readouterr().err


@pytest.mark.slow
def test_training_needs_torch_and_numpy_only():
    code = (
        "import sys\n"
        "import reproduction.private_sgd.grid, reproduction.private_sgd.estimators\n"
        "from seepage import data\n"
        "data.load_mnist, data.load_cifar10\n"
        "more = ('array_api_compat', 'narwhals', 'sklearn', 'scipy', 'typer', 'dp_accounting',\n"
        "        'opacus', 'pyarrow', 'matplotlib', 'pandas', 'jinja2', 'safetensors')\n"
        "sys.exit(', '.join(name for name in more if name in sys.modules) or 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)  # noqa: S603
    assert done.returncode == 0, done.stderr


def test_first_steps_follow_networks_that_differ_in_their_start_alone():
    grid = replace(SMALL, settings=SMALL.settings[:1] * 2, network="mnist_cnn_as_run")
    row = first_steps.follow(grid, _images(), 3)
    assert row["network"] == "mnist_cnn_as_run"
    assert len(row["accuracy"]) == 2
    assert row["largest"] > 0


def test_the_grids_are_those_of_the_paper():
    mnist = find_grid("mnist")
    assert (len(mnist.settings), mnist.batch_size, mnist.steps) == (
        108,
        600,
        (1000, 2000, 3000, 5000),
    )
    as_run = find_grid("mnist-as-run")
    assert as_run.settings == mnist.settings
    first, second = (
        layer
        for layer in as_run.make_network()()
        if hasattr(layer, "kernel_size") and hasattr(layer, "weight")
    )
    assert (first.kernel_size, second.kernel_size) == ((8, 8), (4, 4))
    cifar10 = find_grid("cifar10")
    assert SHOWN in cifar10.settings
    assert SHOWN_STEPS in cifar10.steps


def test_the_renyi_privacy_is_that_of_dp_accounting():
    import dp_accounting as dp
    from dp_accounting.rdp import RdpAccountant

    event = dp.PoissonSampledDpEvent(0.01, dp.GaussianDpEvent(0.5 / 1.115))
    want = RdpAccountant([2.0]).compose(event, 1000).rdp[0]
    assert renyi_two(0.01, 0.5, 1000) == pytest.approx(want, rel=1e-9)


def _point(accuracy, rdp, largest):
    return Point(accuracy, rdp, rdp / 4, largest, 10 * largest, 5 * largest, {})


def test_fronts_and_crossings():
    found = [_point(90, 5, 9), _point(95, 2, 3), _point(94, 1, 2), _point(97, 0.5, 1.2)]
    assert [p.accuracy for p in front(found, "rdp")] == [97, 95, 90]
    assert crossing(found, "rdp") == 95
    assert crossing(found, "largest") == 97
    assert crossing(found, "largest", 100.0) == 0.0
    assert best_bound(found, "rdp", 94) == 2
    assert best_bound(found, "rdp", 99) == 0.0


def _made_up(data, steps):
    """Results as the grid writes them: more noise, less leakage, less accuracy."""
    rows = []
    for noise in (0.5, 1, 2, 5):
        for t in steps:
            leakage = t / 1000 / noise**2
            row = {
                "noise_multiplier": noise,
                "learning_rate": 0.1,
                "max_grad_norm": 1,
                "steps": t,
                "accuracy": [0.99 - 0.02 * noise + t * 1e-6],
                "diverged": False,
                "plain": {"largest": leakage, "top 0.1 %": leakage / 2, "median": leakage / 100},
                "mixture": {"largest": leakage / 5, "top 0.1 %": 0, "median": 0},
                "largest of single runs": [leakage],
            }
            if (noise, t) == (0.5, 5000):
                row["highest"] = [[10 + k, leakage / (k + 1)] for k in range(8)]
                row["lowest"] = [[50 + k, leakage / 1000 * (k + 1)] for k in range(8)]
            rows.append(row)
    records = 60_000 if data == "mnist" else 50_000
    return {
        "data": data,
        "records": records,
        "unknowns": 784,
        "batch_size": 600,
        "input scale": 0.2,
        "probes": 1,
        "machine": "a made-up machine",
        "rows": rows,
    }


@pytest.fixture
def kept(tmp_path, monkeypatch):
    monkeypatch.setattr(private_sgd_results, "HOME", tmp_path)
    return tmp_path


def test_the_authors_estimator_on_cifar10_by_hand():
    """The kept rows, with κ = q/(q + (1 − q)e^{−ε}) and ε of algorithm 1 written out."""
    path = private_sgd_results.HOME / "private_sgd_cifar10_as_run_coordinate.json"
    rate, held = 200 / 50_000, {1: 0.0, 25: 0.0}
    for row in json.loads(path.read_text(encoding="utf-8"))["rows"]:
        tail = math.log(1.25 * row["steps"] / 1e-5)
        epsilon = 2.23 * math.sqrt(2 * tail) / row["noise_multiplier"]
        kappa = rate / (rate + (1 - rate) * math.exp(-epsilon))
        error = 1 / (kappa * row["one coordinate"]["largest"])
        for unit in held:  # squared, of pixels or of the network's input
            if unit * error >= 0.1:
                held[unit] = max(held[unit], 100 * row["accuracy"][0])
    found = {quantity.name: quantity.measured for quantity in figure5(quick=True).quantities}
    by = "CIFAR-10, by one coordinate a step"
    what = "accuracy up to which the bound from the largest dFIL is at least 0.1"
    assert found[f"{by}: {what}"] == pytest.approx(held[1], abs=1e-9)
    assert found[f"{by}, in units of the network's input: {what}"] == pytest.approx(held[25])
    assert (round(held[1], 1), round(held[25], 1)) == (57.5, 66.2)


@pytest.mark.slow
def test_figure_5_is_drawn_from_kept_results(kept):
    as_run = _made_up("mnist", (1000, 5000))
    for row in as_run["rows"]:
        row["one coordinate"] = {name: 2 * value for name, value in row["plain"].items()}
    write_json(kept / "private_sgd_mnist_as_run.json", as_run)
    alone = figure5(quick=False)
    names = [quantity.name for quantity in alone.quantities]
    assert not any("CIFAR-10" in name or "Table 1" in name for name in names)
    write_json(kept / "private_sgd_mnist.json", _made_up("mnist", (1000, 2000)))
    write_json(kept / "private_sgd_mnist_frontier.json", _made_up("mnist", (1000,)))
    cifar10 = _made_up("cifar10", (2500, 5000))
    later = [row for row in cifar10["rows"] if row["steps"] == 5000]
    kept_rows = [row for row in cifar10["rows"] if row not in later[1:]]
    later[0]["accuracy"] = [0.5, 0.7]
    write_json(kept / "private_sgd_cifar10_as_run.json", cifar10 | {"rows": kept_rows})
    rows = [
        {"estimator": name, "largest": 2.0, "median": 1.0, "relative deviation": 0.1}
        for name in ESTIMATORS
    ]
    write_json(kept / "private_sgd_estimators.json", {"data": "mnist", "rows": rows})
    both = figure5(quick=True)
    found = {quantity.name: quantity for quantity in both.quantities}
    crossed = found["MNIST: accuracy up to which the bound from the largest dFIL is at least 1"]
    every = points(_made_up("mnist", (1000, 5000)))
    assert crossed.measured == crossing(every, "largest")
    assert crossed.published == 97
    rough = found["MNIST: largest dFIL by one coordinate a step, at least 1 up to"]
    assert rough.measured == crossing(points(as_run, "one coordinate"), "largest")
    ratio = found["MNIST: largest squared dFIL by one coordinate over that by signs, median"]
    assert ratio.measured == 2.0
    replaced = found["MNIST: RDP for replacing a record, at least 1 up to"]
    assert replaced.measured == crossing(every, "replaced") <= crossing(every, "rdp")
    one = found["MNIST, the network of Table 1: largest dFIL, at least 1 up to"]
    assert one.measured == crossing(points(_made_up("mnist", (1000,))), "largest")
    once = "MNIST, the network of Table 1, each setting of Table 3 once: largest dFIL"
    want = crossing(points(_made_up("mnist", (1000, 2000))), "largest")
    assert found[f"{once}, at least 1 up to"].measured == want
    assert found["50 coordinates a step: largest squared dFIL over the true one"].measured == 1.0
    assert all(quantity.settled for quantity in both.quantities)
    seen = points(cifar10 | {"rows": kept_rows})
    units = "CIFAR-10, in units of the network's input: accuracy up to which the bound from the "
    wider = found[f"{units}largest dFIL is at least 1"].measured
    assert wider == crossing(seen, "largest", 0.04)  # a unit is 0.2 of the pixels' range
    only = f"σ = {later[0]['noise_multiplier']:g}, ρ = 0.1, C = {later[0]['max_grad_norm']:g}"
    assert f"after 2,500 steps ({only} also after 5,000)" in both.setting
    assert f"one run each (an average over 2 runs for {only} to 5,000 steps)" in both.setting
    by_length = found["CIFAR-10: accuracy up to which the RDP bound is at least 1"]
    at_two = next(row for row in kept_rows if row["noise_multiplier"] == 2)
    assert f"where the accuracy is {100 * at_two['accuracy'][0]:.1f}" in by_length.why
    assert "paper: 97 %" in both.seen
    assert both.figure.svg.startswith("<?xml")
    assert len(both.figure.png) < 150_000


def test_further_runs_of_some_settings_are_taken_in(kept):
    once, again = _made_up("cifar10", (2500, 5000)), _made_up("cifar10", (5000,))
    chosen = again["rows"][3]
    chosen["accuracy"] = [0.9, 0.6]
    for name, ending in {"plain": "", "mixture": ", mixture"}.items():
        first = next(row for row in once["rows"] if _same(row, chosen))
        first[f"largest of single runs{ending}"] = [first[name]["largest"]]
        chosen[f"largest of single runs{ending}"] = [
            first[name]["largest"] * times for times in (2, 6)
        ]
        chosen[name]["median"] = 4 * first[name]["median"]
    new = chosen | {"noise_multiplier": 10}
    *found, last = pooled(once, again | {"rows": [new, chosen]})["rows"]
    assert last == new
    for row, before in zip(found, once["rows"], strict=True):
        if not _same(row, chosen):
            assert row == before
            continue
        assert row["accuracy"] == [*before["accuracy"], 0.9, 0.6]
        for name in ("plain", "mixture"):
            assert row[name]["largest"] == pytest.approx(3 * before[name]["largest"])
            assert row[name]["median"] == pytest.approx(3 * before[name]["median"])


def _same(row, other):
    names = ("noise_multiplier", "learning_rate", "max_grad_norm", "steps")
    return all(row[name] == other[name] for name in names)


@pytest.mark.slow
def test_figure_6_is_drawn_from_kept_results(kept, monkeypatch):
    write_json(kept / "private_sgd_figure6.json", _made_up("cifar10", (5000,)))
    source = np.random.default_rng(0)
    split = sp.data.Images(
        source.integers(0, 255, (100, 32, 32, 3), dtype=np.uint8), source.integers(0, 10, 100)
    )
    classes = tuple("abcdefghij")
    images = sp.data.ImageSet("cifar10", split, split, classes)
    monkeypatch.setattr("reproduction.bounds.figure6.load_images", lambda data: images)
    outcome = figure6(quick=False)
    assert "One run, on a made-up machine." in outcome.setting
    (kept_line,) = outcome.kept
    assert kept_line.endswith("commit not recorded; a made-up machine.")
    found = {quantity.name: quantity.measured for quantity in outcome.quantities}
    assert found["largest dFIL"] > found["eighth largest dFIL"] > found["smallest dFIL"]
    # With batches of 600 of 50,000 and σ = 0.5, theorem 4's κ is one to many digits.
    assert found["largest dFIL"] == pytest.approx(math.sqrt(5000 / 1000 / 0.25), rel=1e-4)


def test_half_the_digits_are_told_where_they_were_compared(kept, monkeypatch):
    monkeypatch.setattr("reproduction.bounds.figure5.draw_figure", lambda *what: None)
    write_json(kept / "private_sgd_mnist_as_run.json", _made_up("mnist", (1000,)))
    assert "bfloat16" not in figure5(quick=True).setting
    grid = replace(SMALL, settings=precision.SETTINGS)
    rows = [precision.follow(grid, _images(), name, 3) for name in ("single", "bfloat16")]
    assert rows[0]["sum"] == pytest.approx(rows[1]["sum"], rel=0.05)
    write_json(kept / "private_sgd_precision.json", {"steps": 3, "rows": rows})
    assert "(3 steps of two settings, private_sgd_precision.json)" in figure5(quick=True).setting


def test_missing_results_say_how_to_make_them(kept):
    with pytest.raises(sp.InputError, match=r"private_sgd\.grid mnist-as-run --out"):
        figure5(quick=False)
    with pytest.raises(sp.InputError, match=r"private_sgd\.grid cifar10-as-run --shown"):
        figure6(quick=False)
    write_json(kept / "private_sgd_figure6.json", _made_up("cifar10", (2500,)))
    with pytest.raises(sp.InputError, match="hold no run with"):
        figure6(quick=False)
