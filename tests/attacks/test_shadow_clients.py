"""Shadow clients: an attacker with data of the same kind, from the models that were sent."""

from __future__ import annotations

import itertools
import json
import stat
from dataclasses import replace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import seepage as sp
from seepage.cli import app
from seepage.errors import InputError
from seepage.layers.federated.sent_models import Sent
from seepage.layers.measures.client_scores import ClientScores, areas, over_attackers, standardised
from seepage.layers.measures.first_round import compare_attackers

CLIENTS, RECORDS, ROUNDS = 12, 24, 2
RECIPE = {"method": "fedavg", "lr": 0.1, "batch_size": 8, "local_epochs": 1}
NETWORK = """
import torch

def network():
    torch.manual_seed(0)
    net = torch.nn.Sequential()
    net.add_module("entry", torch.nn.Linear(6, 5))
    net.add_module("norm", torch.nn.BatchNorm1d(5))
    net.add_module("bend", torch.nn.ReLU())
    net.add_module("exit", torch.nn.Linear(5, 2))
    return net
"""


def network():
    names = {}
    exec(NETWORK, names)  # noqa: S102 - the file that the command is given
    return names["network"]()


def draw_records(bright, records, seed):
    """Return records of which one input is larger if the property holds, unlike the label."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(records, 6, generator=draw)
    y = (x[:, 0] > 0).long()
    x[:, 5] += 3.0 * bright
    return x, y


@pytest.fixture(scope="module")
def recorded():
    """Return a recording, the models sent, and the property, of clients half of them bright."""
    seen = []
    run = sp.layers.simulate(
        network(),
        "cross_entropy",
        [draw_records(k % 2, RECORDS, k) for k in range(CLIENTS)],
        rounds=ROUNDS,
        snapshots=range(ROUNDS),
        observe=seen.append,
        **RECIPE,
    )
    recording = sp.layers.record_updates(network(), seen, width=20, seed=3)
    return recording, run.snapshots, {k: "old" if k % 2 else "new" for k in range(CLIENTS)}


@pytest.fixture(scope="module")
def auxiliary():
    pairs = [draw_records(bright, 200, 900 + bright) for bright in (0, 1)]
    x, y = (torch.cat(part).numpy() for part in zip(*pairs, strict=True))
    return x, y, np.repeat(["new", "old"], 200)


def make_attacker(auxiliary, **changes):
    x, y, values = auxiliary
    options = {"records": RECORDS, "clients": 15, **RECIPE, **changes}
    return sp.attacks.ShadowClients(network(), "cross_entropy", (x, y), values, **options)


def test_shadow_clients_infer_a_planted_property(recorded, auxiliary):
    recording, models, known = recorded
    found = make_attacker(auxiliary).attack(recording, known, models=models)
    assert found["all layers"] > 0.9
    assert found.columns["p_value"][found.layers.index("all layers")] <= 0.05
    low, high = found.span("all layers")[1:]
    assert low < found["all layers"] <= high


def test_a_property_that_changes_only_the_size_of_updates_is_inferred():
    """Targets are signs at random, so gradients have mean 0 with and without larger inputs."""

    def draw_client(large, records, seed):
        draw = torch.Generator().manual_seed(seed)
        x = torch.randn(records, 6, generator=draw)
        x[:, 2:] *= 1 + 2 * large
        return x, torch.randint(0, 2, (records, 1), generator=draw) * 2.0 - 1

    net, seen = torch.nn.Linear(6, 1), []
    torch.nn.init.zeros_(net.weight)
    recipe = {"method": "fedsgd", "batch_size": RECORDS}
    clients = [draw_client(k % 2, RECORDS, k) for k in range(40)]
    run = sp.layers.simulate(
        net, "mse", clients, rounds=8, snapshots=range(8), observe=seen.append, lr=1e-3, **recipe
    )
    pairs = [draw_client(large, 2000, 900 + large) for large in (0, 1)]
    attacker = sp.attacks.ShadowClients(
        net,
        "mse",
        tuple(torch.cat(part) for part in zip(*pairs, strict=True)),
        np.repeat([0, 1], 2000),
        records=RECORDS,
        lr=1e-3,
        **recipe,
    )
    recording = sp.layers.record_updates(net, seen)
    found = attacker.attack(recording, {k: k % 2 for k in range(40)}, models=run.snapshots)
    assert found["all layers"] > 0.9  # by the mean alone: 0.43


class LowRank(torch.nn.Module):
    """A frozen layer with a trained change of rank 2."""

    def __init__(self):
        super().__init__()
        self.base = torch.nn.Linear(6, 5).requires_grad_(False)
        self.down = torch.nn.Parameter(0.5 * torch.randn(2, 6))
        self.up = torch.nn.Parameter(torch.zeros(5, 2))

    def forward(self, x):
        return self.base(x) + x @ self.down.T @ self.up.T


def test_adapters_alone_and_clients_who_take_part_in_some_rounds():
    torch.manual_seed(1)
    net = torch.nn.Sequential(LowRank(), torch.nn.ReLU(), torch.nn.Linear(5, 2))
    data = [draw_records(k % 2, RECORDS, k) for k in range(CLIENTS)]
    auxiliary = [draw_records(bright, 400, 900 + bright) for bright in (0, 1)]
    attacker = sp.attacks.ShadowClients(
        net,
        "cross_entropy",
        tuple(torch.cat(part) for part in zip(*auxiliary, strict=True)),
        np.repeat(["0", "1"], 400),
        records=RECORDS,
        clients=20,
        **RECIPE,
    )
    known = {k: str(k % 2) for k in range(CLIENTS)}
    for present, rounds in ((CLIENTS, 4), (5, 8)):
        seen = []
        run = sp.layers.simulate(
            net,
            "cross_entropy",
            data,
            rounds=rounds,
            snapshots=range(rounds),
            observe=seen.append,
            per_round=present,
            **RECIPE,
        )
        recording = sp.layers.record_updates(net, seen)
        assert not any("base" in layer for layer in recording.layers)  # frozen, so not sent
        took_part = set(np.asarray(recording.nodes).astype(int).tolist())
        here = {k: value for k, value in known.items() if k in took_part}
        assert len(recording) == rounds * present
        found = attacker.attack(recording, here, models=run.snapshots)
        assert found["all layers"] > 0.9


def test_the_scores_do_not_depend_on_the_clients_property(recorded, auxiliary):
    recording, models, _ = recorded
    first, second = (make_attacker(auxiliary).scores(recording, models=models) for _ in range(2))
    np.testing.assert_array_equal(first.values, second.values)
    assert first.clients == tuple(sorted(map(str, range(CLIENTS))))
    assert first.layers == (*recording.layers, "all layers")


def test_shadow_updates_are_projected_as_the_recording_is(recorded):
    """An update of a real client, recorded again, is the row that the recording holds."""
    recording, models, _ = recorded
    net, seen = network(), []
    net.load_state_dict(models[0])
    data = [draw_records(k % 2, RECORDS, k) for k in range(CLIENTS)]
    sp.layers.simulate(net, "cross_entropy", data, rounds=1, observe=seen.append, **RECIPE)
    again = sp.layers.record_updates(net, seen, like=recording)
    assert recording.projected
    for layer in recording.layers:
        np.testing.assert_allclose(again[layer], recording[layer][:CLIENTS], rtol=1e-5, atol=1e-6)


def test_a_recorder_keeps_private_models_by_choice(tmp_path):
    net = network()
    for models, files in ((None, 2), (True, 2), (False, 0)):
        path = tmp_path / str(models)
        recorder = sp.layers.UpdateRecorder(net, path, models=models)
        for number, node in itertools.product((1, 2), (7, 8)):
            sent = {name: value + number for name, value in net.state_dict().items()}
            returned = {name: value + node for name, value in sent.items()}
            recorder.add(sent, returned, number, node, run=5)
            recorder.save()
        kept = list(path.glob("model-*.safetensors"))
        assert len(kept) == files
        assert {stat.S_IMODE(file.stat().st_mode) for file in kept} <= {0o600}
        assert len(sp.layers.load_gradients(path)[0]) == 4
        if files:
            state = sp.layers.load_models(path)[Sent(2, 5)]
            expected = net.state_dict()["entry.weight"] + 2
            torch.testing.assert_close(state["entry.weight"], expected)
            assert set(recorder.models()) == {Sent(1, 5), Sent(2, 5)}


@pytest.mark.parametrize("name", ["updates.npz", "updates.safetensors"])
def test_one_file_holds_updates_and_models(recorded, tmp_path, name):
    recording, models, _ = recorded
    sp.layers.save_gradients(recording, tmp_path / name, models=models)
    found, _ = sp.layers.load_gradients(tmp_path / name)
    np.testing.assert_array_equal(found["entry"], recording["entry"])
    kept = sp.layers.load_models(tmp_path / name)
    assert set(kept) == {Sent(0), Sent(1)}
    for key, value in models[1].items():
        torch.testing.assert_close(kept[Sent(1)][key], value)


def test_areas_count_pairs():
    draw = np.random.default_rng(0)
    scores = draw.integers(0, 5, (9, 2)).astype(float)
    labels = draw.permuted(np.tile(np.arange(9) % 2, (6, 1)), axis=1)
    found = areas(scores, labels)
    gap = scores[:, 1] - scores[:, 0]
    for area, label in zip(found, labels, strict=True):
        ones, others = gap[label == 1], gap[label == 0]
        right = (ones[:, None] > others).mean() + (ones[:, None] == others).mean() / 2
        assert area == pytest.approx(right)


def test_p_values_over_attackers_by_hand():
    """Ranks of the best test of each attacker, the smaller of both, and its rank."""
    draw = np.random.default_rng(1)
    first, second = draw.standard_normal((3, 20)), draw.standard_normal((2, 20))
    p_first, p_second = over_attackers([first, second])
    best = [[max(tests[:, k]) for k in range(20)] for tests in (first, second)]
    rank = [[sum(o >= v for o in row) / 20 for v in row] for row in best]
    least = [min(a, b) for a, b in zip(*rank, strict=True)]
    for p_values, own in ((p_first, rank[0]), (p_second, rank[1])):
        assert p_values.min() == pytest.approx(sum(each <= own[0] for each in least) / 20)


def test_the_test_of_both_attackers_is_exact():
    """Over all labellings of six clients, P is at most p in at most a share p of them."""
    draw = np.random.default_rng(2)
    client = np.tile(np.arange(6), 3)
    seen = sp.layers.LayerGradients.of({"fc": draw.standard_normal((18, 3))})
    seen = replace(seen, nodes=client, rounds=np.repeat([1, 2, 3], 6))
    values = draw.standard_normal((2, 6, 1))
    values = np.concatenate([-values, values], axis=2)
    scores = ClientScores(tuple("012345"), ("fc", "all layers"), values, ("0", "1"))
    least = []
    for chosen in itertools.combinations(range(6), 3):
        labels = np.isin(np.arange(6), chosen).astype(int)
        over, test = compare_attackers(seen, labels[client], scores, permutations=999, seed=0)
        least.append(min(over.p_values.min(), test.p_values.min()))
    for level in (0.1, 0.2, 0.5):
        assert np.mean(np.array(least) <= level) <= level + 0.06


def test_a_statistic_that_is_constant_says_nothing():
    assert standardised(np.ones((1, 4))).tolist() == [[0, 0, 0, 0]]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"optimizer": "lion"}, "optimizer must be"),
        ({"records": None}, "num-examples"),
        ({"records": 500}, "too few records"),
    ],
)
def test_recipes_that_cannot_be_followed_are_refused(recorded, auxiliary, change, words):
    recording, models, _ = recorded
    with pytest.raises(InputError, match=words):
        make_attacker(auxiliary, **change).scores(recording, models=models)


def test_a_recording_without_models_or_of_another_network_is_refused(recorded, auxiliary):
    recording, models, known = recorded
    attacker = make_attacker(auxiliary)
    with pytest.raises(InputError, match="lacks the models sent to the clients"):
        attacker.scores(recording)
    with pytest.raises(InputError, match="lacks the model sent in round 1"):
        attacker.scores(recording, models={0: models[0]})
    with pytest.raises(InputError, match=r"lacks the parameter 'entry\.weight'"):
        attacker.scores(recording, models={k: {"fc": torch.ones(1)} for k in models})
    with pytest.raises(InputError, match="no score for the value 'ancient'"):
        attacker.attack(recording, {**known, 0: "ancient", 2: "ancient"}, models=models)


@pytest.fixture
def folder(recorded, auxiliary, tmp_path):
    recording, models, known = recorded
    sp.layers.save_gradients(recording, tmp_path / "updates.npz", models=models)
    lines = [f"{node},{value}" for node, value in known.items()]
    (tmp_path / "clients.csv").write_text("\n".join(["node,scanner", *lines]))
    x, y, values = auxiliary
    np.savez(tmp_path / "own.npz", x=x, y=y, scanner=values)
    (tmp_path / "net.py").write_text(NETWORK)
    return tmp_path


def run(folder, *words, auxiliary="own.npz", network="net.py:network"):
    command = ["layers", str(folder / "updates.npz"), "--property", str(folder / "clients.csv")]
    command += ["--family", "logistic"]
    if auxiliary:
        command += ["--auxiliary", str(folder / auxiliary), "--learning-rate", "0.1"]
        command += ["--batch-size", "8", "--client-size", str(RECORDS), "--shadow-clients", "15"]
    if network:
        command += ["--network", str(folder / network)]
    return CliRunner().invoke(app, [*command, *words])


def test_the_command_follows_the_attacker_with_data(folder):
    found = run(folder, "--json", "--max-auc", "0.7")
    assert found.exit_code == 1, found.output
    summary = json.loads(found.stdout)
    first, second = summary["attacks"]
    assert (first["attacker"], second["attacker"]) == ("auxiliary data", "other clients' property")
    assert first["auc"] > 0.9
    assert first["p_value"] <= 0.05
    assert first["low"] < first["auc"] <= first["high"]
    assert 0.5 < first["chance"] < 1
    assert first["shadows"] == 30
    (gate,) = summary["gates"]
    assert gate["measured"] == max(first["auc"], second["auc"])
    assert all(0 <= layer["auc"] <= 1 for layer in summary["layers"])


def test_the_headline_names_the_attacker_and_its_interval(folder):
    said = run(folder, "--out", str(folder / "out")).stdout
    assert (
        "The property leaks: An attacker with data of the same kind infers “scanner” from" in said
    )
    assert "30 shadow clients" in said
    page = (folder / "out" / "report.html").read_text()
    assert "Attacker with auxiliary data" in page
    assert "inferred without auxiliary data" in page


def test_without_data_the_first_sentence_says_what_was_not_tried(folder):
    found = run(folder, "--json", auxiliary=None, network=None)
    assert found.exit_code == 0, found.output
    said = run(folder, "--out", str(folder / "out"), auxiliary=None, network=None).stdout
    answer = next(k for k, line in enumerate(said.splitlines()) if ": " in line)
    assert said.splitlines()[answer + 1].strip() == (
        "No attacker with data of the same kind was tested; add --auxiliary."
    )
    assert json.loads(found.stdout)["attacks"] == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"network": None}, "give --network"),
        ({"auxiliary": None}, "--network is used with --auxiliary"),
        ({"network": "net.py:netwerk"}, "did you mean 'network'"),
        ({"network": "net.py"}, "file.py:function"),
        ({"auxiliary": "own.pkl"}, "contain no executable code"),
        ({"auxiliary": "clients.npz"}, "There is no file"),
        ({"auxiliary": "short.npz"}, "lacks y"),
    ],
)
def test_what_cannot_be_used_is_refused(folder, words, said):
    np.savez(folder / "short.npz", x=np.ones((3, 6)), property=np.ones(3))
    found = run(folder, **words)
    assert found.exit_code == 2
    assert said in " ".join(found.stderr.split())


@pytest.mark.parametrize("kind", ["safetensors", "parquet"])
def test_data_of_every_kind_are_the_same(folder, auxiliary, kind):
    from seepage.auditing.intake.auxiliary_file import read_auxiliary

    x, y, values = auxiliary
    path = folder / f"own.{kind}"
    if kind == "safetensors":
        from safetensors.numpy import save_file

        save_file({"x": x, "y": y, "scanner": (values == "old").astype(np.int64)}, path)
        values = np.where(values == "old", "1", "0")
    else:
        import pyarrow as pa
        import pyarrow.parquet as pq

        columns = {f"x{k}": column for k, column in enumerate(x.T)}
        pq.write_table(pa.table({**columns, "label": y, "scanner": values}), path)
    found = read_auxiliary(path, "scanner")
    np.testing.assert_array_equal(found.x, x)
    np.testing.assert_array_equal(found.y, y)
    np.testing.assert_array_equal(found.property, values)
