"""The clip's exact derivative from a sample of steps, against every step measured exactly."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import seepage as sp
from seepage.nn.accounting.radial_part import RadialSample

torch.set_num_threads(1)
WIDTH, EVERY = 5, RadialSample(1).every


def run(
    clip_derivative: str, seed: int, steps: int, n: int = 40, **options: object
) -> sp.nn.FisherAccountant:
    """Observe a network that is trained a little at every step."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, 3))
    x, y = torch.randn(n, WIDTH), torch.randint(3, (n,))
    how = {"max_grad_norm": 0.8, "clip": "hard", "probes": 2} | options
    accountant = sp.nn.FisherAccountant(
        net,
        "cross_entropy",
        n=n,
        batch_size=n / 2,
        noise_multiplier=2.0,
        clip_derivative=clip_derivative,
        individual=False,
        seed=seed,
        **how,
    )
    batches = torch.Generator().manual_seed(5)
    for _ in range(steps):
        index = torch.nonzero(torch.rand(n, generator=batches) < 0.5).flatten()
        seen = accountant.observe(index, x[index], y[index], update=True)
        with torch.no_grad():
            for name, p in net.named_parameters():
                p -= 0.01 * seen.gradient[name] / n
    return accountant


def test_the_bound_is_never_below_and_the_sample_lies_at_the_truth() -> None:
    exact, bound, sampled = (
        run(kind, 1, 3 * EVERY, probes=16).information()[0].numpy()
        for kind in ("exact", "conservative", "sampled")
    )
    assert np.mean(bound) > 1.05 * np.mean(exact)  # otherwise there is nothing to test
    assert abs(np.mean(sampled) / np.mean(exact) - 1) < 0.04


@pytest.mark.minutes
@pytest.mark.parametrize(("clip", "probes"), [("hard", 2), ("smooth", 1)])
def test_intervals_cover_the_exactly_clipped_run(clip: str, probes: int) -> None:
    steps, runs = 4 * EVERY, 50
    how = {"clip": clip, "n": 200}
    truth = np.mean(
        [run("exact", 1000 + k, steps, probes=2, **how).information()[0].numpy() for k in range(8)],
        axis=0,
    )
    covered, ratio = [], []
    for seed in range(runs):
        found = run("sampled", seed, steps, probes=probes, **how).records("dfil", amplified=True)
        true = np.sqrt(truth / WIDTH)
        covered.append(np.mean(np.abs(found.values - true) < 1.96 * found.standard_errors))
        ratio.append(np.mean(found.values**2 / true**2))
    share, error = np.mean(covered), np.std(covered) / runs**0.5
    assert share + 2 * error > 0.93, (share, error)
    assert abs(np.mean(ratio) - 1) < 3 * np.std(ratio) / runs**0.5 + 0.01


def sampled_totals(
    seed: int, whole: np.ndarray, radial: np.ndarray, every: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return a sampled run's totals and their variances, given ``S`` and ``r`` of every step."""
    sample, n = RadialSample(whole.shape[1], every), whole.shape[1]
    everyone, factors = torch.arange(n), torch.full((n,), 0.5, dtype=torch.float64)
    for step, (S, r) in enumerate(zip(torch.tensor(whole), torch.tensor(radial), strict=True)):
        probability = sample.probability(step)
        seen = r if sample.due(step, seed) else None
        sample.add(everyone, S, seen, factors, probability)
    removed, variance = (np.asarray(part) for part in sample.moments(amplified=True))
    return whole.sum(0) / 2 - removed, variance


def test_totals_are_unbiased_because_none_is_cut_at_zero() -> None:
    rng = np.random.default_rng(0)
    steps, n, every = 12, 4, 4
    whole = rng.gamma(3, 1, (steps, n))  # S, with a = 1
    radial = whole * np.array([0.2, 0.6, 0.9, 1.0])  # r
    found = [sampled_totals(seed, whole, radial, every) for seed in range(1500)]
    totals, variances = (np.array(part) for part in zip(*found, strict=True))
    truth = (whole - radial).sum(0) / 2
    error = totals.std(0) / len(found) ** 0.5
    assert np.all(np.abs(totals.mean(0) - truth) < 4 * error)
    assert np.mean(totals < 0) > 0.1
    cut = totals.clip(min=0).mean(0)
    assert np.all(cut[2:] > truth[2:] + 4 * error[2:])  # what cutting them would do
    # The variances are pooled over records: right for all of them together.
    assert variances.mean() == pytest.approx(totals.var(0).mean(), rel=0.25)


def test_the_first_step_is_measured_for_certain_and_counts_once() -> None:
    whole, radial = np.array([[2.0, 5.0]]), np.array([[1.5, 1.0]])
    for seed in range(8):
        totals, variances = sampled_totals(seed, whole, radial, every=2)
        np.testing.assert_allclose(totals, [0.25, 2.0])
        np.testing.assert_array_equal(variances, 0.0)


@pytest.mark.parametrize("probes", [1, 2])
def test_no_record_that_took_part_is_shown_as_zero(probes: int) -> None:
    accountant = run("sampled", 2, 6, probes=probes)
    removed = accountant.radial.amplified.removed
    total = accountant.information()[0]
    removed[0] += 2 * total[0]  # as a measured step with a large radial part does
    removed[1] += total[1]
    assert float(accountant.information()[0][0]) < 0
    found = accountant.records("dfil")
    assert np.all(found.values > 0)
    assert np.all(found.standard_errors[:2] > 0)
    error = np.sqrt(accountant.information()[1].numpy()[:2] / WIDTH)
    np.testing.assert_allclose(found.values[:2] ** 2 * WIDTH**0.5, error)  # T = s
    assert accountant.worst() == pytest.approx(found.values.max())
    # Runs are averaged before anything is cut.
    other = run("sampled", 3, 6, probes=probes)
    both = sp.nn.merge_runs([accountant, other])
    mean = (accountant.information()[0] + other.information()[0]) / 2
    torch.testing.assert_close(both.information()[0], mean)


def test_a_sampled_run_resumes_and_states_its_sample() -> None:
    first = run("sampled", 2, 6)
    state = first.state_dict()
    again = run("sampled", 2, 0)
    again.load_state_dict(state)
    np.testing.assert_array_equal(again.information()[0], first.information()[0])
    assert any(f"one in {EVERY} steps" in text for text in again.records("dfil").conditions)
    with pytest.raises(sp.InputError, match="clip_derivative"):
        run("conservative", 2, 0).load_state_dict(state)
    with pytest.raises(sp.InputError, match="cannot be combined"):
        run("sampled", 2, 0, sketch=2)


@pytest.mark.filterwarnings("ignore::seepage.nn.KinkWarning")
def test_without_a_clip_nothing_is_sampled() -> None:
    plain, sampled = (
        run(kind, 1, 4, clip="none").information()[0] for kind in ("conservative", "sampled")
    )
    torch.testing.assert_close(sampled, plain)
