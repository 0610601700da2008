"""Measures how much the training of a neural network leaks about its records; requires torch.

All names are imported on first use, so that ``import seepage`` does not import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from seepage.support.lazy import lazy_names

if TYPE_CHECKING:
    from seepage.nn.accounting.accountant import FisherAccountant as FisherAccountant
    from seepage.nn.accounting.joining import MergedRuns as MergedRuns
    from seepage.nn.accounting.joining import gather_shares as gather_shares
    from seepage.nn.accounting.joining import join_shares as join_shares
    from seepage.nn.accounting.joining import merge_runs as merge_runs
    from seepage.nn.accounting.measured_run import MeasuredRun as MeasuredRun
    from seepage.nn.gradients.network_checks import FallbackWarning as FallbackWarning
    from seepage.nn.gradients.network_checks import KinkWarning as KinkWarning
    from seepage.nn.huggingface.private_trainer import PrivateTrainer as PrivateTrainer
    from seepage.nn.huggingface.token_map import Token as Token
    from seepage.nn.huggingface.token_map import TokenMap as TokenMap
    from seepage.nn.huggingface.token_map import token_leakage as token_leakage
    from seepage.nn.huggingface.trainer_callback import LeakageCallback as LeakageCallback
    from seepage.nn.jacobian.engine import Engine as Engine
    from seepage.nn.jacobian.engine import Step as Step
    from seepage.nn.measures.estimate import Estimate as Estimate
    from seepage.nn.measures.exposure import ExposureScores as ExposureScores
    from seepage.nn.measures.exposure import exposure_scores as exposure_scores
    from seepage.nn.measures.gradient_leakage import GradientLeakage as GradientLeakage
    from seepage.nn.measures.gradient_leakage import leakage as leakage
    from seepage.nn.privacy.individual_loss import IndividualLoss as IndividualLoss
    from seepage.nn.problem.clipping import HardClip as HardClip
    from seepage.nn.problem.clipping import NoClip as NoClip
    from seepage.nn.problem.clipping import SmoothClip as SmoothClip
    from seepage.nn.problem.views import Embedding as Embedding
    from seepage.nn.problem.views import Input as Input
    from seepage.nn.problem.views import Label as Label
    from seepage.nn.sampling.batch_check import SamplerWarning as SamplerWarning
    from seepage.nn.sampling.samplers import FixedSizeSampler as FixedSizeSampler
    from seepage.nn.sampling.samplers import PoissonSampler as PoissonSampler
    from seepage.nn.susceptibility.comparison import Comparison as Comparison
    from seepage.nn.susceptibility.over_training import PlisOverTraining as PlisOverTraining
    from seepage.nn.susceptibility.over_training import RunSusceptibility as RunSusceptibility
    from seepage.nn.susceptibility.over_training import SampledBatchWarning as SampledBatchWarning
    from seepage.nn.susceptibility.plis import Susceptibility as Susceptibility
    from seepage.nn.susceptibility.plis import plis as plis
    from seepage.nn.training.lightning import PrivateCallback as PrivateCallback
    from seepage.nn.training.opacus import attach as attach
    from seepage.nn.training.private_gradients import PrivateGradients as PrivateGradients
    from seepage.nn.training.private_sgd import PrivateSGD as PrivateSGD

__getattr__, __dir__ = lazy_names(__name__, globals(), needs_torch=True)
