"""Made-up recordings of federated rounds for the tests of their report, and hostile ones."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np

from seepage.auditing.findings import Gate
from seepage.auditing.rounds.report import RecordingReport
from seepage.layers import LayerGradients, audit_recording

CLIENTS, ROUNDS = 10, 4
NODES = np.arange(CLIENTS, dtype=np.uint64) + np.uint64(2**63)


def make_recording(
    layers=("conv1", "bn1.buffers", "fc"),
    metrics=("num-examples", "loss"),
    *,
    found=True,
    apart=False,
    nodes=NODES,
    seed=0,
):
    """Return updates of which the second layer tells whether a client's number is odd."""
    draw = np.random.default_rng(seed)
    client, number = np.tile(np.arange(CLIENTS), ROUNDS), np.repeat(np.arange(ROUNDS) + 1, CLIENTS)
    blocks = {name: draw.standard_normal((len(client), 5)) for name in layers}
    if found:
        blocks[layers[1]] += 6 * (client % 2)[:, None]
    if apart:
        blocks[layers[1]] += 15 * (client == 3)[:, None]
    told = {name: draw.standard_normal(len(client)) for name in metrics}
    return replace(LayerGradients.of(blocks), nodes=nodes[client], rounds=number, metrics=told)


@cache
def audited(text, **changes):
    """Return an audit of such a recording with what was known of its clients, made but once."""
    if text is not None:
        changes |= {
            "layers": (text, text + "2.buffers", text + "3"),
            "metrics": (text, text + "2"),
            "nodes": np.array([f"{text}{k}" for k in range(CLIENTS)]),
        }
    recording = make_recording(**changes)
    odd, even = ("wears glasses", "does not") if text is None else (text + "o", text + "e")
    known = {str(n): odd if k % 2 else even for k, n in enumerate(changes.get("nodes", NODES))}
    return audit_recording(recording, known, family="logistic", permutations=199), known


def make_report(text=None, *, passed=None, values=False, **changes):
    """Return what is reported of such a recording; with a text, every name in it is that text."""
    audit, known = audited(text, **changes)
    gates = ()
    if passed is not None:
        gates = (Gate("--max-bits", 0.5, 0.9, passed, where=text or "bn1.buffers"),)
    return RecordingReport(
        audit,
        "updates.npz" if text is None else text,
        "glasses" if text is None else text,
        gates,
        known if values else None,
        {"seepage": "0.1.0"} if text is None else {text: text},
    )
