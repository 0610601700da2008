"""Batches by property: matched in their labels, disjoint in their pools, none made up."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from seepage.errors import InputError
from seepage.layers import property_batches
from seepage.layers.inputs_and_targets import is_finite, read_inputs


def records(seed=0, count=2000):
    """Nine in ten with the property have label 1, two in ten without it."""
    draw = np.random.default_rng(seed)
    trait = draw.random(count) < 0.3
    label = draw.random(count) < np.where(trait, 0.9, 0.2)
    return label.astype(int), trait


def test_matched_batches_have_the_labels_of_everyone():
    label, trait = records()
    found = property_batches(label, trait, count=200, seed=1)
    shares = [label[found.index[found.property == p]].mean() for p in (False, True)]
    np.testing.assert_allclose(shares, label.mean(), atol=0.02)


def test_confounded_batches_keep_their_own():
    label, trait = records()
    found = property_batches(label, trait, count=200, mix="confounded", seed=1)
    for p in (False, True):
        own = label[found.index[found.property == p]].mean()
        assert own == pytest.approx(label[trait == p].mean(), abs=0.02)
    assert found.mix == "confounded"


@pytest.mark.parametrize("mix", ["matched", "confounded"])
def test_batches_are_pure_and_hold_nobody_twice(mix):
    label, trait = records()
    found = property_batches(label, trait, count=20, mix=mix, batch_size=16)
    assert found.index.shape == (40, 16)
    for rows, p in zip(found.index, found.property, strict=True):
        assert np.all(trait[rows] == p)
        assert len(set(rows.tolist())) == 16


def test_pools_share_no_person():
    label, trait = records()
    person = np.arange(2000) // 4
    found = property_batches(label, trait, count=20, pools=4, people=person, batch_size=8)
    members = [set(person[found.index[found.pool == k]].ravel().tolist()) for k in range(4)]
    for a in range(4):
        for b in range(a):
            assert not members[a] & members[b]
    assert np.all(np.bincount(found.pool) == 10)


def test_more_than_two_classes():
    draw = np.random.default_rng(2)
    label, trait = draw.integers(0, 3, 900), draw.choice(["a", "b", "c"], 900)
    found = property_batches(label, trait, count=5, batch_size=9)
    assert found.property.tolist() == ["a"] * 5 + ["b"] * 5 + ["c"] * 5
    assert np.all(trait[found.index] == found.property[:, None])


def test_batches_of_tensors():
    label, trait = records(count=400)
    x, y = torch.arange(400.0)[:, None], torch.from_numpy(label)
    found = property_batches(label, trait, count=2, batch_size=4)
    for rows, (inputs, targets) in zip(found.index, found.of(x, y), strict=True):
        assert inputs[:, 0].tolist() == rows.tolist()
        assert targets.tolist() == label[rows].tolist()


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"mix": "same"}, "mix must be"),
        ({"batch_size": 0}, "at least 1"),
        ({"batch_size": 400}, "too few records"),
        ({"batch_size": 700, "mix": "confounded"}, "too few records"),
        ({"pools": 500}, "too few records"),
        ({"people": np.arange(3)}, "There are 2000 records, but people"),
        ({"people": [None] * 2000}, "people is missing"),
        ({"seed": -1}, "seed must be between 0"),
        ({"property": np.ones(2000)}, "same property"),
        ({"property": np.ones(7)}, "There are 2000 records, but property"),
    ],
)
def test_what_cannot_be(change, complaint):
    label, trait = records()
    options = {"property": trait, "count": 3} | change
    with pytest.raises(InputError, match=complaint):
        property_batches(label, options.pop("property"), **options)


def test_labels_must_be_known():
    label, trait = records()
    with pytest.raises(InputError, match="labels is missing"):
        property_batches(np.where(label == 1, None, 0), trait)


def test_labels_of_two_dimensions_are_refused():
    with pytest.raises(InputError, match=r"one entry per record, but their shape is \(3, 2\)"):
        property_batches(np.ones((3, 2)), np.ones(3), batch_size=1, count=1)


def test_nested_inputs_become_tensors_of_the_networks_type():
    net = torch.nn.Linear(3, 1)
    found = read_inputs({"a": np.ones((2, 3)), "b": [np.zeros(2), "kept"]}, net)
    assert found["a"].dtype == torch.float32
    assert found["b"][0].tolist() == [0.0, 0.0]
    assert found["b"][1] == "kept"
    assert is_finite(found)
    assert not is_finite({"a": (torch.ones(2), [torch.tensor([np.nan])])})
