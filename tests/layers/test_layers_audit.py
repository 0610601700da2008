"""The audit finds the layer that leaks, and its remedies do what they say."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from seepage.core.result import Result
from seepage.errors import InputError
from seepage.layers import LayerGradients, PerLayer, audit, record_gradients
from seepage.layers.layer_audit import _drops, layers_to_protect
from seepage.layers.layer_parameters import layer_parameters


class TwoDoors(nn.Module):
    """The property enters through one layer only; the other sees the rest of the input."""

    def __init__(self):
        super().__init__()
        self.open, self.shut = nn.Linear(3, 4), nn.Linear(3, 4)
        self.out = nn.Linear(8, 2)

    def forward(self, x):
        return self.out(torch.tanh(torch.cat([self.open(x[:, :3]), self.shut(x[:, 3:])], 1)))


class Twins(nn.Module):
    """Two layers that see the same, and have the same gradient."""

    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(6, 2), nn.Linear(6, 2)

    def forward(self, x):
        return self.one(x) + self.other(x)


@pytest.fixture(scope="module")
def found():
    torch.manual_seed(0)
    trait = torch.arange(1200) % 3 == 0
    x = torch.randn(1200, 6)
    x[:, :3] += 1.5 * trait[:, None]
    y = (torch.rand(1200) < 0.4).long()
    return audit(
        TwoDoors(), "cross_entropy", x, y, trait, batches=40, batch_size=16, family="logistic"
    )


@pytest.mark.slow
def test_it_names_the_open_door(found):
    assert "open" in found.protect
    assert "shut" not in found.protect
    assert found.v_information["open"] > 0.15
    assert found.v_information.columns["p_value"][1] > 0.01
    assert found.v_information.low[1] < 0.02


def test_remedies(found):
    left = {remedy.name: remedy for remedy in found.remedies}
    assert list(left)[:4] == ["as it is", "without out", "without open", "without out, open"]
    assert [name.split()[0] for name in list(left)[4:]] == ["clipped", "clipped"]
    assert left["as it is"].value > 0.2
    # Each door alone leaves the other open.
    assert left["without out"].value > 0.2
    assert left["without open"].value > 0.2
    assert left["without out, open"].value < 0.5 * left["as it is"].value
    assert "noise" in found.remedies[-1].name
    assert found.remedies[-1].value < 0.05
    assert found.notes == ()


@pytest.mark.slow
def test_where_every_layer_is_to_be_protected():
    torch.manual_seed(0)
    trait = torch.arange(1200) % 3 == 0
    x = torch.randn(1200, 6) + 2.0 * trait[:, None]
    y = (torch.rand(1200) < 0.4).long()
    quick = {"batches": 40, "batch_size": 16, "family": "logistic"}
    found = audit(Twins(), "cross_entropy", x, y, trait, **quick)
    assert set(found.protect) == {"one", "other"}
    assert {r.name for r in found.remedies[1:3]} == {"without one", "without other"}
    assert "each was dropped alone" in found.notes[0]
    assert found.notes[0] in str(found)
    one = audit(nn.Sequential(nn.Linear(6, 2)), "cross_entropy", x, y, trait, **quick)
    assert [r.name.split()[0] for r in one.remedies] == ["as", "clipped", "clipped"]
    assert "only layer" in str(one)


def test_which_layers_are_dropped():
    many = [str(k) for k in range(9)]
    assert _drops([], "abc") == ([], [])
    assert _drops(["a"], "abc") == ([("a",)], [])
    alone, notes = _drops(many, [*many, *"abc"])
    assert alone == [tuple(many)]
    assert "dropping each layer alone was not tested" in notes[0]


def test_table_text_and_figure(found):
    table = found.table("pandas")
    assert table["layer"].tolist() == ["open", "shut", "out"]
    assert table["protect"].tolist()[:2] == [True, False]
    assert "do not publish" in str(found)
    assert "open" in repr(found)
    assert [axes.get_title(loc="left") for axes in found.plot()] == [
        "V-information, logistic",
        "sensitivity to the target, F-norm",
    ]
    assert len(found.sensitivity.plot().patches) == 3


def result(values, low, high, p):
    sizes = (1,) * len(values)
    names = tuple("abcdef"[: len(values)])
    columns = {"p_value": np.array(p)}
    arrays = (np.array(values), np.array(low), np.array(high))
    return PerLayer.of("x", names, arrays, sizes, columns=columns)


def test_a_measure_of_layers_is_a_result_like_any_other():
    found = result([0.1, 0.4, 0.2], [0.0, 0.3, 0.1], [0.2, 0.5, 0.3], [0.5, 0.01, 0.02])
    assert isinstance(found, Result)
    assert (found > 0.15).tolist() == [False, True, True]
    worst = found.top(2)
    assert worst.layers == ("b", "c")
    assert worst.span("c") == (0.2, 0.1, 0.3)
    assert worst.columns["p_value"].tolist() == [0.01, 0.02]
    assert "<th>b</th>" in found._repr_html_()
    assert found.table("pandas")["high"].tolist() == [0.2, 0.5, 0.3]


def test_layers_to_protect():
    clear = result([0.5, 0.45, 0.1, 0.0], [0.4, 0.3, 0.05, -0.1], [0.6, 0.5, 0.2, 0.1], [0.01] * 4)
    assert layers_to_protect(clear) == ["a", "b"]
    nothing = result([0.01, 0.0], [-0.1, -0.1], [0.1, 0.1], [0.4, 0.6])
    assert layers_to_protect(nothing) == []
    # Of twenty layers of nothing, one is at or below 0.05; few clients leave the interval wide.
    chance = result([0.02] + [0.0] * 5, [0.01] + [-0.1] * 5, [0.1] * 6, [0.03] + [0.5] * 5)
    assert layers_to_protect(chance) == []
    wide = result([0.98, 0.5, 0.03], [-0.3, -0.2, -0.1], [1.0, 0.9, 0.1], [0.001, 0.002, 0.001])
    assert layers_to_protect(wide) == ["a", "b"]


def test_per_layer_results():
    one = result([1.0, 3.0, np.nan, 2.0], [0, 2, np.nan, 1], [2, 4, np.nan, 3], [1] * 4)
    assert one.ranking() == ["b", "d", "a", "c"]
    assert one["d"] == 2.0
    np.testing.assert_allclose(one.relative(), [1 / 3, 1, np.nan, 2 / 3])
    with pytest.raises(InputError, match="no layer 'z'"):
        one["z"]
    first = result([1.0, 2.0, 4.0], [0] * 3, [5] * 3, [1] * 3)
    assert first.correlation(np.array([2.0, 4.0, 8.0]))[0] == pytest.approx(1)
    with pytest.raises(InputError, match="different layers"):
        first.correlation(one)


def test_equal_layers_are_ranked_in_the_order_of_the_network():
    """On other processors the last digits differ, and an estimate below zero is shown as zero."""
    nothing = [-0.03128139, -0.03128145, 0.97978506, -0.03128131]
    same = [0.5 * (1 - 1e-7), 0.5 * (1 + 1e-7), 0.1, 0.7]
    for values, order in ((nothing, "cabd"), (same, "dabc")):
        for rounding in (-1e-7, 0.0, 1e-7):
            moved = np.array(values) + rounding * np.array([1, -2, 3, -4])
            assert result(moved, [0] * 4, [1] * 4, [1] * 4).ranking() == list(order)
    near = result([0.1234, 0.1235, 0.1236], [0] * 3, [1] * 3, [1] * 3)
    assert near.ranking() == ["c", "b", "a"]


def test_names_of_layers():
    net = nn.Sequential(TwoDoors(), nn.Linear(2, 2, bias=False))
    assert list(layer_parameters(net)) == ["0.open", "0.shut", "0.out", "1"]
    assert list(layer_parameters(net, ["0"])) == ["0"]
    with pytest.raises(InputError, match=r"no layer '0.opem'.*did you mean '0.open'"):
        layer_parameters(net, ["0.opem"])
    with pytest.raises(InputError, match="nothing is sent"):
        layer_parameters(nn.Tanh())


def test_clipping_dropping_and_noise_on_recorded_gradients():
    net = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    batches = [(torch.randn(5, 4), torch.randint(0, 2, (5,))) for _ in range(30)]
    seen = record_gradients(net, "cross_entropy", batches)
    limit = float(np.median(seen.total_norms()))
    clipped = seen.clipped(limit)
    np.testing.assert_allclose(clipped.total_norms(), np.minimum(seen.total_norms(), limit))
    np.testing.assert_allclose(
        np.linalg.norm(clipped["all layers"], axis=1), clipped.total_norms(), rtol=1e-5
    )
    assert seen.without("0").layers == ("1",)
    assert len(seen.rows(slice(0, 7))) == 7
    np.testing.assert_allclose(seen.noised(0.0)["1"], seen["1"])
    assert np.std(seen.noised(3.0)["0"] - seen["0"]) == pytest.approx(3.0, rel=0.15)
    for work, complaint in (
        (lambda: seen.without("0", "1"), "At least one layer must remain"),
        (lambda: seen.without("2"), "no layer '2'"),
        (lambda: seen.clipped(0.0), "above zero"),
        (lambda: seen.noised(-1.0), "scale must not be negative"),
        (lambda: LayerGradients.of({"a": np.ones(3)}), "one row per gradient"),
    ):
        with pytest.raises(InputError, match=complaint):
            work()
