"""The property-inference adversary: AUCs with known answers, and a leak by confounding alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import norm
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import LeaveOneGroupOut, cross_val_predict
from torch import nn

import seepage as sp
from sampled import sampled
from seepage.attacks.intervals import area_under_curve
from seepage.errors import InputError
from seepage.layers import LayerGradients, property_batches, record_gradients


@pytest.mark.parametrize("seed", range(5))
def test_the_area_is_scikit_learns(seed):
    draw = np.random.default_rng(seed)
    truth = draw.random(80) < 0.4
    scores = np.round(draw.standard_normal(80) + truth, 1 + seed % 2)  # with ties
    area, (low, high) = area_under_curve(scores, truth)
    assert area == pytest.approx(roc_auc_score(truth, scores))
    assert 0 < low < area < high < 1


def test_intervals_cover_as_often_as_they_say():
    shift, hits = 1.0, 0
    exact = norm.cdf(shift / np.sqrt(2))
    for seed in range(300):
        draw = np.random.default_rng(seed)
        truth = np.arange(60) % 2
        _, (low, high) = area_under_curve(draw.standard_normal(60) + shift * truth, truth)
        hits += low < exact < high
    assert 270 <= hits <= 297


@pytest.mark.parametrize(("scores", "area"), [([1, 2, 3, 4], 1.0), ([4, 3, 2, 1], 0.0)])
def test_perfect_orders_have_an_interval_too(scores, area):
    found, (low, high) = area_under_curve(np.array(scores), np.array([0, 0, 1, 1]))
    assert found == area
    assert (low, high)[int(area)] == area
    assert high - low > 0.3


def test_an_area_needs_both_kinds():
    with pytest.raises(InputError, match="with and without"):
        area_under_curve(np.arange(3.0), np.ones(3))


def shifted(seed, shift=1.0, count=300):
    draw = np.random.default_rng(seed)
    p = np.arange(count) % 2
    seen = {"a": draw.standard_normal((count, 3)), "b": draw.standard_normal((count, 2))}
    seen["a"][:, 0] += shift * p
    return seen, p


def test_the_best_adversary_reaches_the_known_area():
    adversary = sp.attacks.PropertyInference("a", LogisticRegression()).fit(*shifted(0, count=4000))
    found = adversary.attack(*shifted(1, count=4000))
    low, high = found.interval
    assert low < norm.cdf(1 / np.sqrt(2)) < high
    assert found.kind == "attack"


@pytest.mark.slow
def test_one_layer_or_all():
    found = sp.attacks.attack_layers(*shifted(0, 2.0), *shifted(1, 2.0))
    assert found.layers == ("a", "b", "all layers")
    assert found["a"] > 0.85
    assert found.low[1] < 0.5 < found.high[1]
    assert found["all layers"] > 0.8
    assert found.sizes == (3, 2, 5)


def test_several_classes():
    draw = np.random.default_rng(0)
    p = np.array(["x", "y", "z"])[np.arange(300) % 3]
    seen = {"a": draw.standard_normal((300, 2)) + 4 * (p == "y")[:, None]}
    adversary = sp.attacks.PropertyInference("a").fit(seen, p)
    found = adversary.attack(seen, p)
    assert found.classes == ("x", "y", "z")
    assert found.scores.shape == (300, 3)
    assert found.auc > 0.9


@pytest.mark.minutes
def test_label_mix_alone_gives_a_property_away_unless_matched():
    # Inputs know nothing of the property; only the main task's label goes with it.
    torch.manual_seed(0)
    draw = np.random.default_rng(0)
    trait = draw.random(3000) < 0.4
    label = (draw.random(3000) < np.where(trait, 0.8, 0.3)).astype(int)
    x, y = torch.randn(3000, 5), torch.from_numpy(label)
    net = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2))
    areas = {}
    for mix in ("matched", "confounded"):
        sides = []
        for half, seed in ((slice(0, 1500), 1), (slice(1500, 3000), 2)):
            found = property_batches(label[half], trait[half], count=40, mix=mix, seed=seed)
            batches = list(found.of(x[half], y[half]))
            sides += [record_gradients(net, "cross_entropy", batches), found.property]
        areas[mix] = sp.attacks.attack_layers(*sides)
    assert np.all(areas["confounded"].values > 0.95)
    assert np.all(areas["matched"].low < 0.55)
    assert np.all(areas["matched"].values < 0.68)


@pytest.mark.parametrize(
    ("work", "complaint"),
    [
        (lambda a, g, p: a.fit(g, p[:-1]), "300 gradients"),
        (lambda a, g, p: a.fit(g, np.zeros(300)), "All auxiliary data have the same property"),
        (lambda a, g, p: a.predict_proba(g), "has not been fitted"),
        (lambda a, g, p: a.fit(g, p).predict_proba({"a": g["a"]}), "have different layers"),
        (lambda a, g, p: a.fit(g, p).attack(g, p + 1), "does not occur in the auxiliary data"),
        (
            lambda a, g, p: sp.attacks.PropertyInference("c").fit(g, p),
            "There is no layer 'c'",
        ),
    ],
)
def test_what_cannot_be(work, complaint):
    with pytest.raises(InputError, match=complaint):
        work(sp.attacks.PropertyInference("a"), *shifted(0))


def recorded(seed, width=4096):
    draw = np.random.default_rng(3)
    p = np.arange(40) % 2
    values = draw.standard_normal((40, 50)) + 2 * p[:, None]
    return LayerGradients.of({"a": values}, width=width, seed=seed), p


@pytest.mark.parametrize("other", [{"seed": 1, "width": 8}, {"seed": 0, "width": 9}, {"seed": 0}])
def test_differently_projected_gradients_are_not_compared(other):
    learnt, p = recorded(0, width=8)
    seen, _ = recorded(**other)
    adversary = sp.attacks.PropertyInference("a").fit(learnt, p)
    with pytest.raises(InputError, match="projected differently"):
        adversary.attack(seen, p)
    with pytest.raises(InputError, match="projected differently"):
        sp.attacks.attack_layers(learnt, p, seen, p)
    assert adversary.attack(recorded(0, width=8)[0], p).auc > 0.9


@pytest.mark.parametrize("layer", sampled(["a", "all layers"], ["all layers"]))
@pytest.mark.parametrize("made", sampled([np.asarray, torch.tensor, np.ndarray.tolist], 1))
def test_an_array_is_the_layer_that_is_seen(layer, made):
    seen, p = shifted(0, 2.0)
    adversary = sp.attacks.PropertyInference(layer).fit(made(seen["a"]), p)
    again = sp.attacks.PropertyInference(layer).fit({"a": seen["a"]}, p)
    fresh = shifted(1, 2.0)[0]["a"]
    assert adversary.attack(made(fresh), p).auc == again.attack({"a": fresh}, p).auc


def test_layers_need_names_to_be_attacked_one_by_one():
    seen, p = shifted(0)
    with pytest.raises(InputError, match=r"by layer, \{name: array\}"):
        sp.attacks.attack_layers(seen["a"], p, seen["a"], p)
    with pytest.raises(InputError, match="one row per gradient"):
        sp.attacks.PropertyInference("a").fit(seen["a"][0], p)


@pytest.mark.slow
def test_a_recording_is_attacked_across_clients_with_their_property_known():
    draw = np.random.default_rng(3)
    client = np.tile(np.arange(12), 5)
    p = client % 2
    marks = 3 * draw.standard_normal((12, 4))[client]  # by which every client is known again
    blocks = {"a": marks + draw.standard_normal((60, 4)), "b": draw.standard_normal((60, 4))}
    blocks["b"] += p[:, None]
    seen = replace(LayerGradients.of(blocks), nodes=client)
    model = LogisticRegression(C=0.1)
    found = sp.attacks.attack_recording(
        seen, {k: k % 2 for k in range(12)}, classifier=model, folds=12
    )
    # One client out at a time, by scikit-learn.
    for name in blocks:
        x = blocks[name].astype(np.float32)
        held = cross_val_predict(
            model, x, p, groups=client, cv=LeaveOneGroupOut(), method="predict_proba"
        )[:, 1]
        assert found[name] == pytest.approx(roc_auc_score(p, held), abs=1e-9)
    assert found["b"] > 0.85
    assert found["a"] < 0.6  # within clients it would be 1
    assert found.layers == ("a", "b", "all layers")


def test_a_client_that_is_alone_with_its_value_is_told_from_the_others_by_updates():
    draw = np.random.default_rng(4)
    client = np.tile(np.arange(6), 6)
    seen = {"a": draw.standard_normal((36, 3)) + 8 * (client == 2)[:, None]}
    seen = replace(LayerGradients.of(seen), nodes=client)
    known = {k: "yes" if k == 2 else "no" for k in range(6)}
    found = sp.attacks.attack_recording(seen, known, classifier="logistic")
    assert found["a"] == 1.0
    with pytest.raises(InputError, match="does not identify the client"):
        sp.attacks.attack_recording(replace(seen, nodes=None), client % 2)
