"""Mo et al. 2021's figures from made-up runs, and the experiment itself in miniature."""

from __future__ import annotations

import json
from functools import cache

import numpy as np
import pytest
from scipy.stats import t as student
from sklearn.tree import DecisionTreeClassifier

from reproduction.layers import figure1 as layers_figure1
from reproduction.layers import figure2 as layers_figure2
from reproduction.layers import figure3 as layers_figure3
from reproduction.layers import runs as layers_runs
from reproduction.layers.longer import LongTraining, highest_in_words, layer_quantities
from reproduction.layers.runs import LayerCurve, Runs
from seepage.data import Faces, Records
from seepage.errors import InputError
from seepage.layers.measures import classifiers

LAYERS = {
    "AlexNet": ["conv1", "conv2", "conv3", "fc1", "fc2"],
    "VGG11Net": [*(f"conv{k}" for k in range(1, 9)), "fc1", "fc2", "fc3"],
    "FCNet": [f"fc{k}" for k in range(1, 10)],
}


def made_up(repetitions=3, shift=0.2):
    """Runs in which the first dense layer stands out by ``shift`` in everything."""
    draw = np.random.default_rng(0)
    runs = []
    for network, names in LAYERS.items():
        for task in ("Gender", "Glasses", "Hair"):
            for number in range(repetitions):
                bump = shift * (np.array(names) == "fc1")

                def values(extra, bump=bump, names=names):
                    level = np.linspace(0.5, 0.6, len(names)) + bump
                    more = [0.7] * extra
                    return [*(level + 0.005 * draw.standard_normal(len(names))), *more]

                properties = {
                    name: {
                        "auc": values(1),
                        "auc_confounded": values(1),
                        "v_information": values(0),
                    }
                    for name in ("Glasses", "Age", "Gender", "Hair")
                }
                runs.append(
                    {
                        "network": network,
                        "task": task,
                        "repetition": number,
                        "accuracy": 0.9,
                        "layers": names,
                        "sizes": [10_000 if name == "fc1" else 100 for name in names],
                        "sensitivity": values(0),
                        "properties": properties,
                    }
                )
    amounts = {
        "rounds": 10,
        "lr": 0.05,
        "batch_size": 32,
        "snapshots": 2,
        "known": 3,
        "seen": 2,
        "measured": 5,
        "samples": 8,
        "width": 64,
    }
    return Runs({"machine": "a machine", "amounts": amounts, "runs": runs})


def made_up_accuracy(seeds=3, top=0.94):
    """Accuracies that rise to ``top`` over the first half and stay there; seeds differ by 0.01."""
    runs = []
    for network in LAYERS:
        for split in ("people", "images"):
            for seed in range(seeds):
                rise = np.minimum(np.arange(1, 9) / 4, 1)
                runs.append(
                    {
                        "network": network,
                        "split": split,
                        "lr": 0.05,
                        "seed": seed,
                        "rounds": list(range(10, 90, 10)),
                        "test": (top * rise + 0.01 * seed).tolist(),
                        "train": rise.tolist(),
                    }
                )
    return {"rounds": 80, "runs": runs}


@cache
def drawn(figure, shift=0.2):
    """Return what a figure says of made-up runs; drawing takes longest, so each is drawn once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figure, "kept_runs", lambda: made_up(shift=shift))
        if figure is layers_figure1:
            patch.setattr(figure, "long_training", lambda: LongTraining(made_up_accuracy()))
            patch.setattr(figure, "other_runs", lambda: made_up(shift=shift))
            patch.setattr(figure, "CIFAR10", (("Gender", "Glasses"), ("Hair", "Age")))
            patch.setattr(figure, "kept_lines", lambda files: ())
        return figure.reproduce(False)


def numbers(outcome):
    assert len({q.name for q in outcome.quantities}) == len(outcome.quantities)
    assert all(q.settled for q in outcome.quantities)
    assert len(outcome.figure.png) < 150_000
    assert outcome.seen.endswith(".")
    return {q.name: q for q in outcome.quantities}


@pytest.mark.slow
def test_what_agrees_with_the_paper_is_said_to():
    first = drawn(layers_figure1)
    found = numbers(first)
    assert first.seen.count("as claimed") == 3
    assert "Over layers, the AUC correlates with V-information (1.00)" in first.seen
    for network in LAYERS:
        assert found[f"{network}: layer with the highest AUC"].agrees
        assert (
            found[f"{network}: correlation of V-information and AUC over the layers"].measured > 0.8
        )
    several = drawn(layers_figure2)
    second = numbers(several)
    assert all(second[f"{p}: layer with the highest AUC"].agrees for p in ("Age", "Gender", "Hair"))
    third = numbers(drawn(layers_figure3))
    assert third["VGG11Net, Hair: most sensitive layer"].agrees
    assert third["AlexNet, Gender: first dense layer relative to it"].measured == pytest.approx(1)


@pytest.mark.slow
def test_and_what_does_not_is_not():
    outcome = drawn(layers_figure1, -0.2)
    found = numbers(outcome)
    for network in LAYERS:
        assert not found[f"{network}: layer with the highest AUC"].agrees
        assert (
            found[f"{network}: first dense layer not clearly below the highest (1: yes)"].measured
            == 0
        )
    assert "not at the first dense layer" in outcome.seen
    told = drawn(layers_figure2, -0.2).seen
    assert "significantly below the highest for all three properties" in told


@pytest.mark.slow
def test_without_the_normalisation_the_largest_layer_is_the_most_sensitive():
    found = numbers(drawn(layers_figure1, -0.2))
    for network, names in LAYERS.items():
        sensitive = found[f"{network}: layer with the highest sensitivity"]
        assert not sensitive.agrees
        assert "Without ψ" in sensitive.reason
        bare = found[f"{network}: layer with the highest sensitivity, without ψ"]
        assert bare.measured == names.index("fc1") + 1
    third = numbers(drawn(layers_figure3, -0.2))
    assert third["VGG11Net, Hair: most sensitive layer, without ψ"].measured == 9


def test_the_kept_results_have_the_printed_pattern_without_the_normalisation():
    runs = layers_runs.kept_runs()
    for network, tasks in {"AlexNet": 3, "VGG11Net": 3, "FCNet": 1}.items():
        for task in ("Gender", "Glasses", "Hair")[:tasks]:
            bare = runs.without_size(network, task)
            assert bare.highest == layers_runs.first_full(bare.layers)
            assert runs.sensitivity(network, task).highest != bare.highest


@pytest.mark.slow
def test_correlations_come_with_their_significance_and_with_another_attack():
    runs = made_up()
    found = numbers(drawn(layers_figure2))
    attack = runs.curve("VGG11Net", "Glasses", "auc", "Age")
    informed = runs.curve("VGG11Net", "Glasses", "v_information", "Age")
    other = runs.curve("VGG11Net", "Gender", "auc", "Glasses")
    R = found["Age: correlation R of V-information and AUC"].measured
    assert pytest.approx(np.corrcoef(informed.mean, attack.mean)[0, 1]) == R
    # Student's t of a correlation over eleven layers.
    t = R * np.sqrt(9 / (1 - R**2))
    assert found["Age: p of R, V-information"].measured == pytest.approx(2 * student.sf(t, 9))
    moved = np.corrcoef(informed.mean, other.mean)[0, 1] - R
    change = found["Age: ΔR of V-information, against the AUC of Figure 1"].measured
    assert change == pytest.approx(moved)


@pytest.mark.slow
def test_accuracies_on_data_that_are_not_at_hand_are_listed_as_not_made():
    found = numbers(drawn(layers_figure1))
    for data, printed in {"CelebA": "87", "PubFig": "97"}.items():
        missing = found[f"{data}, AlexNet: test accuracy in percent"]
        assert (missing.measured, missing.agrees, missing.printed) == (None, None, printed)
        assert "seepage data fetch celeba" in missing.reason


def test_differences_are_judged_repetition_by_repetition():
    each = np.array([[0.50, 0.51], [0.70, 0.71], [0.60, 0.61], [0.40, 0.41]])
    curve = LayerCurve(("a", "b"), each)
    assert curve.highest == 2
    assert not curve.reaches_the_highest(1)  # a little less, but always
    noisy = LayerCurve(("a", "b"), each + np.array([[0.1, 0], [-0.1, 0], [0.1, 0], [-0.1, 0]]))
    assert noisy.reaches_the_highest(1)
    np.testing.assert_allclose(curve.relative().each[:, 1], 1)


def test_too_little_was_kept(monkeypatch, tmp_path):
    with pytest.raises(InputError, match="hold 1 repetitions of AlexNet"):
        made_up(1).select("AlexNet", "Gender")
    monkeypatch.setattr(layers_runs, "KEPT", tmp_path / "none.json")
    layers_runs.kept_runs.cache_clear()
    with pytest.raises(InputError, match=r"none\.json are not there"):
        layers_runs.kept_runs()


def faces(count=240):
    draw = np.random.default_rng(0)
    scores = {
        "male_manual": (np.arange(count) % 2).astype(float),
        "pred_Eyeglasses": draw.random(count),
        "pred_Young": draw.random(count),
        "pred_Gray_Hair": draw.random(count),
    }
    people = np.array([f"p{k // 2}" for k in range(count)])
    images = draw.integers(0, 255, (count, 62, 47, 3)).astype(np.uint8)
    return Faces(images, Records({"person": people} | scores))


def labelled():
    """Return those faces with LFW's labels."""
    from reproduction.layers.image_sets import SOURCES, LabelledImages

    return LabelledImages.of(faces(), SOURCES["lfw"].labels, "cpu")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The labels of the gradients can be exchanged")
def test_the_experiment_in_miniature(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    from reproduction.layers import experiment as experiment
    from reproduction.layers.measuring import Amounts, LayerSetting

    small = Amounts(
        rounds=2, batch_size=4, snapshots=2, known=2, seen=2, measured=5, samples=4, width=32
    )
    monkeypatch.setitem(
        classifiers.CLASSIFIERS, "random_forest", lambda seed: DecisionTreeClassifier()
    )
    monkeypatch.setattr(experiment, "_data", labelled())
    found = experiment._work(
        LayerSetting("AlexNet", "Gender", ("Glasses",), confounded=True), small, 0
    )
    assert found.pop("seconds") > 0
    assert found["layers"] == LAYERS["AlexNet"]
    assert len(found["sensitivity"]) == 5
    measured = found["properties"]["Glasses"]
    assert len(measured["auc"]) == len(measured["auc_confounded"]) == 6
    assert len(measured["v_information"]) == 5
    made = {"command": "a command", "commit": "a commit", "machine": "a machine"}
    record = experiment._begin(tmp_path / "runs.json", small, made, experiment.FACTORS)
    record["runs"] += [found, found | {"repetition": 1}]
    experiment.write_runs(record, tmp_path / "runs.json", ("repetition",))
    again = experiment._begin(tmp_path / "runs.json", small, made, experiment.FACTORS)
    assert again == record | {"continued": [made]}
    runs = Runs(json.loads((tmp_path / "runs.json").read_text()))
    assert runs.curve("AlexNet", "Gender", "auc", "Glasses").each.shape == (2, 5)
    with pytest.raises(SystemExit, match="other amounts"):
        experiment._begin(tmp_path / "runs.json", Amounts(), made, experiment.FACTORS)
    with pytest.raises(SystemExit, match="another set, split or attacker"):
        experiment._begin(tmp_path / "runs.json", small, made, {"set": "cifar10"})


def test_no_one_is_on_two_sides():
    pytest.importorskip("torch")
    from reproduction.layers.measuring import Amounts, LayerRepetition, LayerSetting

    data = labelled()
    found = LayerRepetition(data, LayerSetting("FCNet", "Gender", ("Age",)), Amounts(), 3)
    rows = (found.adversary, found.client, found.test)
    one, other, third = (set(data.people[part].tolist()) for part in rows)
    assert all((one, other, third))
    assert len(one | other | third) == len(one) + len(other) + len(third)


def test_images_drawn_at_random_put_people_on_both_sides():
    pytest.importorskip("torch")
    from reproduction.layers.checks import MIXED, SETTING
    from reproduction.layers.measuring import Amounts, LayerRepetition

    data = labelled()
    apart = LayerRepetition(data, SETTING, Amounts(), 3)
    mixed = LayerRepetition(data, MIXED, Amounts(), 3)
    for side in ("adversary", "client", "test"):
        assert len(getattr(mixed, side)) == len(getattr(apart, side))
    rows = np.concatenate([mixed.adversary, mixed.client, mixed.test])
    assert sorted(rows) == sorted(set(rows))
    trained = data.people[np.concatenate([mixed.adversary, mixed.client])]
    assert np.isin(data.people[mixed.test], trained).mean() > 0.5


@pytest.mark.filterwarnings("ignore:The labels of the gradients can be exchanged")
def test_the_checks_in_miniature(monkeypatch):
    pytest.importorskip("torch")
    from reproduction.layers import checks
    from reproduction.layers.measuring import Amounts

    small = Amounts(rounds=2, batch_size=4, snapshots=2, known=2, seen=2, width=32)
    monkeypatch.setitem(
        classifiers.CLASSIFIERS, "random_forest", lambda seed: DecisionTreeClassifier()
    )
    (row,) = checks.check(labelled(), small, 1)
    assert 0 <= row["people apart"] <= 1
    assert 0 <= row["images at random"] <= 1
    assert row["projected"].keys() == row["whole"].keys() == {"fc1", "fc2"}


def test_every_set_has_labels_by_its_own_cut():
    pytest.importorskip("torch")
    from reproduction.layers.image_sets import SOURCES, LabelledImages

    count = 6
    scores = np.array([-1.0, -0.2, 0.2, 0.4, 0.7, np.nan])
    for name, expected in (("lfw", [0, 0, 0, 0, 1]), ("pubfig", [0, 0, 1, 1, 1])):
        columns = {label.column: scores for label in SOURCES[name].labels.values()}
        columns["person"] = np.array(["a", "a", "b", "", "", "c"])
        made = Faces(np.zeros((count, 5, 4, 3), dtype=np.uint8), Records(columns))
        found = LabelledImages.of(made, SOURCES[name].labels, "cpu")
        for values in found.labels.values():
            np.testing.assert_array_equal(values, [*expected, np.nan])
        assert found.size == (5, 4)
        assert len(set(found.people.tolist())) == 5  # two unnamed images are two people


def test_a_folder_of_images_is_read_by_its_table(tmp_path):
    pytest.importorskip("torch")
    from PIL import Image

    from reproduction.layers.image_sets import LabelledImages

    for k, name in enumerate(("b.png", "a.png")):
        Image.new("RGB", (8, 6), (100 * k, 0, 0)).save(tmp_path / name)
    table = tmp_path / "labels.csv"
    table.write_text("image,person,smiles,old\na.png,x,1,\nb.png,,0,0.7\n")
    found = LabelledImages.load(str(tmp_path), None, "cpu", (3, 4))
    assert found.images.shape == (2, 3, 4, 3)
    assert found.images[:, 0, 0, 0].tolist() == [100, 0]  # in the order of the table
    np.testing.assert_array_equal(found.labels["smiles"], [1, 0])
    np.testing.assert_array_equal(found.labels["old"], [np.nan, 1])
    table.write_text("image,smiles\na.png,yes\n")
    with pytest.raises(InputError, match=r"Column 'smiles' of .* holds text"):
        LabelledImages.load(str(tmp_path), None, "cpu")
    table.write_text("file,smiles\na.png,1\n")
    with pytest.raises(InputError, match="no column 'image'"):
        LabelledImages.load(str(tmp_path), None, "cpu")
    with pytest.raises(InputError, match="no image set or folder 'lwf'"):
        LabelledImages.load("lwf", None, "cpu")


def test_a_property_of_one_label_alone_is_attacked_with_its_own_mix():
    pytest.importorskip("torch")
    from reproduction.layers.measuring import Amounts, LayerRepetition, LayerSetting

    data = labelled()
    data.labels["Beard"] = np.where(data.labels["Gender"] == 1, data.labels["Age"], 0.0)
    setting = LayerSetting("FCNet", "Gender", ("Age", "Beard"), confounded=True)
    found = LayerRepetition(data, setting, Amounts(), 3)
    assert found.mixes("Age") == ("matched", "confounded")
    assert found.mixes("Beard") == ("confounded",)


def test_the_settings_are_the_papers_or_those_asked_for():
    pytest.importorskip("torch")
    from argparse import Namespace

    from reproduction.layers.experiment import SETTINGS, _settings

    asked = {"network": None, "task": None, "property": [], "split": "people"}
    asked["attacker"] = "random_forest"
    assert _settings(Namespace(**asked)) == list(SETTINGS)
    own = Namespace(**asked | {"task": "Animal", "property": ["Flies"], "split": "images"})
    assert [s.name for s in _settings(own)] == [
        f"{network}, Animal" for network in ("AlexNet", "VGG11Net", "FCNet")
    ]
    assert all((s.properties, s.split) == (("Flies",), "images") for s in _settings(own))


def test_a_packed_file_holds_the_images_and_their_labels(tmp_path):
    pytest.importorskip("torch")
    from reproduction.layers.image_sets import SOURCES, LabelledImages
    from reproduction.layers.packed import pack

    draw = np.random.default_rng(1)
    smooth = np.repeat(draw.integers(0, 255, (30, 1, 1, 3)), 62, axis=1).repeat(47, axis=2)
    lfw = faces(30)
    lfw = Faces(smooth.astype(np.uint8), lfw.attributes)
    columns = {label.column: draw.integers(0, 2, 7) for label in SOURCES["cifar10"].labels.values()}
    noise = draw.integers(0, 255, (7, 32, 32, 3)).astype(np.uint8)
    things = Faces(noise, Records({"person": np.full(7, ""), "unused": np.zeros(7)} | columns))
    path = tmp_path / "images.npz"
    wanted = {name: [c.column for c in SOURCES[name].labels.values()] for name in SOURCES}
    pack(path, {"lfw": (lfw, wanted["lfw"]), "cifar10": (things, wanted["cifar10"])})
    found = LabelledImages.load("cifar10", str(path), "cpu")
    np.testing.assert_array_equal(found.images, noise)
    np.testing.assert_array_equal(found.labels["Dog"], columns["dog"])
    assert "unused" not in found.labels
    few = LabelledImages.load("lfw", str(path), "cpu", count=20)
    inside = (slice(None, 20), slice(8, -8), slice(8, -8))  # JPEG's blocks mix neighbours
    assert np.abs(few.images.numpy()[inside].astype(int) - smooth[inside]).max() < 8
    np.testing.assert_array_equal(few.labels["Gender"], np.arange(20) % 2)
    assert len(set(few.people.tolist())) == 10
    with pytest.raises(InputError, match=r"holds cifar10, lfw, but not 'pubfig'"):
        LabelledImages.load("pubfig", str(path), "cpu")
    with pytest.raises(InputError, match="There are 30 images"):
        LabelledImages.load("lfw", str(path), "cpu", count=31)


def test_a_round_is_a_step_along_the_mean_of_both_clients_gradients():
    torch = pytest.importorskip("torch")
    from reproduction.layers.accuracy import FederatedTraining, draw_batches

    torch.manual_seed(0)
    x, y = torch.randn(30, 4), torch.randint(0, 2, (30,))
    clients = (np.arange(12), np.arange(12, 30))
    batches = draw_batches(clients, 5, 3, seed=7)
    assert all(len(set(rows.tolist())) == 10 for rows in batches)  # without replacement
    assert (batches[:, :5] < 12).all()
    assert (batches[:, 5:] >= 12).all()
    net = torch.nn.Linear(4, 2)
    weight, bias = net.weight.detach().clone(), net.bias.detach().clone()
    training = FederatedTraining(net, x, y, batches, lr=0.1)
    step = training.recorded()
    for rows in batches:
        step()
        moves = []
        for part in rows.split(5):  # by hand: softmax minus the label, times the input
            error = torch.softmax(x[part] @ weight.T + bias, 1)
            error[torch.arange(5), y[part]] -= 1
            moves.append((error.T @ x[part] / 5, error.mean(0)))
        weight = weight - 0.1 * (moves[0][0] + moves[1][0]) / 2
        bias = bias - 0.1 * (moves[0][1] + moves[1][1]) / 2
        torch.testing.assert_close(net.weight.detach(), weight)
        torch.testing.assert_close(net.bias.detach(), bias)
    assert int(training.round) == 3


def test_accuracies_come_by_round(monkeypatch):
    pytest.importorskip("torch")
    from reproduction.layers import accuracy

    monkeypatch.setattr(accuracy, "POINTS", 3)
    found = accuracy.accuracy_by_round(labelled(), "FCNet", "people", 0.01, 0, 6)
    assert found["rounds"] == [2, 4, 6]
    assert len(found["test"]) == len(found["train"]) == 3
    assert all(0 <= value <= 1 for value in found["test"] + found["train"])


def _failing(n):
    if n == 2:
        raise InputError("2 is not finite")
    return {"n": n}


def test_jobs_are_kept_one_by_one(tmp_path, capsys):
    import time
    from os import getcwd

    from reproduction.layers.pool import run_jobs, write_runs

    record = {"command": "a", "runs": []}
    out = tmp_path / "runs.json"

    def keep(found):
        record["runs"].append(found)
        write_runs(record, out, ("n",))

    ready = {"keep": keep, "prepare": getcwd, "given": (), "workers": 1}
    jobs = [({"n": n},) for n in (2, 1)]  # ten minutes: a busy machine starts workers slowly
    assert run_jobs(dict, jobs, **ready, stop=time.monotonic() + 600)
    assert json.loads(out.read_text()) == {"command": "a", "runs": [{"n": 1}, {"n": 2}]}
    assert run_jobs(_failing, [(1,), (2,)], **ready, stop=time.monotonic() + 600)
    assert "a job is left out: 2 is not finite" in capsys.readouterr().out
    assert record["runs"][-1] == {"n": 1}
    assert not run_jobs(time.sleep, [(30,)], **ready, stop=time.monotonic() + 0.1)


def test_data_that_are_not_at_hand_are_said_in_one_sentence(tmp_path):
    pytest.importorskip("torch")
    from reproduction.layers.experiment import main

    given = ["--set", "celeba", "--data", str(tmp_path), "--workers", "1", "--small"]
    with pytest.raises(SystemExit, match=r"^error: The data set celeba is not in ") as said:
        main([*given, "--out", str(tmp_path / "runs.json")])
    assert "\n" not in str(said.value)
    assert not (tmp_path / "runs.json").exists()


def test_the_plateau_is_the_last_quarter_and_its_rise_is_told():
    found = LongTraining(made_up_accuracy()).curves("AlexNet", "people")
    np.testing.assert_allclose(found.plateau, [94, 95, 96])
    np.testing.assert_allclose(found.rise, 0, atol=1e-12)
    rising = made_up_accuracy()
    for run in rising["runs"]:
        run["test"] = np.linspace(0.1, 0.8, 8).tolist()
    np.testing.assert_allclose(LongTraining(rising).curves("FCNet", "images").rise, 20)
    words = LongTraining(made_up_accuracy()).why("FCNet")
    assert "In the last quarter of 80 rounds, the test accuracy is 94.0 to 96.0 % " in words
    assert "(split by person, 3 seeds)" in words
    assert "(by image, 3 seeds), at most 0.0 percentage points from the third quarter's" in words
    assert "(training accuracy: " in words


def test_longer_training_and_other_data_have_their_highest_layers():
    runs = made_up()
    found = {q.name: q.measured for q in layer_quantities(runs, "longer", "Gender", "Glasses")}
    assert found["VGG11Net, longer: layer with the highest AUC"] == 9
    assert found["AlexNet, longer: layer with the highest V-information"] == 4
    assert found["FCNet, longer: repetitions"] == 3
    for run in runs.record["runs"]:
        for measured in run["properties"].values():
            del measured["auc"]  # a property of one label alone
    assert highest_in_words(runs, "Gender", "Glasses").startswith("AlexNet fc1 0.7")
    below = highest_in_words(made_up(shift=-0.2), "Gender", "Glasses").split("; ")[0]
    each = made_up(shift=-0.2).curve("AlexNet", "Gender", "auc", "Glasses").each
    gap = each[:, 4] - each[:, 3]
    error = 2 * gap.std(ddof=1) / np.sqrt(3)
    assert f"(fc1 lower by {gap.mean():.2f} ± {error:.2f}), 3 repetitions" in below
    few = made_up(1)
    assert layer_quantities(few, "longer", "Gender", "Glasses") == []
