"""Settings and batches that the accountant refuses, before anything is counted."""

import math

import pytest
import torch
from small_run import small_accountant, small_problem

from seepage.errors import InputError


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"batch_size": None}, "exactly one of batch_size and sample_rate"),
        ({"sample_rate": 0.5}, "exactly one of batch_size and sample_rate"),
        ({"batch_size": 13}, "sampling rate"),
        ({"n": 0}, "number of training records"),
        ({"probes": 0}, "probes"),
        ({"sampler": "poison"}, "did you mean 'poisson'"),
        ({"clip": "soft"}, "clip must be 'hard', 'smooth' or 'none', not"),
        ({"amplification": "both"}, "amplification must be .*, not .both."),
        ({"max_grad_norm": 0.0}, "max_grad_norm"),
        ({"sketch": 2, "sketch_records": [99]}, "sketch_records"),
        ({"sketch": 2, "probes": 1}, "at least two probes"),
        ({"noise_multiplier": "1"}, "noise_multiplier must be a finite number, not '1'"),
        ({"noise_multiplier": -1.0}, "above zero"),
        ({"amplification": "theorem4", "steps": 0}, "number of steps"),
    ],
)
def test_bad_settings_are_refused(change, words):
    net, _, _ = small_problem()
    with pytest.raises(InputError, match=words):
        small_accountant(net, **change)


@pytest.mark.parametrize(
    ("index", "words"),
    [
        ([0, 1], "names 2 records, but the batch has 3"),
        ([0, 1, 12], "no record 12"),
        ([-1, 1, 2], "no record -1"),
        ([4, 4, 5], "Record 4 is in the batch 2 times"),
        ([0.0, 1.7, 2.0], "whole numbers, not as float32"),
        ([True, False, True], "not a boolean mask"),
    ],
)
def test_bad_batches_are_refused(index, words):
    net, x, y = small_problem()
    with pytest.raises(InputError, match=words):
        small_accountant(net).observe(index, x[:3], y[:3])


def test_a_record_is_in_one_part_of_a_step():
    net, x, y = small_problem()
    accountant = small_accountant(net)
    accountant.observe([1, 2], x[1:3], y[1:3], more=True)
    before = accountant.run.sums.amplified.total.clone()
    with pytest.raises(InputError, match="Record 2 was already observed in this step"):
        accountant.observe([2, 3], x[2:4], y[2:4], more=True)
    assert torch.equal(accountant.run.sums.amplified.total, before)
    accountant.observe([3], x[3:4], y[3:4])
    accountant.observe([2], x[2:3], y[2:3])
    assert accountant.run.sums.uses[:4].tolist() == [0, 1, 2, 1]


def test_a_single_record_needs_no_failure_probability():
    net, x, y = small_problem()
    alone = small_accountant(net, n=1, sample_rate=0.5, batch_size=None)
    alone.observe([0], x[:1], y[:1])
    assert alone.records("dfil").shape == (1,)
    with pytest.raises(InputError, match=r"Name the measure: 'dfil'.* or 'fil'"):
        alone.rows()
    assert alone.privacy(1e-5).epsilon > 0
    with pytest.raises(InputError, match="Give delta"):
        alone.privacy()
    sized = small_accountant(net, n=1, batch_size=1)
    sized.observe([0], x[:1], y[:1])
    with pytest.raises(InputError, match="single record"):
        sized.privacy()
    with pytest.raises(InputError, match="requires delta"):
        small_accountant(net, n=1, sample_rate=0.5, batch_size=None, amplification="theorem4")


@pytest.mark.parametrize("noise", [0.0, "1", math.nan])
def test_no_noise_is_refused(noise):
    net, x, y = small_problem()
    accountant = small_accountant(net)
    accountant.noise_multiplier = noise
    with pytest.raises(InputError, match="noise_multiplier must be"):
        accountant.observe([1], x[:1], y[:1])


def test_only_what_the_sums_hold_is_measured():
    net, x, y = small_problem()
    accountant = small_accountant(net)
    accountant.observe([0, 1, 2], x[:3], y[:3])
    with pytest.raises(InputError, match="measure must be 'dfil' or 'fil', not 'plis'"):
        accountant.records(measure="plis")
