"""What private training of neural networks leaks about its records; needs torch.

Everything here is imported on first use, so that ``import seepage`` never waits for torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from seepage.support.lazy import lazy_names

if TYPE_CHECKING:
    from seepage.nn.accounting.accountant import FisherAccountant
    from seepage.nn.accounting.joining import MergedRuns, gather_shares, join_shares, merge_runs
    from seepage.nn.accounting.run_record import RunRecord
    from seepage.nn.gradients.network_checks import FallbackWarning, KinkWarning
    from seepage.nn.jacobian.engine import Engine, Step
    from seepage.nn.measures.estimate import Estimate
    from seepage.nn.measures.gradient_leakage import GradientLeakage, leakage
    from seepage.nn.privacy.individual_loss import IndividualLoss
    from seepage.nn.problem.clipping import HardClip, NoClip, SmoothClip
    from seepage.nn.problem.views import Embedding, Input, Label
    from seepage.nn.sampling.batch_check import SamplerWarning
    from seepage.nn.sampling.samplers import FixedSizeSampler, PoissonSampler
    from seepage.nn.susceptibility.comparison import Comparison
    from seepage.nn.susceptibility.over_training import (
        PlisOverTraining,
        RunSusceptibility,
        SampledBatchWarning,
    )
    from seepage.nn.susceptibility.plis import Susceptibility, plis
    from seepage.nn.training.opacus import attach
    from seepage.nn.training.private_sgd import PrivateSGD

__all__ = [
    "Comparison",
    "Embedding",
    "Engine",
    "Estimate",
    "FallbackWarning",
    "FisherAccountant",
    "FixedSizeSampler",
    "GradientLeakage",
    "HardClip",
    "IndividualLoss",
    "Input",
    "KinkWarning",
    "Label",
    "MergedRuns",
    "NoClip",
    "PlisOverTraining",
    "PoissonSampler",
    "PrivateSGD",
    "RunRecord",
    "RunSusceptibility",
    "SampledBatchWarning",
    "SamplerWarning",
    "SmoothClip",
    "Step",
    "Susceptibility",
    "attach",
    "gather_shares",
    "join_shares",
    "leakage",
    "merge_runs",
    "plis",
]

__getattr__, __dir__ = lazy_names(__name__, globals(), needs_torch=True)
