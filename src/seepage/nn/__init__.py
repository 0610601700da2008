"""What private training of neural networks leaks about its records; needs torch.

Everything here is imported on first use, so that ``import seepage`` never waits for torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from seepage.lazy import lazy_names

if TYPE_CHECKING:
    from seepage.nn.accountant import FisherAccountant
    from seepage.nn.clipping import HardClip, NoClip, SmoothClip
    from seepage.nn.comparison import Comparison
    from seepage.nn.engine import Engine, Step
    from seepage.nn.estimate import Estimate
    from seepage.nn.gradient_leakage import GradientLeakage, leakage
    from seepage.nn.individual_loss import IndividualLoss
    from seepage.nn.merging import MergedRuns, merge_runs
    from seepage.nn.opacus_hook import attach
    from seepage.nn.plis_over_training import (
        PlisOverTraining,
        RunSusceptibility,
        SampledBatchWarning,
    )
    from seepage.nn.privacy_loss import plis
    from seepage.nn.private_sgd import PrivateSGD
    from seepage.nn.run_record import RunRecord, join_shares
    from seepage.nn.sampler_check import SamplerWarning
    from seepage.nn.samplers import FixedSizeSampler, PoissonSampler
    from seepage.nn.sharing import gather_shares
    from seepage.nn.susceptibility import Susceptibility
    from seepage.nn.validation import FallbackWarning, KinkWarning
    from seepage.nn.views import Embedding, Input, Label

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

_HOME = {
    "Comparison": "comparison",
    "Embedding": "views",
    "Engine": "engine",
    "Estimate": "estimate",
    "FallbackWarning": "validation",
    "FisherAccountant": "accountant",
    "FixedSizeSampler": "samplers",
    "GradientLeakage": "gradient_leakage",
    "HardClip": "clipping",
    "IndividualLoss": "individual_loss",
    "Input": "views",
    "KinkWarning": "validation",
    "Label": "views",
    "MergedRuns": "merging",
    "NoClip": "clipping",
    "PlisOverTraining": "plis_over_training",
    "PoissonSampler": "samplers",
    "PrivateSGD": "private_sgd",
    "RunRecord": "run_record",
    "RunSusceptibility": "plis_over_training",
    "SampledBatchWarning": "plis_over_training",
    "SamplerWarning": "sampler_check",
    "SmoothClip": "clipping",
    "Step": "engine",
    "Susceptibility": "susceptibility",
    "attach": "opacus_hook",
    "gather_shares": "sharing",
    "join_shares": "run_record",
    "leakage": "gradient_leakage",
    "merge_runs": "merging",
    "plis": "privacy_loss",
}

__getattr__ = lazy_names(__name__, _HOME, globals(), needs_torch=True)


def __dir__() -> list[str]:
    return __all__
