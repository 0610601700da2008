"""The accountant against a dense oracle, its errors' calibration, and its book-keeping."""

import math

import numpy as np
import pytest
import torch
from gradient_oracle import dense
from small_run import D, N, small_accountant, small_problem
from torch import nn

import seepage as sp
from sampled import sampled
from seepage.errors import InputError
from seepage.nn.accounting.accountant import FisherAccountant
from seepage.nn.accounting.joining import join_shares, merge_runs
from seepage.nn.problem.clipping import HardClip, SmoothClip
from seepage.nn.problem.views import Input
from seepage.nn.sampling.amplification import MixtureFactor
from seepage.nn.sampling.samplers import FixedSizeSampler, PoissonSampler


def _train(net, accountant, sampler, x, y, steps, lr=0.3, parts=1):
    """Train without noise (the oracle repeats it) and yield each step's batch before it."""
    for t in range(steps):
        index = sampler.batch(t)
        pieces = index.tensor_split(parts)
        for k, piece in enumerate(pieces):
            accountant.observe(piece, x[piece], y[piece], more=k < parts - 1)
        loss = nn.functional.cross_entropy(net(x[index]), y[index], reduction="sum")
        with torch.no_grad():
            for p, g in zip(
                net.parameters(), torch.autograd.grad(loss, list(net.parameters())), strict=True
            ):
                p -= lr * g / 4


def _truth(sampler, x, y, steps, clip, view, noise, kappa, lr=0.3):
    """Return Σ κ ‖J̃‖_F²/s² of every record over the same run, dense and one by one."""
    net, _, _ = small_problem()
    total = np.zeros(N)
    for t in range(steps):
        index = sampler.batch(t)
        if len(index):
            found = dense(net, "cross_entropy", view, x[index], y[index])
            g, J = found.clipped(clip)
            traces = J.square().sum((1, 2)) / noise**2
            total[index.numpy()] += (kappa(g.norm(dim=1)) * traces).detach().numpy()
        loss = nn.functional.cross_entropy(net(x[index]), y[index], reduction="sum")
        with torch.no_grad():
            for p, g in zip(
                net.parameters(), torch.autograd.grad(loss, list(net.parameters())), strict=True
            ):
                p -= lr * g / 4
    return total


CASES = {
    "hard, poisson": ("hard", HardClip(0.5), "poisson"),
    "smooth, poisson": ("smooth", SmoothClip(0.5), "poisson"),
    "smooth, fixed": ("smooth", SmoothClip(0.5), "fixed"),
}


@pytest.mark.parametrize("case", sampled(list(CASES), 2))
def test_a_run_adds_up_to_the_dense_sum(case):
    # Of a single unknown a probe of the record's side knows the trace exactly.
    name, clip, sampling = CASES[case]
    mask = torch.zeros(D, dtype=torch.bool)
    mask[2] = True
    net, x, y = small_problem()
    kind = PoissonSampler if sampling == "poisson" else FixedSizeSampler
    sampler = kind(N, 4, seed=3)
    accountant = small_accountant(net, clip=name, sampler=sampling, view=Input(mask))
    _train(net, accountant, sampler, x, y, 6)
    noise = 0.7 * clip.max_grad_norm
    mixture = MixtureFactor(4 / N)
    extra = 0.0 if sampling == "poisson" else clip.sensitivity

    truth = _truth(
        sampler, x, y, 6, clip, Input(mask), noise, lambda c: mixture((c + extra) / noise)
    )
    plain = _truth(sampler, x, y, 6, clip, Input(mask), noise, lambda c: 1.0)
    for total in (truth, plain):
        total[total == 0] = np.nan  # never drawn
    assert np.asarray(accountant.records("dfil")) == pytest.approx(
        np.sqrt(truth), rel=1e-9, nan_ok=True
    )
    assert np.asarray(accountant.records("dfil", amplified=False)) == pytest.approx(
        np.sqrt(plain), rel=1e-9, nan_ok=True
    )
    assert accountant.unknowns == 1


def test_unclipped_gradients_count_in_full():
    net, x, y = small_problem()
    accountant = small_accountant(net, clip="none", probes=60)
    accountant.observe([2, 5, 6], x[[2, 5, 6]], y[[2, 5, 6]])
    J = dense(net, "cross_entropy", Input(), x[[2, 5, 6]], y[[2, 5, 6]]).J
    truth = np.sqrt(J.square().sum((1, 2)).numpy() / D) / 0.7
    rows = accountant.records("dfil")
    away = np.abs(np.asarray(rows)[[2, 5, 6]] - truth)
    assert np.all(away < 4 * np.asarray(rows.standard_errors)[[2, 5, 6]])
    assert np.asarray(rows) == pytest.approx(
        np.asarray(accountant.records("dfil", amplified=False)), nan_ok=True
    )
    assert accountant.privacy().epsilon == math.inf
    with pytest.raises(InputError, match="Without clipping there is no differential privacy"):
        accountant.individual_privacy()


@pytest.mark.slow
def test_standard_errors_are_calibrated():
    n, steps = 150, 20
    torch.manual_seed(1)
    net = small_problem()[0]
    x, y = torch.randn(n, D, dtype=torch.float64), torch.randint(3, (n,))
    found = dense(net, "cross_entropy", Input(), x, y)
    one_step = np.sqrt(found.clipped(HardClip(0.5))[1].square().sum((1, 2)).numpy() / D) / 0.35
    truth = math.sqrt(steps) * one_step  # the parameters stay as they are
    covered, ratios = [], []
    for seed in range(8):
        accountant = small_accountant(net, n=n, sample_rate=1.0, batch_size=None, seed=seed)
        for _ in range(steps):
            accountant.observe(range(n), x, y)
        rows = accountant.records("dfil")
        low, high = rows.interval(0.95)
        covered.append((low <= truth) & (truth <= high))
        ratios.append(np.asarray(rows) / truth)
    assert np.mean(ratios) == pytest.approx(1.0, abs=0.01)
    assert 0.925 < np.mean(covered) < 0.975


@pytest.mark.slow
def test_a_single_probe_errs_on_the_large_side():
    net, x, y = small_problem()
    few = [
        small_accountant(net, sample_rate=1.0, batch_size=None, seed=s, probes=1) for s in range(16)
    ]
    for accountant in few:
        accountant.observe(range(N), x, y)
    assert np.isnan(
        few[0].records("dfil").standard_errors
    ).all()  # one look says nothing of its error
    for accountant in few:
        for _ in range(9):
            accountant.observe(range(N), x, y)
    spread = np.std([np.asarray(a.records("dfil")) for a in few], axis=0)
    stated = np.mean([a.records("dfil").standard_errors for a in few], axis=0)
    assert np.median(stated / spread) == pytest.approx(1.0, abs=0.3)


@pytest.mark.slow
def test_parts_of_a_batch_are_one_step():
    runs = []
    for parts in (1, 3):
        net, x, y = small_problem()
        accountant = small_accountant(net)
        _train(net, accountant, PoissonSampler(N, 4, 1), x, y, 5, parts=parts)
        runs.append(accountant)
    assert runs[0].ledger == runs[1].ledger
    assert np.asarray(runs[0].records("dfil")) == pytest.approx(
        np.asarray(runs[1].records("dfil")), rel=1e-9, nan_ok=True
    )


def test_observing_can_return_the_clipped_sum():
    net, x, y = small_problem()
    step = small_accountant(net, clip="smooth").observe(
        [1, 5, 7], x[[1, 5, 7]], y[[1, 5, 7]], update=True
    )
    found = dense(net, "cross_entropy", Input(), x[[1, 5, 7]], y[[1, 5, 7]])
    want = found.clipped(SmoothClip(0.5))[0].sum(0)
    assert torch.cat([g.flatten() for g in step.gradient.values()]).tolist() == pytest.approx(
        want.tolist()
    )


def test_noise_may_change_between_steps():
    net, x, y = small_problem()
    accountant = small_accountant(net, sample_rate=1.0, batch_size=None)
    accountant.observe(range(N), x, y)
    accountant.noise_multiplier = 1e6
    accountant.observe(range(N), x, y)
    assert [entry.noise_multiplier for entry in accountant.ledger] == [0.7, 1e6]
    alone = small_accountant(net, sample_rate=1.0, batch_size=None)
    alone.observe(range(N), x, y)
    assert np.asarray(accountant.records("dfil")) == pytest.approx(
        np.asarray(alone.records("dfil")), rel=1e-6
    )


def test_fil_is_bounded_by_the_root_of_the_trace():
    net, x, y = small_problem()
    accountant = small_accountant(net, sample_rate=1.0, batch_size=None, probes=40)
    accountant.observe(range(N), x, y)
    bound = accountant.records("fil")
    assert np.asarray(bound) == pytest.approx(math.sqrt(D) * np.asarray(accountant.records("dfil")))
    _, J = dense(net, "cross_entropy", Input(), x, y).clipped(HardClip(0.5))
    fil = torch.linalg.matrix_norm(J, 2).numpy() / 0.35
    assert np.all(fil <= np.asarray(bound) + 4 * np.asarray(bound.standard_errors))


def test_bounds_carry_errors_and_conditions():
    net, x, y = small_problem()
    accountant = small_accountant(net)
    _train(net, accountant, PoissonSampler(N, 4, 1), x, y, 8)
    rows = accountant.records("dfil")
    bound = rows.mse_bound()
    seen = np.asarray(rows) > 0
    assert np.asarray(bound)[seen] == pytest.approx(np.asarray(rows)[seen] ** -2.0)
    relative = np.asarray(rows.standard_errors)[seen] / np.asarray(rows)[seen]
    assert np.asarray(bound.standard_errors)[seen] / np.asarray(bound)[seen] == pytest.approx(
        2 * relative
    )
    assert any("which records were in a batch" in text for text in bound.assumptions)
    assert not any("minimiser" in text for text in bound.assumptions)
    hidden_or_not = accountant.records("dfil", amplified=False).mse_bound().assumptions
    assert not any("which records" in text for text in hidden_or_not)
    assert bound.top(2).labels().tolist() == rows.top(2).labels().tolist()
    assert rows.table("pandas").columns.tolist() == ["row", "dfil", "standard_error"]
    assert np.asarray(rows.std_bound())[seen] == pytest.approx(np.asarray(rows)[seen] ** -1.0)
    assert accountant.worst() == pytest.approx(np.asarray(rows).max())


@pytest.mark.slow
def test_a_state_goes_on_where_it_was_taken():
    whole_net, x, y = small_problem()
    whole = small_accountant(whole_net, sketch=3)
    _train(whole_net, whole, PoissonSampler(N, 4, 1), x, y, 8)

    net, x, y = small_problem()
    first = small_accountant(net, sketch=3)
    sampler = PoissonSampler(N, 4, 1)
    _train(net, first, sampler, x, y, 4)
    second = small_accountant(net, sketch=3)
    second.load_state_dict(first.state_dict())
    sampler.batch, old = (lambda t: old(t + 4)), sampler.batch
    _train(net, second, sampler, x, y, 4)
    assert second.steps == 8
    for name, value in whole.state_dict().items():
        assert (
            value == second.state_dict()[name]
            if name == "facts"
            else torch.equal(value, second.state_dict()[name])
        )


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"n": N + 1}, "records = 12"),
        ({"probes": 3}, "probes = 2"),
        ({"individual": False}, "store different quantities"),
        ({"view": Input(torch.tensor([True, False, False, False, False]))}, "view ="),
        ({"sketch": 2}, "sketched = None"),
    ],
)
def test_states_of_other_runs_are_refused(other, words):
    net, _, _ = small_problem()
    state = small_accountant(net).state_dict()
    with pytest.raises(InputError, match=words):
        small_accountant(net, **other).load_state_dict(state)


@pytest.mark.slow
def test_shares_of_one_run_join():
    net, x, y = small_problem()
    whole = small_accountant(net)
    shares = [small_accountant(net), small_accountant(net)]
    for t in range(5):
        index = PoissonSampler(N, 6, 2).batch(t)
        whole.observe(index, x[index], y[index])
        for rank, share in enumerate(shares):
            mine = index[index % 2 == rank]
            share.observe(mine, x[mine], y[mine])
    joined = join_shares(shares)
    assert np.asarray(joined.records("dfil")) == pytest.approx(
        np.asarray(whole.records("dfil")), rel=1e-12, nan_ok=True
    )
    assert joined.privacy().epsilon == whole.privacy().epsilon
    costs = joined.individual_privacy().costs
    assert costs == pytest.approx(whole.individual_privacy().costs, rel=1e-12)
    shares[0].observe([], x[:0], y[:0])
    with pytest.raises(InputError, match="took different steps"):
        join_shares(shares)
    with pytest.raises(InputError, match="no shares"):
        join_shares([])


@pytest.mark.slow
def test_runs_average():
    runs = []
    for seed in range(4):
        net, x, y = small_problem()
        accountant = small_accountant(net, seed=seed)
        _train(net, accountant, PoissonSampler(N, 4, seed), x, y, 6)
        runs.append(accountant)
    merged = merge_runs(runs)
    squares = np.stack([np.asarray(run.records("dfil")) ** 2 for run in runs])
    assert not np.isnan(squares).all(0).any()  # every record was in a batch of some run
    squares = np.nan_to_num(squares)  # and gave nothing away in the others
    assert np.asarray(merged.records("dfil")) ** 2 == pytest.approx(squares.mean(0))
    error = squares.std(0, ddof=1) / 2 / (2 * np.asarray(merged.records("dfil")))
    assert np.asarray(merged.records("dfil").standard_errors) == pytest.approx(error)
    assert merged.privacy(1e-3).epsilon == runs[0].privacy(1e-3).epsilon
    with pytest.raises(InputError, match="at least two"):
        merge_runs(runs[:1])
    net, x, y = small_problem()
    with pytest.raises(InputError, match="took different steps"):
        merge_runs([runs[0], small_accountant(net)])


def test_individual_privacy_needs_poisson_batches():
    net, x, y = small_problem()
    fixed = small_accountant(net, sampler="fixed")
    _train(net, fixed, FixedSizeSampler(N, 4, 0), x, y, 2)
    with pytest.raises(InputError, match="Poisson"):
        fixed.individual_privacy()
    with pytest.raises(InputError, match="individual=False"):
        small_accountant(net, individual=False).individual_privacy()


def test_an_overflow_is_told_when_the_rows_are_read():
    net, x, y = small_problem()
    accountant = small_accountant(net, probes=1)
    accountant.observe([3], x[[3]], y[[3]])
    one = torch.ones(1)
    accountant.run.sums.add(torch.tensor([3]), torch.tensor([[math.inf]]), one, one, 1.0)
    with pytest.raises(InputError, match="record 3"):
        accountant.records("dfil")


def test_a_run_without_steps_has_leaked_nothing():
    accountant = small_accountant(small_problem()[0])
    assert accountant.worst() == 0.0
    assert str(accountant.ledger) == "no steps"
    with pytest.raises(InputError, match="no sketches"):
        accountant.fil()
    with pytest.raises(InputError, match="No record has been observed"):
        accountant.records("dfil")


@pytest.mark.parametrize(("steps", "spent"), [(4, 0.5), (None, 6 / math.pi**2 * 1.25)])
def test_the_failure_probability_of_theorem_4_is_told(steps, spent):
    net, x, y = small_problem()
    given = {"delta": 1e-3, "steps": steps}
    runs = [small_accountant(net, amplification="theorem4", seed=s, **given) for s in (0, 1)]
    for run in runs:
        for _ in range(2):
            run.observe([1, 2], x[1:3], y[1:3])
    for run in (runs[0], merge_runs(runs), join_shares(runs)):
        assert run.failure_probability == pytest.approx(1e-3 * spent)
        told = f"of the run is at most {1e-3 * spent:.3g}."
        assert any(told in text for text in run.records("dfil").conditions)
        assert any(told in text for text in run.records("dfil").mse_bound().assumptions)
        assert not any(
            "theorem 4" in text for text in run.records("dfil", amplified=False).conditions
        )
    mixture = small_accountant(net, **given)
    mixture.observe([1, 2], x[1:3], y[1:3])
    assert mixture.failure_probability == 0.0
    assert not any("theorem 4" in text for text in mixture.records("dfil").conditions)


def test_public_names():
    assert sp.nn.FisherAccountant is FisherAccountant
    assert sp.nn.merge_runs is merge_runs
