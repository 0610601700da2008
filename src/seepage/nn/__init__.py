"""What private training of neural networks leaks about its records; needs torch.

Everything here is imported on first use, so that ``import seepage`` never waits for torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from seepage.lazy import lazy_names

if TYPE_CHECKING:
    from seepage.nn.accountant import FisherAccountant
    from seepage.nn.clipping import HardClip, NoClip, SmoothClip
    from seepage.nn.engine import Engine, Step
    from seepage.nn.estimate import Estimate
    from seepage.nn.gradient_leakage import GradientLeakage, leakage
    from seepage.nn.merging import MergedRuns, merge_runs
    from seepage.nn.opacus_hook import attach
    from seepage.nn.private_sgd import PrivateSGD
    from seepage.nn.run_record import RunRecord, join_shares
    from seepage.nn.sampler_check import SamplerWarning
    from seepage.nn.samplers import FixedSizeSampler, PoissonSampler
    from seepage.nn.sharing import gather_shares
    from seepage.nn.validation import FallbackWarning, KinkWarning
    from seepage.nn.views import Embedding, Input, Label

__all__ = [
    "Embedding",
    "Engine",
    "Estimate",
    "FallbackWarning",
    "FisherAccountant",
    "FixedSizeSampler",
    "GradientLeakage",
    "HardClip",
    "Input",
    "KinkWarning",
    "Label",
    "MergedRuns",
    "NoClip",
    "PoissonSampler",
    "PrivateSGD",
    "RunRecord",
    "SamplerWarning",
    "SmoothClip",
    "Step",
    "attach",
    "gather_shares",
    "join_shares",
    "leakage",
    "merge_runs",
]

_HOME = {
    "Embedding": "views",
    "Engine": "engine",
    "Estimate": "estimate",
    "FallbackWarning": "validation",
    "FisherAccountant": "accountant",
    "FixedSizeSampler": "samplers",
    "GradientLeakage": "gradient_leakage",
    "HardClip": "clipping",
    "Input": "views",
    "KinkWarning": "validation",
    "Label": "views",
    "MergedRuns": "merging",
    "NoClip": "clipping",
    "PoissonSampler": "samplers",
    "PrivateSGD": "private_sgd",
    "RunRecord": "run_record",
    "SamplerWarning": "sampler_check",
    "SmoothClip": "clipping",
    "Step": "engine",
    "attach": "opacus_hook",
    "gather_shares": "sharing",
    "join_shares": "run_record",
    "leakage": "gradient_leakage",
    "merge_runs": "merging",
}

__getattr__ = lazy_names(__name__, _HOME, globals(), needs_torch=True)


def __dir__() -> list[str]:
    return __all__
