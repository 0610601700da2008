"""(ε, δ) for adding, removing and replacing a record, beside dp-accounting and integration."""

import json
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binomtest, kstest

from sampled import sampled

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
sys.path.append(str(BENCHMARKS))

import promises  # noqa: E402
import training_attack  # noqa: E402

SOME = [(0.5, 1.0, 1), (0.9, 5.0, 60)]


@pytest.mark.parametrize("setting", sampled(promises.SETTINGS, [], SOME, whole=True))
def test_no_delta_exceeds_the_promise(setting):
    found = promises.row(*setting)
    assert found["epsilon"]["add-or-remove"] == pytest.approx(found["dp_accounting"], rel=1e-3)
    for kind, delta in found["delta by integration"].items():
        assert delta <= promises.DELTA * (1 + 1e-3), kind
        if kind != "fixed" or setting[2] == 1:  # else no single pair of data attains the bound
            assert delta >= promises.DELTA * 0.95, kind
    assert found["renyi, replace"] <= found["renyi, half the noise"] * (1 + 1e-9)


def test_the_kept_table_shows_the_same():
    kept = json.loads(promises.KEPT.read_text(encoding="utf-8"))
    assert len(kept["settings"]) == 20
    for found in kept["settings"]:
        assert found["epsilon"]["add-or-remove"] == pytest.approx(found["dp_accounting"], rel=1e-3)
        assert max(found["delta by integration"].values()) <= promises.DELTA * (1 + 1e-3)
        assert found["epsilon"]["replace"] <= found["renyi, replace"]
    more, fewer = kept["opacus"]
    assert (more["rate"], fewer["rate"]) == (0.5, 1.0)
    for run in (more, fewer):
        assert run["zero-out"] == pytest.approx(run["opacus"])
        assert run["replace"] > run["opacus"]
    attack = kept["attack"]
    assert attack["declared"] <= attack["promised"] < attack["real"] / 2


@pytest.mark.parametrize("way", training_attack.WAYS)
def test_the_attack_counts_real_runs_as_their_definition_says(way):
    setting = training_attack.Setting(0.9, 10, 0.8, 2, 10)
    draw = np.random.default_rng(0)
    for member in (True, False):
        real = training_attack.by_training(setting, way, member, 60)
        drawn = training_attack.by_definition(setting, way, member, 20_000, draw)
        assert real.sums.shape == (60, 2)
        assert kstest(real.sums.ravel(), drawn.sums.ravel()).pvalue > 1e-6
        if way == training_attack.SIZED:  # its rate moves with n: 0.9, or one without the target
            assert (real.there.mean() == 9) == (not member)


def test_kept_attacks_on_real_runs_beat_no_promise_and_catch_the_controls():
    """Recomputed from the kept counts, with limits of another library than the benchmark's."""
    kept = json.loads(training_attack.KEPT.read_text(encoding="utf-8"))
    by_way = {way: [] for way in training_attack.WAYS}
    for row in kept["rows"]:
        by_way[row["way"]].append(row)
    settings = [asdict(setting) for setting in training_attack.SETTINGS]
    assert {way: len(rows) for way, rows in by_way.items()} == dict.fromkeys(by_way, 12)
    level = kept["overall level"] / 96 / 2
    for rows in by_way.values():
        assert [row["setting"] for row in rows] == settings
        for row in rows:
            for one in row["found"]:
                hits = round(one["true"] * row["runs"])
                exact = binomtest(hits, row["runs"], alternative="greater")
                low = exact.proportion_ci(1 - level, "exact").low
                assert one["lower end"] == pytest.approx(low, abs=1e-9)
                assert one["beaten"] == (one["lower end"] > one["allowed"])
    caught = {way: sum(map(training_attack.beaten, rows)) for way, rows in by_way.items()}
    assert caught["declared"] == 0
    for row in by_way["declared"]:
        assert row["runs"] == 10_000
        assert row["p of its noise"] > 1e-4
    for way in (training_attack.HALF, training_attack.SIZED):
        # Whatever is nearly sure to be caught is caught.
        for row in by_way[way]:
            power = training_attack.power(row["expected"])
            assert training_attack.beaten(row) or power < 0.999
