"""What one run of private SGD shows of its own ε, beside promises of 1, 4 and 8.

A network of 784, 32 and 10 units is trained on 1,000 digits of MNIST and 1,000 canaries, each of
them in the data by a coin toss, for ten steps with every record at every step. The attacker sees
every noisy gradient. Claimed: no promise is refuted, and those of 4 and 8 are shown to be no less
than 1. The runs are seeded, so that they can be repeated: experiments. Kept in
``results/canaries.json``. Run: ``python benchmarks/canaries.py`` (minutes on one core).
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import nn

import seepage as sp
from filtered_runs import DELTA, digits, noise_for
from keeping import keep

STEPS = 10
KEPT = Path(__file__).parent / "results" / "canaries.json"


def audited(epsilon: float) -> sp.attacks.CanaryAudit:
    """Return what the canaries of a run that promises ε show."""
    X, y = (part[:1000] for part in digits().train)
    torch.manual_seed(0)
    trainer = sp.nn.PrivateSGD(
        nn.Sequential(nn.Linear(784, 32), nn.Tanh(), nn.Linear(32, 10)),
        "cross_entropy",
        steps=STEPS,
        sample_rate=1.0,
        expected_batch=1500,
        learning_rate=1.0,
        noise_multiplier=noise_for(1.0, STEPS, epsilon),
        seed=0,
        probes=1,
        individual=False,
        method="derivative",
        clip_derivative="conservative",
    )
    return sp.attacks.audit_private_sgd(trainer, X, y, canaries=1000, delta=DELTA, seed=0)


def main() -> int:
    """Audit three runs, print, keep, and compare with the claims."""
    torch.set_num_threads(1)
    rows = []
    for epsilon in (1.0, 4.0, 8.0):
        audit = audited(epsilon)
        print(audit, flush=True)
        rows.append(
            {
                "promised": audit.promised,
                "shown": audit.epsilon,
                "right": audit.correct,
                "guesses": audit.guesses,
                "canaries": audit.canaries,
                "refuted": audit.refuted,
            }
        )
    keep({"delta": DELTA, "confidence": 0.95, "runs": rows}, KEPT)
    none = not any(row["refuted"] for row in rows)
    return 0 if none and all(row["shown"] > 1 for row in rows[1:]) else 1


if __name__ == "__main__":
    sys.exit(main())
