"""What a run promises follows from what was declared, and no attacker beats it.

The attackers here are likelihood-ratio tests with every other record's gradient known. They are
simulated from the definition of a step and share no code with the accountant.
"""

import json
import math

import numpy as np
import pytest
import torch
from scipy.stats import binom, norm
from torch import nn

import seepage as sp
from sampled import sampled
from seepage.nn.privacy.run_membership import ShiftGroup, own_membership
from seepage.nn.privacy.run_privacy import Entry, Ledger, guarantee, losses, relation_of, renyi

FPR = 0.01


def entry(steps=1, rate=0.1, sigma=1.0, sampler="poisson", declared=True, longest=1.0, n=1000):
    return Entry(steps, sampler, rate, sigma, 1.0, longest, n, declared=declared)


def identity_net(width):
    """Return a network and a loss by which a record's gradient is the record itself."""
    net = nn.Linear(width, 1, bias=False)
    nn.init.zeros_(net.weight)
    return net, lambda output, target: output.squeeze(-1) + 0 * target


def trained(records, **options):
    """Return a run of one step on orthogonal records of norm 1, the accountant's and the sum."""
    net, loss = identity_net(11)
    given = {"steps": 1, "lr": 1.0, "noise_multiplier": 0.8, "method": "derivative"}
    run = sp.nn.PrivateSGD(net, loss, **given | options)
    run.fit(torch.eye(11)[:records], torch.zeros(records))
    return run


def best_rate(member, other):
    """Return the true positives of the best test at 1 % false positives, of two densities."""
    order = np.argsort(other / np.maximum(member, 1e-300))
    true, false = (np.cumsum(each[order]) / each.sum() for each in (member, other))
    return float(np.interp(FPR, false, true))


def released(sigma, present, target=0.0):
    """Return the density of a sum: ten records of gradient 1, and one of −1, at given rates."""
    x = np.linspace(-8, 18, 26_001)
    coins = binom.pmf(np.arange(11), 10, present)
    return sum(
        weight * share * norm.pdf(x, k - gone, sigma)
        for k, weight in enumerate(coins)
        for gone, share in ((1, target), (0, 1 - target))
    )


def test_a_batch_size_promises_nothing_about_one_record_more():
    """n = 11 against 10 with batches of 10: everybody's rate changes with one record."""
    sigma, q = 0.8, 10 / 11
    member = released(sigma, q, q)
    promised = float(sp.privacy.SampledGaussianDP(sigma, q).trade_off().tpr(FPR))
    assert promised == pytest.approx(0.129, abs=5e-4)
    assert best_rate(member, released(sigma, q)) <= promised
    # The same promise was made when the rate came from the batch size, and 10 of 10 take part.
    assert best_rate(member, released(sigma, 1.0)) > 0.45

    run = trained(11, batch_size=10).accountant_
    assert run.privacy(1e-3).relation == "replace one record"
    assert "one more or one fewer record is not protected" in run.privacy(1e-3).conditions[0]
    for ask in (lambda name: run.privacy(1e-3, neighbours=name), run.membership):
        with pytest.raises(sp.InputError, match="no guarantee for adding or removing a record"):
            ask("add-or-remove")
    kept = trained(11, sample_rate=q, expected_batch=10).accountant_
    assert kept.privacy(1e-3).relation == "add or remove one record"
    assert "declared before the data were seen" in kept.privacy(1e-3).conditions[0]


@pytest.mark.slow
def test_the_curve_of_a_run_is_of_what_it_promises():
    q = 10 / 11
    declared = trained(11, sample_rate=q, expected_batch=10).accountant_.membership()
    promised = sp.privacy.SampledGaussianDP(0.8, q).trade_off()
    assert float(declared.tpr(FPR)) == pytest.approx(float(promised.tpr(FPR)), abs=1e-6)
    assert "to add or remove one record" in repr(declared)
    sized = trained(11, batch_size=10).accountant_.membership()
    replaced = sp.privacy.SampledGaussianDP(0.8, q, 1, "replace").trade_off()
    assert float(sized.tpr(FPR)) == pytest.approx(float(replaced.tpr(FPR)), abs=1e-6)
    assert "to replace one record" in repr(sized)


def test_a_declared_run_is_the_same_with_one_record_more():
    """Rate, divisor and noise of all other records are what they were."""
    found = {}
    for records in (10, 11):
        run = trained(records, sample_rate=0.5, expected_batch=5, seed=3)
        found[records] = run.net.weight.detach().flatten() * 5
        assert run.accountant_.sample_rate == 0.5
    # the eleventh record shows in its own direction alone, and in the noise there not at all
    assert found[10][:10].tolist() == found[11][:10].tolist()
    change = float(found[10][10] - found[11][10])
    assert min(abs(change), abs(change - 1)) < 1e-3


def test_delta_is_given_where_the_number_of_records_is_secret():
    declared = trained(11, sample_rate=0.5, expected_batch=5).accountant_
    with pytest.raises(sp.InputError, match="would reveal the number of records"):
        declared.privacy()
    assert trained(11, batch_size=5).accountant_.privacy().delta == 1 / 11


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "Declare sample_rate and expected_batch"),
        ({"sample_rate": 0.5}, "Declare sample_rate and expected_batch"),
        ({"expected_batch": 5}, "Declare sample_rate and expected_batch"),
        ({"batch_size": 5, "sample_rate": 0.5}, "or batch_size alone"),
        ({"batch_size": 5, "expected_batch": 5}, "or batch_size alone"),
        ({"sample_rate": 0.5, "expected_batch": 5, "sampling": "fixed"}, "Poisson batches"),
        ({"sample_rate": 1.5, "expected_batch": 5}, "must be above 0 and at most 1"),
        ({"sample_rate": math.nan, "expected_batch": 5}, "sample_rate"),
        ({"sample_rate": 0.5, "expected_batch": 0}, "expected_batch"),
    ],
)
def test_batches_are_declared_in_one_way(options, words):
    with pytest.raises(sp.InputError, match=words):
        trained(11, **options)


def test_a_sampler_takes_a_rate_or_a_size():
    sampler = sp.nn.PoissonSampler(1000, sample_rate=0.05, seed=1)
    assert sampler.batch_size == 50
    assert sampler.sample_rate == 0.05
    same = sp.nn.PoissonSampler(1000, batch_size=50, seed=1)
    assert sampler.batch(3).tolist() == same.batch(3).tolist()
    for wrong in ({}, {"batch_size": 50, "sample_rate": 0.05}):
        with pytest.raises(sp.InputError, match="exactly one of batch_size and sample_rate"):
            sp.nn.PoissonSampler(1000, **wrong)


def test_a_run_of_mixed_steps_promises_the_weaker_relation():
    mixed = Ledger((entry(), entry(declared=False)))
    assert relation_of(mixed) == "replace"
    assert relation_of(Ledger((entry(), entry(steps=3)))) == "add-or-remove"
    parts = [renyi(Ledger((e,)), [2.0], "replace") for e in mixed]
    assert renyi(mixed, [2.0]) == pytest.approx(sum(parts))
    fixed = Ledger((entry(declared=False), entry(sampler="fixed")))
    assert np.isfinite(renyi(fixed, [2.0])[0])


def test_an_older_ledger_counts_the_records_as_public():
    (stored,) = json.loads(Ledger((entry(),)).to_json())
    del stored["declared"]
    assert relation_of(Ledger.from_json(json.dumps([stored]))) == "replace"


@pytest.mark.parametrize(
    ("clip", "old", "provable"), [(1.0, 0.172, 0.1021), (1.1152, 0.247, 0.1277)]
)
def test_replacing_costs_order_two_no_more_than_is_provable(clip, old, provable):
    q, steps, mu = 0.01, 1000, clip / 2.0
    found = renyi(Ledger((entry(steps, q, 2.0, longest=clip),)), [2.0], "replace")[0]
    bound = steps * math.log1p(2 * q**2 / (1 - q) * (math.exp(mu**2) - math.exp(-(mu**2))))
    assert found <= bound < provable < old
    statement = sp.privacy.SampledGaussianDP(2.0 / clip, q, steps)
    assert statement.renyi() == pytest.approx(found)


def test_the_bound_from_a_run_is_what_is_provable():
    """An unbiased attacker's error on a cell of diameter 1, σ = 1, q = 0.01, T = 1,000."""
    run = sp.privacy.SampledGaussianDP(1.0, 0.01, 1000)
    assert float(sp.bounds.from_privacy(run, 1.0)) >= 0.411  # 0.239 by way of removal


@pytest.mark.parametrize("angle", sampled([0.0, 0.6, 2.0, 3.1], [2.0]))
@pytest.mark.parametrize(("q", "mu"), sampled([(0.05, 1.0), (0.5, 0.7), (0.9, 2.0), (0.3, 4.0)], 2))
def test_no_pair_of_gradients_beats_the_dominating_one(angle, q, mu):
    """Hockey-stick divergences in the plane, by quadrature on a grid, at gradients of any angle."""
    axis = np.linspace(-9, 9, 361)
    x, y = np.meshgrid(axis + 0.0, axis)
    cell = (axis[1] - axis[0]) ** 2

    def density(at):
        return np.exp(-((x - at[0]) ** 2 + (y - at[1]) ** 2) / 2) / (2 * np.pi)

    def divergence(one, other, epsilon):
        P = (1 - q) * density((0, 0)) + q * density(one)
        Q = (1 - q) * density((0, 0)) + q * density(other)
        return float(np.clip(P - np.exp(epsilon) * Q, 0, None).sum() * cell)

    for lengths in ((mu, mu), (mu, mu / 2), (mu / 3, mu), (mu, 0.0)):
        one = (lengths[0], 0.0)
        other = (lengths[1] * np.cos(angle), lengths[1] * np.sin(angle))
        for epsilon in (-1.0, 0.0, 0.1, 1.0, 3.0):
            most = divergence((mu, 0.0), (-mu, 0.0), epsilon)
            assert divergence(one, other, epsilon) <= most + 5e-5  # of the grid


@pytest.mark.parametrize(("q", "sigma", "steps"), sampled([(0.2, 1.5, 1), (0.1, 3.0, 20)], 1))
def test_a_fixed_size_costs_no_less_than_half_the_noise(q, sigma, steps):
    """One step: δ of the mixture at twice the distance, by quadrature; more steps: not below it."""
    ledger = Ledger((entry(steps, q, sigma, sampler="fixed"),))
    found = guarantee(ledger, 1e-3, method="pld")
    assert found.relation == "replace one record"
    mixture = losses(Ledger((entry(steps, q, sigma / 2),))).get_epsilon_for_delta(1e-3)
    assert found.epsilon >= mixture * (1 - 1e-6)
    assert found.epsilon < guarantee(ledger, 1e-3).epsilon  # by Rényi's, far less sharp
    if steps == 1:
        x = np.linspace(-12, 16, 200_001)
        P, Q = (1 - q) * norm.pdf(x) + q * norm.pdf(x, 2 / sigma), norm.pdf(x)
        truth = np.clip(P - np.exp(found.epsilon) * Q, 0, None).sum() * (x[1] - x[0])
        assert truth == pytest.approx(1e-3, rel=1e-3)


@pytest.mark.slow
def test_a_group_is_the_mixture_of_how_many_took_part():
    """One step, three records added: δ by quadrature."""
    q, sigma, k = 0.2, 1.5, 3
    x = np.linspace(-15, 20, 40_001)
    P = sum(
        math.comb(k, j) * q**j * (1 - q) ** (k - j) * norm.pdf(x, j / sigma) for j in range(k + 1)
    )
    found = guarantee(Ledger((entry(1, q, sigma),)), 1e-3, group=k)
    epsilon = found.epsilon
    width = x[1] - x[0]
    ways = (P, norm.pdf(x)), (norm.pdf(x), P)
    truth = max(np.clip(a - np.exp(epsilon) * b, 0, None).sum() * width for a, b in ways)
    assert truth <= 1e-3 * (1 + 1e-6)
    assert truth == pytest.approx(1e-3, rel=0.05)
    assert "add or remove 3 records" in str(found)
    statement = sp.privacy.SampledGaussianDP(sigma, q, 1, group=k)
    assert "add-or-remove 3 records" in statement.words
    assert statement.renyi() == math.inf
    with pytest.raises(sp.InputError, match="covers only adding or removing the records together"):
        guarantee(Ledger((entry(),)), 1e-3, group=2, neighbours="replace")
    with pytest.raises(sp.InputError, match="for a group covers only adding or removing"):
        sp.privacy.SampledGaussianDP(1.0, 0.1, 2, "replace", group=2)


@pytest.mark.slow
def test_loss_distributions_of_replacing_lie_between_removing_and_half_the_noise():
    ledger = Ledger((entry(50, 0.1, 1.5),))
    ways = ("add-or-remove", "replace")
    one, two = (losses(ledger, how).get_epsilon_for_delta(1e-5) for how in ways)
    half = losses(Ledger((entry(50, 0.1, 0.75),))).get_epsilon_for_delta(1e-5)
    assert one < two < half
    rdp = guarantee(ledger, 1e-5, neighbours="replace").epsilon
    assert two < rdp < guarantee(Ledger((entry(50, 0.1, 0.75),)), 1e-5).epsilon


OWN = {  # rate, noise, and norms with their steps; the numbers that one norm for all steps gave
    "overstated": (0.1, 0.5, {1.0: 2, 0.1: 18}),  # advantage 0.279, exact 0.119
    "understated": (0.05, 0.7, {1.0: 5, 0.1: 95}),  # TPR at 0.1 %: 0.0028, exact 0.0060
    "one long": (0.1, 0.5, {1.0: 1, 0.2: 19}),
    "full batches": (1.0, 4.0, {1.0: 3, 0.5: 5}),
    "all zero": (0.3, 1.0, {0.0: 4}),
}


@pytest.mark.parametrize("case", sampled(list(OWN), ["overstated", "all zero"]))
def test_a_records_own_curve_is_that_of_its_norms(case):
    """Likelihood ratios of 400,000 simulated runs, each step at its own norm."""
    q, sigma, norms = OWN[case]
    draw = np.random.default_rng(1)
    member, other = np.zeros(400_000), np.zeros(400_000)
    for length, steps in norms.items():
        mu = length / sigma
        for _ in range(steps):
            for total, present in ((member, True), (other, False)):
                x = draw.standard_normal(len(total))
                if present:
                    x += mu * (draw.random(len(total)) < q)
                total += np.log1p(q * np.expm1(mu * x - mu**2 / 2))
    ledger = Ledger((entry(sum(norms.values()), q, sigma),))
    groups = [ShiftGroup(count, (length / sigma) ** 2, 0.0) for length, count in norms.items()]
    own = own_membership(ledger, groups)
    advantage = float(np.mean(np.clip(-np.expm1(other), 0, None)))
    assert own.advantage() == pytest.approx(advantage, abs=2e-3)
    for fpr in (1e-3, 1e-2):
        truth = float(np.mean(member > np.quantile(other, 1 - fpr)))
        if case != "all zero":
            assert float(own.tpr(fpr)) == pytest.approx(truth, rel=0.12, abs=2e-4)
    assert own.kind == "estimate"
    assert any("not an upper bound" in text for text in own.conditions)


@pytest.mark.slow
def test_norms_are_kept_as_they_were():
    """Different norms within one group of similar ones, and in several: the curve is the same."""
    from seepage.nn.privacy.individual_privacy import IndividualCosts, IndividualPrivacy

    lengths = [0.5, 0.6, 0.65, 0.05, 1.0, 0.9]
    tally = IndividualCosts(2)
    for length in lengths:
        tally.add(torch.tensor([1]), 0.2, torch.tensor([length]))
    ledger = Ledger((entry(len(lengths), 0.2, 0.5),))
    held = IndividualPrivacy(
        tally.orders, np.zeros((2, 1)), np.zeros((2, 1)), None, ledger, tally.norms.numpy()
    )
    own = held.membership(1)
    exact = own_membership(ledger, [ShiftGroup(1, length**2, 0.0) for length in lengths])
    assert own.advantage() == pytest.approx(exact.advantage(), abs=max(own.doubt, 1e-6))
    assert 0 < own.doubt < 0.01
    assert any("in 6 of the 6 batches" in text for text in own.conditions)
    assert held.membership(0).kind == "guarantee"  # in no batch
