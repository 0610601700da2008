"""Bounds and guarantees of one noisy gradient of a network: the same calls as for linear models."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import seepage as sp
from seepage import privacy
from seepage.bounds import GaussianPrior

BATCH, WIDTH = 9, 4
DTYPES = (torch.float64, torch.float32)


def _leak(clip="smooth", max_grad_norm=0.5, dtype=torch.float64):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(WIDTH, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3)).to(
        dtype
    )
    x, y = (torch.rand(BATCH, WIDTH) * 2 - 1).to(dtype), torch.randint(0, 3, (BATCH,))
    return sp.nn.leakage(
        net, "cross_entropy", x, y, noise_multiplier=2.0, max_grad_norm=max_grad_norm, clip=clip
    )


@pytest.mark.parametrize(("clip", "largest"), [("hard", 0.5), ("smooth", 1.11522 * 0.5)])
def test_the_clip_is_the_promise(clip, largest):
    leak = _leak(clip)
    found = privacy.output_sensitivity(leak)
    assert (found.value, found.guarantee) == (pytest.approx(2 * largest), True)
    assert privacy.output_perturbation(leak).mu == pytest.approx(2 * largest / (2.0 * 0.5))


def test_replacing_a_record_moves_the_gradient_no_further_than_the_sensitivity():
    leak = _leak()
    moves = leak.refits().moves(3, np.random.default_rng(0).normal(size=(50, WIDTH)) * 10)
    assert np.linalg.norm(moves, axis=1).max() <= privacy.output_sensitivity(leak).value


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_line_of_the_table_applies(dtype):
    table = sp.guarantees(_leak(dtype=dtype), domain=(-1, 1), draws=8)
    # Finite changes of a record are known of linear models only.
    refused = [line.name.partition(",")[0] for line in table.rows if not line.applies]
    assert refused == ["advantage", "advantage", "gain"]
    lines = [line for line in table.rows if line.applies]
    assert all(math.isfinite(line.value) and line.value > 0 for line in lines)
    unbiased = [line.value for line in table.rows if line.adversary == "an unbiased adversary"][:3]
    assert unbiased == sorted(unbiased)
    least, finite = [line.value for line in table.rows if "one cell" in line.adversary]
    assert finite >= least
    assert "Only the noisy gradient of one step is published." in str(table)


@pytest.mark.slow
def test_single_precision_tells_the_same():
    kept, found = (sp.guarantees(_leak(dtype=kind), row=2, draws=8) for kind in DTYPES)
    for line, same in zip(found.rows, kept.rows, strict=True):
        assert line.applies == same.applies
        if same.applies:
            assert line.value == pytest.approx(same.value, rel=1e-3)


@pytest.mark.slow
def test_without_a_clip_nothing_is_promised():
    table = sp.guarantees(_leak(max_grad_norm=None), draws=8)
    refused = {line.name for line in table.rows if not line.applies}
    promised = {"Rényi differential privacy", "two points", "advantage, any record"}
    assert {*promised, "advantage, this record", "advantage, label of this record"} <= refused
    assert len(refused) == 6
    stated = sp.guarantees(_leak(max_grad_norm=None), dp=privacy.GaussianDP(0.5), draws=8)
    assert all(line.applies for line in stated.rows if line.name in promised)


@pytest.mark.slow
def test_blocks_of_a_batch():
    leak = _leak()
    J = _dense(leak)
    rows, columns = [1, 4], [0, 2]
    wanted = [row * WIDTH + column for row in rows for column in columns]
    inverse = np.linalg.inv(J[:, wanted].T @ J[:, wanted])
    found = sp.bounds.cramer_rao(leak, rows, columns)
    assert float(found) == pytest.approx(np.trace(inverse) / len(wanted), rel=1e-8)
    whole = np.linalg.inv(J.T @ J)  # more numbers are released than there are unknowns
    alone = float(sp.bounds.cramer_rao(leak, rows, columns, rest="unknown"))
    assert alone >= float(found)
    assert alone >= np.trace(whole[np.ix_(wanted, wanted)]) / len(wanted) * (1 - 1e-8)


def _dense(leak):
    unknowns, _ = leak.unknowns(None, False)
    rows = torch.arange(BATCH)
    units = torch.eye(BATCH * WIDTH, dtype=torch.float64).reshape(-1, BATCH, WIDTH)
    columns = [leak.jacobian.forward(unit, unknowns, rows).detach().numpy() for unit in units]
    return np.stack(columns, axis=1)


def test_what_an_embedding_cannot_be_asked_is_said():
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Embedding(7, 3), torch.nn.Flatten(), torch.nn.Linear(6, 2))
    tokens, y = torch.randint(0, 7, (5, 2)), torch.randint(0, 2, (5,))
    leak = sp.nn.leakage(
        net,
        "cross_entropy",
        tokens,
        y,
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        view=sp.nn.Embedding("0"),
    )
    with pytest.raises(sp.InputError, match="Finite changes of an embedding are not supported"):
        sp.bounds.hammersley_chapman_robbins(leak, 0, 0)
    with pytest.raises(sp.InputError, match="Finite changes of an embedding are not supported"):
        sp.bounds.van_trees_rows(leak, GaussianPrior(std=1.0), [0])
    table = sp.guarantees(leak, draws=4)
    assert table.tightest("an unbiased adversary").applies
