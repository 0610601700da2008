"""Recording leaves the network alone, takes arrays, and refuses what cannot be recorded."""

from __future__ import annotations

import copy
import stat
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from seepage.errors import InputError
from seepage.layers import (
    LayerGradients,
    audit,
    record_gradients,
    record_updates,
    sensitivity,
    simulate,
)
from seepage.layers.federated.gradients import joined
from seepage.layers.federated.sent_names import with_own_names
from seepage.layers.federated.stored_recordings import load_gradients, save_gradients


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def batch(size=8):
    draw = torch.Generator().manual_seed(1)
    return torch.randn(size, 3, generator=draw), torch.arange(size) % 2


def test_running_statistics_stay_as_they_are():
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).train()
    before = copy.deepcopy(net.state_dict())
    seen = record_gradients(net, "cross_entropy", [batch(), batch()])
    torch.testing.assert_close(net.state_dict(), before)
    np.testing.assert_array_equal(seen["0"][0], seen["0"][1])
    assert np.any(seen["0"][0])


def test_a_buffer_that_a_run_replaces_is_put_back():
    class Counting(nn.Linear):
        def forward(self, x):
            self.runs = self.runs + 1
            return super().forward(x) * self.runs

    net = Counting(3, 2)
    net.register_buffer("runs", torch.zeros(()))
    seen = record_gradients(net, "cross_entropy", [batch(), batch()])
    assert float(net.runs) == 0
    np.testing.assert_array_equal(seen["weight"][0], seen["weight"][1])


@pytest.mark.slow
def test_an_audit_does_not_alter_the_network_and_refuses_what_is_about_one_record():
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).train()
    before = copy.deepcopy(net.state_dict())
    x, y = batch(200)
    options = {"batches": 10, "batch_size": 8, "family": "logistic"}
    found = audit(net, "cross_entropy", x, y, torch.arange(200) % 4 < 2, **options)
    torch.testing.assert_close(net.state_dict(), before)
    assert found.sensitivity is None
    assert "BatchNorm1d '1' mixes the records" in found.refused["sensitivity"]
    assert "Not measured: sensitivity, because BatchNorm1d '1' mixes" in str(found)
    assert found.v_information.layers == ("0", "1", "2")
    with pytest.raises(InputError, match="BatchNorm1d '1' mixes the records"):
        sensitivity(net, "cross_entropy", x, y)


@pytest.mark.parametrize("loss", ["cross_entropy", nn.CrossEntropyLoss()])
def test_arrays_serve_as_batches(loss):
    x, y = batch()
    tensors = record_gradients(network(), loss, [(x, y)])
    for numbers in (np.float32, np.float64):
        for whole in (np.int64, np.int32, bool):
            pair = (x.numpy().astype(numbers), y.numpy().astype(whole))
            arrays = record_gradients(network(), loss, [pair])
            np.testing.assert_array_equal(arrays["2"], tensors["2"])


@pytest.mark.minutes
def test_arrays_serve_as_records_of_an_audit():
    x, y = batch(400)
    trait = np.arange(400) % 4 < 2
    options = {"batches": 10, "batch_size": 8, "family": "logistic", "records": 5}
    one = audit(network(), "cross_entropy", x, y, trait, **options)
    other = audit(network(), "cross_entropy", x.double().numpy(), y.numpy(), trait, **options)
    np.testing.assert_array_equal(one.v_information.values, other.v_information.values)


def test_targets_to_be_ignored_are_no_classes():
    x, y = batch()
    y = torch.where(torch.arange(8) == 3, -100, y)
    assert len(record_gradients(network(), nn.CrossEntropyLoss(), [(x, y)])) == 1
    with pytest.raises(InputError, match="Batch 0 has the label -100"):
        record_gradients(network(), "cross_entropy", [(x, y)])


@pytest.mark.parametrize(
    ("batches", "complaint"),
    [
        ([batch(), (torch.zeros(0, 3), torch.zeros(0, dtype=torch.long))], "Batch 1 has 0 records"),
        (
            [(batch()[0], batch()[1] + 1)],
            "Batch 0 has the label 2, but the network has 2 classes",
        ),
        (batch(), "Batch 0 must be a pair"),
        ([(np.array([["a"] * 3] * 8), batch()[1])], "inputs contain <U1 values"),
        ([(batch()[0], ["yes"] * 8)], "targets contain"),
        ([(batch()[0], 1)], "a single number"),
    ],
)
def test_batches_that_cannot_be(batches, complaint):
    with pytest.raises(InputError, match=complaint):
        record_gradients(network(), "cross_entropy", batches)


def test_names_that_layers_cannot_have():
    for layers in ([0], 0):
        with pytest.raises(InputError, match="strings; write '0'"):
            record_gradients(network(), "cross_entropy", [batch()], layers=layers)
    net = nn.Sequential()
    net.add_module("all layers", nn.Linear(3, 2))
    with pytest.raises(InputError, match="reserved for all layers together"):
        record_gradients(net, "cross_entropy", [batch()])


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"records": -1}, "records must be at least 1"),
        ({"noise": float("nan")}, "noise must be a finite number"),
        ({"x": torch.zeros(30, 3)}, "30 records but 40 labels"),
        ({"y": torch.arange(40) % 3}, "y has the label 2, but the network has 2 classes"),
        ({"seed": -1}, "seed must be between 0"),
    ],
)
def test_audits_that_cannot_be(change, complaint):
    x, y = batch(40)
    options = {"x": x, "y": y, "property": np.arange(40) % 4 < 2} | change
    with pytest.raises(InputError, match=complaint):
        audit(network(), "cross_entropy", **options)


def test_recordings_know_whose_they_are(tmp_path):
    net = nn.Linear(3, 2)
    x, y = torch.randn(8, 3), torch.arange(8) % 2
    seen = []
    simulate(net, "cross_entropy", [(x, y), (x + 1, y)], rounds=3, observe=seen.append)
    recorded = record_updates(net, seen)
    assert recorded.nodes.tolist() == ["0", "1"] * 3
    assert recorded.rows(slice(1, 3)).nodes.tolist() == ["1", "0"]
    assert joined([recorded, recorded.clipped(1.0)]).nodes.tolist() == ["0", "1"] * 6
    save_gradients(recorded, tmp_path / "seen.npz")
    again, columns = load_gradients(tmp_path / "seen.npz")
    assert again.nodes.tolist() == columns["node"].tolist() == ["0", "1"] * 3
    own = record_gradients(net, "cross_entropy", [(x, y)] * 2, nodes=[7, 9])
    assert own.nodes.tolist() == [7, 9]
    assert record_gradients(net, "cross_entropy", [(x, y)]).nodes is None
    with pytest.raises(InputError, match="2 gradients, but nodes has the shape"):
        record_gradients(net, "cross_entropy", [(x, y)] * 2, nodes=[7])


@pytest.mark.parametrize("name", ["seen.npz", "seen.safetensors"])
def test_everything_recorded_comes_back_from_a_file(tmp_path, name):
    draw = np.random.default_rng(0)
    whole = replace(
        LayerGradients.of({"fc1": draw.standard_normal((4, 3)), "fc2": np.ones((4, 9))}, width=5),
        nodes=np.array(["0+1", "2+3", "0+1", "2+3"]),
        rounds=np.array([1, 1, 2, 2]),
        metrics={"z": np.array([1.0, 2.0, np.nan, 4.0]), "a": np.zeros(4)},
    )
    save_gradients(whole, tmp_path / name, age=np.arange(4))
    found, columns = load_gradients(tmp_path / name)
    whole.check_same_projection(found)
    for layer in whole:
        np.testing.assert_array_equal(found[layer], whole[layer])
    assert found.nodes.tolist() == whole.nodes.tolist()
    assert found.rounds.tolist() == whole.rounds.tolist()
    assert list(found.metrics) == ["z", "a"]
    np.testing.assert_array_equal(found.metrics["z"], whole.metrics["z"])
    assert columns["age"].tolist() == [0, 1, 2, 3]
    assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600


def test_metrics_are_an_entry_that_clipping_does_not_reach():
    seen = replace(
        LayerGradients.of({"fc": np.full((3, 4), 5.0)}),
        metrics={"loss": np.array([7.0, 8.0, np.nan])},
    )
    clipped = seen.clipped(1.0).with_metrics()
    assert clipped.layers == ("fc", "client metrics")
    np.testing.assert_allclose(np.linalg.norm(clipped["fc"], axis=1), 1.0)
    assert clipped["client metrics"].tolist() == [[7, 1], [8, 1], [0, 0]]
    assert seen.rows([0]).metrics["loss"].tolist() == [7.0]
    assert seen.without("client metrics").with_metrics().layers == ("fc",)
    with pytest.raises(InputError, match="reserved for metrics sent"):
        replace(seen, blocks={"client metrics": seen["fc"]})


def test_a_metric_that_some_did_not_send_is_missing_there():
    one = LayerGradients.of({"fc": np.ones((2, 3))})
    both = joined([replace(one, metrics={"loss": np.array([1.0, 2.0])}), one])
    np.testing.assert_array_equal(both.metrics["loss"], [1.0, 2.0, np.nan, np.nan])


def test_a_warning_does_not_condemn_a_recording(tmp_path, monkeypatch):
    path = tmp_path / "seen.npz"
    save_gradients(LayerGradients.of({"a": np.ones((2, 3))}), path)
    load = np.load

    def outspoken(*given, **named):
        warnings.warn("additional header parsing", UserWarning, stacklevel=1)
        return load(*given, **named)

    monkeypatch.setattr(np, "load", outspoken)
    with pytest.raises(UserWarning, match="additional header parsing"):
        load_gradients(path)
    with pytest.warns(UserWarning, match="additional header parsing"):
        assert load_gradients(path)[0]["a"].tolist() == [[1, 1, 1], [1, 1, 1]]


def test_no_damaged_recording_is_read_in_silence(tmp_path):
    path, rng = tmp_path / "seen.npz", np.random.default_rng(1)
    save_gradients(LayerGradients.of({"a": rng.normal(size=(6, 5))}), path, client=np.arange(6))
    whole = path.read_bytes()
    for _ in range(200):
        damaged = bytearray(whole)
        damaged[rng.integers(len(whole))] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        try:
            found, columns = load_gradients(path)
        except InputError as error:
            assert "does not contain recorded gradients" in str(error)  # noqa: PT017
        else:  # a byte that no reader looks at, as a date: what is read is what was written
            path.write_bytes(whole)
            same, others = load_gradients(path)
            assert found["a"].tobytes() == same["a"].tobytes()
            assert columns["client"].tobytes() == others["client"].tobytes()


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"norms": np.ones((5, 1))}, "one row per gradient, 5 in all"),
        ({"norms": np.full((6, 1), np.nan)}, "norms"),
        ({"variance 0": np.ones(4)}, "5 columns and 4 variances, but its gradient has 5 entries"),
        ({"block 0": np.full((6, 5), np.inf, np.float32)}, "not finite"),
        ({"column client": np.arange(4)}, "column 'client'"),
    ],
)
def test_a_recording_whose_parts_do_not_belong_together_is_refused(tmp_path, change, complaint):
    path = tmp_path / "seen.npz"
    save_gradients(LayerGradients.of({"a": np.ones((6, 5))}), path, client=np.arange(6))
    with np.load(path) as found:
        arrays = {name: found[name] for name in found.files if name != "sha256"} | change
    # As a version before checksums would have written it.
    arrays["layers"] = np.frombuffer(b'[["a", 5]]', dtype=np.uint8)
    np.savez(path, **arrays)
    with pytest.raises(InputError, match=complaint):
        load_gradients(path)


class Adapted(nn.Module):
    """Names its adapters as peft does."""

    def __init__(self):
        super().__init__()
        self.peft_config = {"default": None}
        self.lora_A = nn.ModuleDict({"default": nn.Linear(3, 2, bias=False)})
        self.head = nn.ModuleDict({"modules_to_save": nn.ModuleDict({"default": nn.Linear(2, 1)})})


@pytest.mark.parametrize(
    ("net", "sent", "own"),
    [
        (nn.BatchNorm1d(2), ["weight", "extra"], ["weight", "extra"]),
        (nn.BatchNorm1d(2), ["0", "1"], ["weight", "bias"]),
        (
            nn.BatchNorm1d(2),
            ["0", "1", "2", "3", "4"],
            ["weight", "bias", "running_mean", "running_var", "num_batches_tracked"],
        ),
        (nn.BatchNorm1d(2), ["0", "1", "2"], ["0", "1", "2"]),
        (nn.Linear(2, 2), ["_module.weight", "_module.bias"], ["weight", "bias"]),
        (nn.Linear(2, 2), ["module._orig_mod.weight"], ["weight"]),
        (
            Adapted(),
            ["lora_A.weight", "head.weight", "head.bias"],
            [
                "lora_A.default.weight",
                "head.modules_to_save.default.weight",
                "head.modules_to_save.default.bias",
            ],
        ),
    ],
)
def test_names_that_tools_give_are_the_networks_own(net, sent, own):
    found = with_own_names(net, {name: k for k, name in enumerate(sent)})
    assert found == {name: k for k, name in enumerate(own)}


def test_recordings_that_would_hold_nothing_are_refused():
    with pytest.raises(InputError, match="nothing to record"):
        record_gradients(network(), "cross_entropy", [])
    with pytest.raises(InputError, match="width must be at least 1 and a whole number, not 0"):
        record_gradients(network(), "cross_entropy", [batch()], width=0)
    x, y = batch()
    with pytest.raises(InputError, match="Batch 0 contains NaN or infinity"):
        record_gradients(network(), "cross_entropy", [(x * np.inf, y)])
    net = network()
    nn.init.constant_(net[0].weight, torch.nan)
    with pytest.raises(InputError, match="A gradient is not finite"):
        record_gradients(net, "cross_entropy", [(x, y)])


def test_entries_of_layers_that_are_not_recorded_may_come_and_go():
    net = network()
    sent = {name: value.detach() for name, value in net.named_parameters()}
    less = {name: value for name, value in sent.items() if not name.startswith("2.")}
    seen = record_updates(net, [less, sent], layers=["0"])
    np.testing.assert_array_equal(seen["0"][0], seen["0"][1])
    with pytest.raises(InputError, match=r"also contains 'more', which the first update lacks"):
        record_updates(net, [sent, sent | {"more": torch.ones(2)}])


def test_a_file_whose_numbers_were_changed_is_refused(tmp_path):
    path = tmp_path / "seen.npz"
    save_gradients(record_gradients(network(), "cross_entropy", [batch()]), path)
    with np.load(path) as held:
        arrays = dict(held)
    arrays["block 0"] = arrays["block 0"] + 1
    np.savez(path, **arrays)
    with pytest.raises(InputError, match="its checksum does not match its content"):
        load_gradients(path)
