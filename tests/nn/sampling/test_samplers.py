"""How batches are drawn, and how wrong ones are noticed."""

import warnings

import pytest
import torch

from seepage.errors import InputError
from seepage.nn.sampling.batch_check import SamplerCheck, SamplerWarning
from seepage.nn.sampling.samplers import FixedSizeSampler, PoissonSampler, make_sampler

N, B = 400, 20


def test_poisson_batches_have_the_right_rate_and_vary():
    sampler = PoissonSampler(N, B, seed=0)
    sizes = torch.tensor([len(sampler.batch(t)) for t in range(500)]).double()
    assert float(sizes.mean()) == pytest.approx(B, abs=0.8)
    assert float(sizes.var()) == pytest.approx(B * (1 - B / N), rel=0.25)


def test_fixed_batches_are_uniform_sets():
    sampler = FixedSizeSampler(N, B, seed=0)
    counts = torch.zeros(N)
    for t in range(400):
        batch = sampler.batch(t)
        assert len(batch) == len(torch.unique(batch)) == B
        counts[batch] += 1
    # Binomial with mean 20: nobody is left out or favoured.
    assert float(counts.var()) == pytest.approx(20 * (1 - B / N), rel=0.25)


def test_without_a_seed_every_sampler_has_batches_of_its_own():
    first, other = (FixedSizeSampler(N, B) for _ in range(2))
    assert torch.equal(first.batch(7), first.batch(7))
    assert not torch.equal(first.batch(7), other.batch(7))


@pytest.mark.parametrize("kind", ["poisson", "fixed"])
def test_batches_depend_on_seed_and_step_only(kind):
    first, again = (make_sampler(kind, N, B, seed=5) for _ in range(2))
    assert torch.equal(first.batch(7), again.batch(7))
    assert not torch.equal(first.batch(7), first.batch(8))
    assert not torch.equal(first.batch(7), make_sampler(kind, N, B, seed=6).batch(7))


def test_a_whole_batch_is_everybody():
    assert PoissonSampler(9, 9, 0).batch(0).tolist() == list(range(9))
    assert FixedSizeSampler(9, 9, 0).batch(0).tolist() == list(range(9))


@pytest.mark.parametrize("size", [0, 10])
def test_impossible_sizes_are_refused(size):
    with pytest.raises(InputError, match="batch_size"):
        PoissonSampler(9, size, 0)


def test_unknown_samplers_are_refused():
    with pytest.raises(InputError, match="did you mean 'poisson'"):
        make_sampler("poison", 9, 3, 0)


def _watch(sampler, batches, size=B):
    check = SamplerCheck(sampler, size, N)
    seen = torch.zeros(N, dtype=torch.bool)
    repeats = 0
    for batch in batches:
        repeats += int(seen[batch].sum())
        seen[batch] = True
        check.step(len(batch), repeats)
    return check


def _shuffled(epochs, seed=0):
    source = torch.Generator().manual_seed(seed)
    return [b for _ in range(epochs) for b in torch.randperm(N, generator=source).split(B)]


@pytest.mark.parametrize("seed", range(40))
def test_honest_samplers_raise_no_suspicion(seed):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for kind in ("poisson", "fixed"):
            sampler = make_sampler(kind, N, B, seed)
            _watch(kind, [sampler.batch(t) for t in range(60)])


def test_large_poisson_batches_that_repeat_few_records_are_honest():
    """Two batches larger than usual were held to the repetitions of batches of the mean size."""
    check = SamplerCheck("poisson", 0.05 * 1797, 1797)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check.step(109, 0)
        check.step(108, 7)


@pytest.mark.parametrize("sampler", ["poisson", "fixed"])
def test_shuffled_epochs_are_noticed(sampler):
    with pytest.warns(SamplerWarning, match=r"shuffled epochs|12 batches in a row"):
        _watch(sampler, _shuffled(1))


def test_batches_of_one_size_are_no_poisson_batches():
    fixed = FixedSizeSampler(N, B, 0)
    with pytest.warns(SamplerWarning, match="12 batches in a row had 20 records"):
        _watch("poisson", [fixed.batch(t) for t in range(12)])


def test_varying_batches_are_not_of_fixed_size():
    poisson = PoissonSampler(N, B, 0)
    with pytest.warns(SamplerWarning, match="size is not fixed"):
        _watch("fixed", [poisson.batch(t) for t in range(5)])


def test_batches_of_another_rate_are_noticed():
    poisson = PoissonSampler(N, 60, 0)
    with pytest.warns(SamplerWarning, match="records on average, not 20"):
        _watch("poisson", [poisson.batch(t) for t in range(5)])


def test_nothing_is_asked_of_other_batches():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check = _watch("other", [*_shuffled(1), torch.arange(3)])
    assert not check.watching


def test_a_warning_is_given_once_and_survives_storage():
    fixed = FixedSizeSampler(N, B, 0)
    batches = [fixed.batch(t) for t in range(30)]
    with pytest.warns(SamplerWarning) as told:
        check = _watch("poisson", batches)
    assert len(told) == 1
    again = SamplerCheck("poisson", B, N)
    again.take(check.facts())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again.step(B, 0)
