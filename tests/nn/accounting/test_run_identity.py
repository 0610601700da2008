"""What identifies a measurement: runs, shares and states that differ in it are kept apart."""

import json
import math

import numpy as np
import pytest
import torch
from torch import nn

from seepage.errors import InputError
from seepage.nn.accounting.accountant import FisherAccountant
from seepage.nn.accounting.joining import join_shares, merge_runs
from seepage.nn.accounting.measured_run import MeasuredRun
from seepage.nn.accounting.run_identity import loss_name, plain_setting
from seepage.nn.problem.clipping import HardClip
from seepage.nn.problem.views import Input, Label

N, D = 10, 4


def _mask(*places, size=D):
    mask = torch.zeros(size, dtype=torch.bool)
    mask[list(places)] = True
    return mask


def _run(seen=True, seed=0, **options):
    torch.manual_seed(0)
    net, x, y = nn.Linear(D, 3).double(), torch.randn(N, D).double(), torch.randint(3, (N,))
    given = {"n": N, "sample_rate": 0.5, "noise_multiplier": 1.0, "max_grad_norm": 0.5}
    run = FisherAccountant(net, "cross_entropy", seed=seed, **given | options)
    index = [1, 4, 6] if seen else []
    run.observe(index, x[index], y[index])
    return run


DIFFERENT = {
    "masks of the input": ({"view": Input(_mask(0))}, {"view": Input(_mask(1))}, "view"),
    "masks of the label": (
        {"view": Label(_mask(0, size=3))},
        {"view": Label(_mask(1, size=3))},
        "view",
    ),
    "a masked and a whole label": ({"view": Label()}, {"view": Label(_mask(1, size=3))}, "view"),
    "factors": ({}, {"amplification": "none"}, "amplification"),
    "clip_derivative": ({}, {"clip_derivative": "conservative"}, "clip_derivative"),
    "methods": ({}, {"method": "finite"}, "method"),
    "scales": ({"method": "finite", "scale": 0.1}, {"method": "finite", "scale": 0.2}, "scale"),
    "clips": ({}, {"clip": "smooth"}, "clip"),
    "thresholds": ({}, {"max_grad_norm": 0.25}, "clip"),
    "rates": ({}, {"sample_rate": 0.25}, "sample_rate"),
    "samplers": ({}, {"sampler": "fixed"}, "sampler"),
    "failure probabilities": (
        {"amplification": "theorem4", "delta": 1e-3},
        {"amplification": "theorem4", "delta": 1e-4},
        "delta",
    ),
    "announced steps": (
        {"amplification": "theorem4", "steps": 5},
        {"amplification": "theorem4", "steps": 20},
        "announced steps",
    ),
}


@pytest.mark.parametrize("case", DIFFERENT)
def test_different_measurements_are_not_put_together(case):
    first, second, name = DIFFERENT[case]
    runs = [_run(**first), _run(**second)]
    for together in (merge_runs, join_shares):
        with pytest.raises(InputError, match=f"differ in {name}: "):
            together(runs)
    with pytest.raises(InputError, match=f"to a run with {name} = "):
        runs[1].load_state_dict(runs[0].state_dict())


def test_two_long_masks_may_differ_in_one_entry():
    one = torch.ones(3000, dtype=torch.bool)
    other = one.clone()
    other[7] = False
    pair = [
        FisherAccountant(
            nn.Linear(3000, 2),
            "cross_entropy",
            n=N,
            sample_rate=0.5,
            noise_multiplier=1.0,
            view=Input(mask),
        )
        for mask in (one, other)
    ]
    with pytest.raises(InputError, match="differ in view"):
        merge_runs(pair)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"view": Input(_mask(0, 2))}, {"view": Input(_mask(0, 2).numpy())}),
        ({"delta": 1e-3, "steps": 4}, {"delta": 1e-4, "steps": 9}),  # nothing depends on them
        ({"clip": "hard"}, {"clip": HardClip(np.float32(0.5))}),
    ],
)
def test_equal_measurements_told_in_other_ways_are_put_together(first, second):
    runs = [_run(**first), _run(seed=1, **second)]
    assert merge_runs(runs).records("dfil").shape == (N,)
    runs[1].load_state_dict(runs[0].state_dict())
    np.testing.assert_array_equal(runs[1].records("dfil").values, runs[0].records("dfil").values)


def test_other_noise_is_named():
    with pytest.raises(InputError, match=r"noise_multiplier is 1\.0 in one run, 2\.0"):
        merge_runs([_run(), _run(noise_multiplier=2.0)])


def test_records_of_other_sizes_are_not_averaged():
    runs = [_run(), _run(seed=1)]
    runs[1].run.unknowns = 7
    with pytest.raises(InputError, match="with 4 and with 7 unknown"):
        merge_runs(runs)


def test_one_run_is_not_its_own_repetition():
    run = _run()
    with pytest.raises(InputError, match="same run is given twice"):
        merge_runs([run, run])
    with pytest.raises(InputError, match="same run is given twice"):
        join_shares([run, run])


def test_the_first_run_may_have_seen_nothing():
    empty, full = _run(seen=False), _run()
    merged = np.asarray(merge_runs([empty, full]).records("dfil"))
    assert merged == pytest.approx(np.asarray(full.records("dfil")) / math.sqrt(2), nan_ok=True)


def test_a_joined_run_keeps_its_steps():
    run = _run()
    joined = join_shares([run])
    run.observe([], torch.zeros(0, D).double(), torch.zeros(0, dtype=torch.int64))
    assert (joined.steps, run.steps) == (1, 2)
    assert joined.measurement == run.run.measurement


def test_states_of_earlier_versions_are_refused():
    state = _run().state_dict()
    facts = json.loads(state["facts"])
    del facts["measurement"]
    with pytest.raises(InputError, match="format 1, not 6"):
        _run().load_state_dict(state | {"facts": json.dumps(facts | {"version": 1})})


@pytest.mark.parametrize("state", [{"a": 1}, {"facts": "nonsense"}, {"facts": "[]"}, 3])
def test_what_is_no_state_is_refused(state):
    with pytest.raises(InputError, match="not the state of an accountant"):
        _run().load_state_dict(state)


def test_a_state_can_be_read_without_a_network():
    run = _run(amplification="theorem4", delta=1e-3, steps=4)
    bare = MeasuredRun(N, 2, "the input", individual=True, sketch=None)
    bare.load_state_dict(run.state_dict())
    assert bare.measurement == run.run.measurement
    assert bare.failure_probability == run.failure_probability


def test_numbers_of_numpy_can_be_stored():
    run = _run(n=np.int64(N), probes=np.int64(2), max_grad_norm=np.float32(0.5))
    again = _run(seen=False)
    again.load_state_dict(run.state_dict())
    assert again.steps == 1


def test_the_fil_of_merged_runs_is_that_of_their_mean():
    runs = [_run(seed=seed, sketch=4, probes=60) for seed in range(3)]
    merged = merge_runs(runs)
    bracket = merged.fil()
    drawn = ~np.isnan(bracket.upper)
    assert np.flatnonzero(drawn).tolist() == [1, 4, 6]
    assert np.isnan(bracket.lower).tolist() == (~drawn).tolist()
    assert np.all(bracket.lower[drawn] <= bracket.upper[drawn] * (1 + 1e-9))
    # The norm of a mean is no more than the mean of the norms, and no less than its share of one.
    squares = np.stack([run.fil().upper[drawn] ** 2 for run in runs])
    upper = bracket.upper[drawn]
    assert np.all(upper**2 <= squares.mean(0) * (1 + 1e-9))
    assert np.all(upper**2 >= squares.max(0) / 3 * (1 - 1e-6))
    assert np.all(upper <= np.asarray(merged.records("fil"))[drawn] * (1 + 1e-6))
    with pytest.raises(InputError, match="no sketches"):
        merge_runs([_run(), _run(seed=1)]).fil()


def test_losses_are_known_by_name_options_and_weights():
    named = [
        "cross_entropy",
        nn.CrossEntropyLoss(),
        nn.CrossEntropyLoss(label_smoothing=0.1),
        nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0])),
        nn.CrossEntropyLoss(weight=torch.tensor([2.0, 1.0])),
        nn.MSELoss(),
        nn.functional.nll_loss,
    ]
    assert len({loss_name(loss) for loss in named}) == len(named)
    assert loss_name(nn.CrossEntropyLoss()) == loss_name(nn.CrossEntropyLoss())


def test_settings_become_what_a_file_can_hold():
    assert plain_setting(np.float32(0.5)) == 0.5
    assert plain_setting(torch.arange(3)) == [0.0, 1.0, 2.0]
    assert plain_setting(nn.ReLU()) == "ReLU"  # without an address, which differs between runs


def test_runs_that_kept_different_things_are_not_averaged():
    runs = [_run(), _run(seed=1, sketch=2)]
    with pytest.raises(InputError, match="Only some of the runs stored sketches"):
        merge_runs(runs)


def test_a_state_of_other_shapes_is_refused():
    run = _run()
    state = run.state_dict()
    name = next(key for key, value in state.items() if key != "facts" and value.dim())
    state[name] = state[name][:-1]
    with pytest.raises(InputError, match=rf"{name} of the state has the shape"):
        run.load_state_dict(state)
