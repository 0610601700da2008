"""Remedies compared over a run in which one layer alone tells the property."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import seepage as sp
from seepage.attacks.remedies_compared import Span
from seepage.errors import InputError
from seepage.layers import UpdateRemedy


class TwoEars(nn.Module):
    """One layer hears of the property, the other of the task; both have a say."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.trait, self.task = nn.Linear(4, 2, bias=False), nn.Linear(4, 2)
        with torch.no_grad():
            self.trait.weight.mul_(0.05)

    def forward(self, x):
        return self.trait(x[:, :4]) + self.task(x[:, 4:])


def side(n, seed):
    draw = torch.Generator().manual_seed(seed)
    y, trait = torch.arange(n) % 2, (torch.arange(n) % 4 < 2).long()
    x = torch.randn(n, 8, generator=draw)
    x[:, :4] += (trait * (2 * y - 1))[:, None]  # of use to the task for those who have it
    x[:, 4:] += 1.5 * y[:, None]
    return x, y, trait.numpy()


OPTIONS = {
    "layers": "trait",
    "rounds": 30,
    "lr": 0.1,
    "batch_size": 12,
    "snapshots": 3,
    "measured": 30,
    "family": "logistic",
}


def compared(**options):
    given = OPTIONS | options
    return sp.attacks.compare_remedies(
        TwoEars(), "cross_entropy", side(300, 1), side(300, 2), side(200, 3)[:2], **given
    )


@pytest.mark.minutes
def test_what_is_done_about_the_layer_that_tells_helps_and_elsewhere_it_does_not():
    remedies = [
        UpdateRemedy.noise("trait", 5.0),
        UpdateRemedy.freeze("trait"),
        UpdateRemedy.rarely("trait", 3),
        UpdateRemedy.freeze("task"),
    ]
    found = compared(remedies=remedies)
    none, noise, frozen, rarely, elsewhere = found.outcomes
    assert none.auc.value > 0.95
    assert none.v_information.value > 0.5
    assert none.accuracy.value > 0.8
    assert found.protect == ("trait",)
    assert frozen.auc.value < 0.75
    assert frozen.v_information.value < none.v_information.value / 2
    assert noise.v_information.value < none.v_information.value
    assert noise.accuracy.value < none.accuracy.value
    assert rarely.auc.value < none.auc.value
    assert rarely.v_information.value < none.v_information.value
    assert elsewhere.auc.value > 0.95
    assert elsewhere.accuracy.value < none.accuracy.value - 0.1
    assert [one.sent for one in found.outcomes] == [18, 18, 10, 13, 8]
    assert none.auc.low < none.auc.value <= none.auc.high
    text = str(found)
    assert "trait frozen" in text
    assert "do not publish" in text
    assert found.table().column_names[:2] == ["remedy", "auc"]
    assert len(found.plot()) == 3


@pytest.mark.minutes
def test_the_usual_remedies_come_by_default_and_runs_are_averaged():
    runs = [compared(seed=seed, rounds=6, measured=20, known=5, seen=5) for seed in range(3)]
    names = [one.name for one in runs[0].outcomes]
    assert names[0] == "as it is"
    assert names[1].startswith("noise ")
    assert names[2:] == ["trait frozen", "trait sent every 5 rounds", "low rank (4) of trait"]
    last = [run.outcomes[2].accuracy.value for run in runs]
    mean = sp.attacks.RemedyComparison.averaged(runs)
    frozen = next(one for one in mean.outcomes if one.name == "trait frozen")
    assert frozen.runs == 3
    assert np.isclose(frozen.accuracy.value, np.mean(last))
    reach = 4.302653 * np.std(last, ddof=1) / np.sqrt(3)
    assert np.isclose(frozen.accuracy.high - frozen.accuracy.value, reach, rtol=1e-5)
    assert "over 3 runs" in repr(mean)
    with pytest.raises(InputError, match="Only comparisons of single runs"):
        sp.attacks.RemedyComparison.averaged([mean])


def test_a_single_run_has_no_interval_to_print():
    assert str(Span(0.5, float("nan"), float("nan"))) == "0.500"


def test_what_cannot_be_is_refused():
    for options, words in (
        ({"layers": "trail"}, "did you mean 'trait'"),
        ({"rounds": 2, "snapshots": 3}, "snapshots must not exceed rounds"),
        ({"measured": 0}, "at least 1"),
    ):
        with pytest.raises(InputError, match=words):
            compared(**options)
    with pytest.raises(InputError, match="The client's data must be a tuple of inputs, classes"):
        sp.attacks.compare_remedies(
            TwoEars(), "cross_entropy", side(20, 1), side(20, 2)[:2], side(20, 3)[:2], **OPTIONS
        )
