"""What helps a gradient's reader: statistics, categories, embeddings, and a malicious layer."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from torch import nn

import seepage as sp
from seepage.attacks.gradient.priors import BatchNormPrior, OneHotColumns


def released(net, loss, batch_size=1):
    """Return the gradient of a mean loss by autograd alone."""
    names = [name for name, _ in net.named_parameters()]
    slopes = torch.autograd.grad(loss, list(net.parameters()))
    gradients = {name: slope[None] for name, slope in zip(names, slopes, strict=True)}
    return sp.attacks.GradientReleases(gradients, batch_size)


# BatchNorm statistics


def normed(seed=0):
    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3, stride=2, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Conv2d(4, 6, 3, stride=2, padding=1),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(6 * 16, 3),
    )
    for module in net:
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
    return net.eval()


def by_hand(net, x, known):
    """Return the distance of one batch's statistics, in NumPy and layer by layer."""
    total, values = 0.0, x
    for name, module in net.named_children():
        if name in known:
            rows = values.transpose(0, 1).flatten(1).double().numpy()
            mean, variance = (np.asarray(side, dtype=float) for side in known[name])
            total += np.sqrt(np.sum((rows.mean(1) - mean) ** 2))
            total += np.sqrt(np.sum((rows.var(1, ddof=1) - variance) ** 2))
        with torch.no_grad():
            values = module(values)
    return total


def test_the_distance_of_statistics_is_that_of_the_formula():
    net, x = normed(), torch.rand(6, 1, 16, 16)
    running = {
        name: (module.running_mean, module.running_var)
        for name, module in net.named_children()
        if isinstance(module, nn.BatchNorm2d)
    }
    found = BatchNormPrior(net).distance(x, 3)
    wanted = [by_hand(net, x[:3], running), by_hand(net, x[3:], running)]
    np.testing.assert_allclose(found.detach().numpy(), wanted, rtol=1e-5)
    own = {"1": (torch.zeros(4), torch.ones(4))}
    found = BatchNormPrior(net, own).distance(x, 6)
    np.testing.assert_allclose(found.detach().numpy(), [by_hand(net, x, own)], rtol=1e-5)


def test_a_batchs_own_statistics_are_zero_only_at_that_batch():
    net, x = normed(), torch.rand(4, 1, 16, 16)
    inputs = net[0](x).transpose(0, 1).flatten(1).detach()
    prior = BatchNormPrior(net, {"1": (inputs.mean(1), inputs.var(1))})
    with torch.no_grad():
        assert float(prior.distance(x, 4)) < 1e-5
        assert float(prior.distance(torch.rand(4, 1, 16, 16), 4)) > 1e-3


def test_statistics_of_the_batch_help_where_noise_hides_the_gradient():
    torch.manual_seed(2)
    net = normed()
    x, y = torch.rand(1, 1, 16, 16), torch.tensor([1])
    inputs = net[0](x).transpose(0, 1).flatten(1).detach()
    known = {"1": (inputs.mean(1), inputs.var(1))}
    prior = BatchNormPrior(net, known)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        seen = sp.attacks.release_gradients(net, "cross_entropy", x, y)
        seen = sp.attacks.GradientReleases(
            {k: g + 0.05 * torch.randn(g.shape) for k, g in seen.gradients.items()}
        )
        apart = []
        for weight in (0.0, 0.1):
            adversary = sp.attacks.GradientInversion(
                net, shape=(1, 16, 16), steps=20, batch_norm=weight, statistics=known
            )
            record = adversary.reconstruct(seen, labels=y).records[0]
            apart.append(float(prior.distance(record, 1).detach()))
    assert apart[1] < 0.5 * apart[0]


def test_a_network_without_batchnorm_and_unknown_layers_are_refused():
    with pytest.raises(sp.InputError, match="batch_norm=0"):
        sp.attacks.GradientInversion(nn.Linear(4, 2), shape=(4,), total_variation=0, batch_norm=0.1)
    with pytest.raises(sp.InputError, match="it has '1', '4'"):
        BatchNormPrior(normed(), {"norm": (0, 1)})


# categories


GROUPS = [(2, 3, 4), (5, 6)]


def people(n, seed=0):
    draw = np.random.default_rng(seed)
    x = np.zeros((n, 7), dtype=np.float32)
    x[:, :2] = draw.standard_normal((n, 2)).clip(-2.5, 2.5)
    x[np.arange(n), 2 + draw.integers(0, 3, n)] = 1
    x[np.arange(n), 5 + draw.integers(0, 2, n)] = 1
    return torch.tensor(x)


def test_relaxed_categories_are_probabilities_with_the_right_slopes():
    hot = OneHotColumns(GROUPS, 7, 6.0)
    points = torch.randn(5, 7, dtype=torch.float64)
    records = hot.relaxed(points)
    assert torch.equal(records[:, :2], points[:, :2])
    for group in GROUPS:
        np.testing.assert_allclose(records[:, list(group)].sum(1), 1)
    toward = torch.randn(5, 7, dtype=torch.float64)
    along = torch.randn(5, 7, dtype=torch.float64)
    step = 1e-6
    moved = hot.relaxed(points + step * along) - hot.relaxed(points - step * along)
    wanted = float((moved * toward).sum() / (2 * step))
    assert abs(float((hot.slopes(points, toward) * along).sum()) - wanted) < 1e-6


def test_people_are_recovered_from_their_gradients():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(7, 24), nn.Tanh(), nn.Linear(24, 2))
    x, y = people(12), torch.arange(12) % 2
    seen = sp.attacks.release_gradients(net, "cross_entropy", x, y, batch_size=2)
    adversary = sp.attacks.GradientInversion(
        net,
        shape=(7,),
        cost="euclidean",
        optimizer="lbfgs",
        total_variation=0,
        bounds=(-3, 3),
        restarts=6,
        steps=400,
        categories=GROUPS,
    )
    found = adversary.reconstruct(seen, labels=y.reshape(-1, 2))
    matched = found.matched(x)
    assert set(np.unique(matched[:, 2:])) == {0.0, 1.0}
    for group in GROUPS:
        assert (matched[:, list(group)].sum(1) == 1).all()
    close = np.abs(matched[:, :2] - x[:, :2].numpy()).max(1) < 0.05
    right = (matched[:, 2:] == x[:, 2:].numpy()).all(1)
    assert (close & right).sum() >= 10


@pytest.mark.parametrize("groups", [[(1,)], [(0, 1), (1, 2)], [(6, 7)]])
def test_columns_that_encode_no_category_are_refused(groups):
    with pytest.raises(sp.InputError, match="each column once"):
        OneHotColumns(groups, 7, 1.0)


def test_categories_are_for_tables():
    with pytest.raises(sp.InputError, match="rows of a table"):
        sp.attacks.GradientInversion(nn.Flatten(), shape=(1, 4, 4), categories=[(0, 1)])


# tokens


class Transformer(nn.Module):
    """One block of causal attention with learned positions, and a head of its own."""

    def __init__(self, tokens=60, d=32, length=9):
        super().__init__()
        self.tokens, self.places = nn.Embedding(tokens, d), nn.Embedding(length, d)
        self.norm = nn.LayerNorm(d)
        self.qkv, self.head = nn.Linear(d, 3 * d), nn.Linear(d, tokens)

    def forward(self, ids):
        z = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        q, k, v = self.qkv(self.norm(z)).chunk(3, -1)
        far = torch.full((ids.shape[1],) * 2, -torch.inf).triu(1)
        mixed = torch.softmax(q @ k.transpose(1, 2) / 5 + far, -1) @ v
        return self.head(z + mixed)


def text_release(net, ids):
    ahead = net(ids)[:, :-1].flatten(0, 1)
    loss = nn.functional.cross_entropy(ahead, ids[:, 1:].flatten())
    return released(net, loss, len(ids))


@pytest.mark.parametrize("seed", range(3))
def test_every_token_and_its_place(seed):
    torch.manual_seed(seed)
    net, ids = Transformer(), torch.randint(0, 60, (1, 8))
    found = sp.attacks.recover_tokens(
        net, text_release(net, ids), embedding="tokens", layer="qkv", length=8
    )
    # The last token predicts nothing: it is a target, but no input.
    assert found.present[0].tolist() == sorted(set(ids[0, :-1].tolist()))
    assert found.sequences[0, :-1].tolist() == ids[0, :-1].tolist()
    assert float(found.distances[0, :-1].max()) < 1e-4 < float(found.distances[0, -1])


def test_a_text_is_found_without_the_gradient_of_the_embedding():
    torch.manual_seed(0)
    net, ids = Transformer(), torch.randint(0, 60, (1, 8))
    some = dict(text_release(net, ids).gradients)
    del some["tokens.weight"], some["places.weight"]
    seen = sp.attacks.GradientReleases(some)
    found = sp.attacks.recover_tokens(net, seen, embedding="tokens", layer="qkv", length=8)
    assert found.sequences[0, :-1].tolist() == ids[0, :-1].tolist()
    assert found.present[0].tolist() == sorted(set(ids[0, :-1].tolist()))
    # Eight texts span all inputs, so that nothing excludes any token.
    del some["qkv.weight"]
    many = dict(text_release(net, torch.randint(0, 60, (8, 6))).gradients)
    del many["tokens.weight"]
    seen = sp.attacks.GradientReleases(many, 8)
    found = sp.attacks.recover_tokens(net, seen, embedding="tokens", layer="qkv", length=6)
    assert found.present[0].tolist() == list(range(60))
    assert (found.sequences == -1).all()
    with pytest.raises(sp.InputError, match=r"no gradient of 'qkv\.weight'"):
        sp.attacks.recover_tokens(
            net, sp.attacks.GradientReleases(some), embedding="tokens", layer="qkv", length=8
        )


def test_three_texts_at_once_leave_three_tokens_at_a_place():
    torch.manual_seed(0)
    net, ids = Transformer(), torch.randint(0, 60, (3, 6))
    found = sp.attacks.recover_tokens(
        net, text_release(net, ids), embedding="tokens", layer="qkv", length=6
    )
    for place in range(5):
        assert found.candidates[0][place].tolist() == sorted(set(ids[:, place].tolist()))


def test_more_positions_than_entries_leave_only_the_set_of_tokens():
    torch.manual_seed(0)
    net, ids = Transformer(), torch.randint(0, 60, (8, 6))
    found = sp.attacks.recover_tokens(
        net, text_release(net, ids), embedding="tokens", layer="qkv", length=6
    )
    assert found.present[0].tolist() == sorted(set(ids[:, :-1].flatten().tolist()))
    assert (found.sequences == -1).all()
    assert repr(found) == "<tokens of 1 release: 0 of 6 located>"


def test_noise_hides_tokens():
    torch.manual_seed(0)
    net, ids = Transformer(), torch.randint(0, 60, (1, 8))
    seen = text_release(net, ids)
    noisy = {name: g + 0.5 * torch.randn(g.shape) for name, g in seen.gradients.items()}
    hidden = sp.attacks.GradientReleases(noisy, noise=0.5)
    found = sp.attacks.recover_tokens(net, hidden, embedding="tokens", layer="qkv", length=8)
    assert len(found.present[0]) <= 1
    assert (found.sequences == -1).all()


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ({"embedding": "head", "layer": "qkv"}, "not an embedding layer"),
        ({"embedding": "tokens", "layer": "attention"}, "no layer 'attention'"),
    ],
)
def test_wrong_layers_are_refused(names, words):
    net = Transformer()
    seen = text_release(net, torch.arange(8)[None])
    with pytest.raises(sp.InputError, match=words):
        sp.attacks.recover_tokens(net, seen, length=8, **names)


# a malicious layer


def imprinted(x, thresholds, width=8):
    torch.manual_seed(0)
    layer = sp.attacks.ImprintLayer(tuple(x.shape[1:]), thresholds)
    d = x[0].numel()
    net = nn.Sequential(layer, nn.Flatten(), nn.Linear(d, width), nn.ReLU(), nn.Linear(width, 3))
    return net.double(), layer


@pytest.mark.parametrize("n", [1, 8, 32])
def test_records_alone_in_their_bins_are_read_exactly(n):
    draw = torch.Generator().manual_seed(n)
    x = torch.rand(n, 1, 6, 6, generator=draw, dtype=torch.float64)
    y = torch.randint(0, 3, (n,), generator=draw)
    thresholds = torch.linspace(0.3, 0.7, 101)
    net, layer = imprinted(x, thresholds)
    seen = released(net, nn.functional.cross_entropy(net(x), y), n)
    (found,) = layer.recover(seen, "0")
    bins = np.digitize(x.flatten(1).mean(1), thresholds.double())
    alone = [k for k in range(n) if (bins == bins[k]).sum() == 1]
    assert len(found) == len(set(bins.tolist()))
    for k in alone:
        assert float((found - x[k]).abs().flatten(1).amax(1).min()) < 1e-8


def test_the_share_of_records_that_are_alone_is_the_formulas():
    n, k, runs = 16, 64, 400
    draw = np.random.default_rng(0)
    alone = 0
    for _ in range(runs):
        _, counts = np.unique(draw.integers(0, k, n), return_counts=True)
        alone += (counts == 1).sum()
    assert abs(alone / runs - n * (1 - 1 / k) ** (n - 1)) < 0.3


def test_the_network_keeps_its_inputs_and_noise_empties_the_bins():
    x = torch.rand(4, 1, 6, 6, dtype=torch.float64)
    net, layer = imprinted(x, torch.linspace(0.3, 0.7, 51))
    added = (layer(x) - x).detach()
    assert float((added - added.mean((1, 2, 3), keepdim=True)).abs().max()) < 1e-12
    seen = released(net, nn.functional.cross_entropy(net(x), torch.arange(4) % 3), 4)
    noisy = {k: g + torch.randn(g.shape, dtype=g.dtype) for k, g in seen.gradients.items()}
    (found,) = layer.recover(sp.attacks.GradientReleases(noisy, 4, noise=1.0), "0")
    assert len(found) <= 1


def test_an_imprint_is_looked_for_by_its_name():
    x = torch.rand(2, 1, 6, 6, dtype=torch.float64)
    net, layer = imprinted(x, [0.4, 0.5])
    seen = released(net, nn.functional.cross_entropy(net(x), torch.tensor([0, 1])), 2)
    with pytest.raises(sp.InputError, match=r"'2\.entry'"):
        layer.recover(seen, "2")
    with pytest.raises(sp.InputError, match="ascending"):
        sp.attacks.ImprintLayer((4,), [0.5, 0.1])
