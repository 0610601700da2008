"""Statements about federated clients that were wrong at commit 8814631, each by its number.

Every test goes through names that the package had then. Run there, they give:

========================================  ==============================  =====================
statement                                 test                            at 8814631
========================================  ==============================  =====================
a restarted run, 200 random labellings    test_recorder_numbers: two      196 of 200 name a layer
                                          runs, 200 labellings
remedies clip counters                    test_recorder_numbers: clip     clipped to 8.15, not 0.47
the report follows the weaker attacker    here, 1                         no --auxiliary
ordinary clients stand out                here, 2                         27 of 200 runs
int8 updates are stored as numbers        test_recorder_numbers: int8     norm 246.6, not 0.19
the AUC's interval jumps at 1             test_attack_intervals: nearly   from 0.61 to 0.93
``save()`` rewrites all rounds            here, 3                         20 times the bytes
negative lower ends in summary.json       here, 4                         −0.31
"not sure" in green                       here, 4                         "good"
``node % 2`` in the how-to                here, 5                         it is there
``figures/`` open to others               here, 4                         755
========================================  ==============================  =====================
"""

from __future__ import annotations

import json
import re
import stat
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.special import expit
from torch import nn
from typer.testing import CliRunner

from seepage.cli import app
from seepage.layers import LayerGradients, save_gradients, standing_out

PAGES = Path(__file__).parents[2] / "docs" / "how-to"
CLIENTS, ROUNDS = 12, 4


def like_clients(draw, kind="iid"):
    """Return gradients of logistic regression at four models, on records that stay the same."""
    models = np.random.default_rng(9).standard_normal((ROUNDS, 5))
    moves = np.zeros((ROUNDS, CLIENTS, 5))
    for client in range(CLIENTS):
        records = (8, 20, 60)[client % 3] if kind == "unequal" else 20
        y = draw.random(records) < 0.5
        heavy = kind == "heavy-tailed"
        x = draw.standard_t(2, (records, 5)) if heavy else draw.standard_normal((records, 5))
        x += y[:, None]
        for number, model in enumerate(models):
            moves[number, client] = x.T @ (expit(x @ model) - y) / records
    seen = LayerGradients.of({"fc": moves.reshape(-1, 5), "out": moves[..., 0].reshape(-1, 1)})
    client, number = np.tile(np.arange(CLIENTS), ROUNDS), np.repeat(np.arange(ROUNDS), CLIENTS)
    return replace(seen, nodes=client, rounds=number)


@pytest.fixture
def quiet(tmp_path):
    """Return a recording on disk whose property is random, and its table."""
    save_gradients(like_clients(np.random.default_rng(4), "iid"), tmp_path / "updates.npz")
    lines = [f"{client},{client % 2}" for client in range(CLIENTS)]
    (tmp_path / "clients.csv").write_text("\n".join(["node,scanner", *lines]))
    return tmp_path


def command(folder, *words):
    files = [str(folder / "updates.npz"), "--property", str(folder / "clients.csv")]
    out = ["--out", str(folder / "out"), "--family", "logistic"]
    return CliRunner().invoke(app, ["layers", *files, *out, *words])


def test_1_the_report_names_the_stronger_attacker_or_says_it_was_not_tried(quiet):
    said = command(quiet).stdout
    assert "No attacker with data of the same kind was tested; add --auxiliary." in said
    # That the verdict follows it where it was: tests/attacks/test_shadow_clients.py.
    assert (
        "--auxiliary"
        in CliRunner().invoke(app, ["layers", "--help"], env={"COLUMNS": "200"}).stdout
    )


@pytest.mark.parametrize("kind", ["iid", "unequal", "heavy-tailed"])
def test_2_ordinary_clients_do_not_stand_out(kind):
    draw = np.random.default_rng(1)
    named = sum(bool(standing_out(like_clients(draw, kind)).named()) for _ in range(200))
    assert named <= 19  # 5 % of 200 is 10, with a standard deviation of 3.1


def test_3_what_a_round_writes_does_not_grow(tmp_path):
    recorder_of = pytest.importorskip("seepage.layers.federated.flower").UpdateRecorder
    recorder = recorder_of(nn.Linear(6, 1, bias=False), tmp_path / "kept" / "updates.npz")
    (tmp_path / "kept").mkdir(exist_ok=True)
    written, before = [], {}
    for number in range(1, 41):
        for node in range(CLIENTS):
            state = {"weight": torch.zeros(1, 6)}
            recorder.add(state, {"weight": torch.ones(1, 6)}, number, node)
        recorder.save()
        files = [file for file in (tmp_path / "kept").rglob("*") if file.is_file()]
        now = {file: file.stat() for file in files}
        changed = [
            each.st_size
            for file, each in now.items()
            if file not in before
            or (before[file].st_ino, before[file].st_mtime_ns) != (each.st_ino, each.st_mtime_ns)
        ]
        before = now
        written.append(sum(changed))
    assert sum(written[-5:]) < 1.5 * sum(written[:5])


def test_4_no_lower_end_is_negative(quiet):
    assert command(quiet).exit_code == 0
    summary = json.loads((quiet / "out" / "summary.json").read_text("utf-8"))
    lows = [each["low"] for part in ("layers", "remedies") for each in summary[part]]
    assert min(lows) >= 0


def test_5_a_report_that_found_nothing_is_not_green(quiet):
    assert command(quiet).exit_code == 0
    page = (quiet / "out" / "report.html").read_text("utf-8")
    (tone,) = set(re.findall(r'class="verdict (\w+)"', page))
    assert tone == "caution"


def test_6_the_how_to_does_not_guess_a_property_from_node_numbers():
    text = "".join((PAGES / name).read_text("utf-8") for name in ("flower.md", "federated.md"))
    assert "node % 2" not in text
    assert "partition-id" in text


def test_7_figures_are_the_owners(quiet):
    assert command(quiet).exit_code == 0
    assert stat.S_IMODE((quiet / "out" / "figures").stat().st_mode) == 0o700
