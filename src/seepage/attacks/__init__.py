"""Attacks that test the leakage measures and their bounds empirically.

The packages ``membership`` and ``attribute`` contain membership and attribute inference;
``canaries`` computes a lower bound on a training run's ε. ``record`` reconstructs a record from a
released linear model, ``gradient`` reconstructs records from a network's gradients, and
``extraction`` recovers training text from a language model. The other modules contain smaller
attacks, simulated releases, and confidence intervals. The measures and bounds that the attacks test
are in other packages.

Modules are imported on first use, so ``import seepage.attacks`` is fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from seepage.support.lazy import lazy_names

if TYPE_CHECKING:
    from seepage.attacks.attribute.adversary import Accuracy as Accuracy
    from seepage.attacks.attribute.adversary import AttributeInversion as AttributeInversion
    from seepage.attacks.attribute.adversary import InversionResult as InversionResult
    from seepage.attacks.attribute.baselines import Ideal as Ideal
    from seepage.attacks.attribute.baselines import Prior as Prior
    from seepage.attacks.attribute.black_box import BlackBox as BlackBox
    from seepage.attacks.attribute.nominal import NominalAttribute as NominalAttribute
    from seepage.attacks.attribute.white_box import WhiteBox as WhiteBox
    from seepage.attacks.canaries.coins import Canaries as Canaries
    from seepage.attacks.canaries.coins import CanaryAudit as CanaryAudit
    from seepage.attacks.canaries.one_run import epsilon_lower_bound as epsilon_lower_bound
    from seepage.attacks.canaries.private_training import audit_opacus as audit_opacus
    from seepage.attacks.canaries.private_training import audit_private_sgd as audit_private_sgd
    from seepage.attacks.canaries.training import audit_training as audit_training
    from seepage.attacks.extraction.attack import Extraction as Extraction
    from seepage.attacks.extraction.result import ExtractedSecret as ExtractedSecret
    from seepage.attacks.extraction.result import ExtractionResult as ExtractionResult
    from seepage.attacks.extraction.sampler import TokenSampler as TokenSampler
    from seepage.attacks.gradient.image_similarity import ImageQuality as ImageQuality
    from seepage.attacks.gradient.image_similarity import compare_images as compare_images
    from seepage.attacks.gradient.image_similarity import haarpsi as haarpsi
    from seepage.attacks.gradient.image_similarity import psnr as psnr
    from seepage.attacks.gradient.image_similarity import ssim as ssim
    from seepage.attacks.gradient.imprint import ImprintLayer as ImprintLayer
    from seepage.attacks.gradient.inversion import GradientInversion as GradientInversion
    from seepage.attacks.gradient.inversion import GradientReconstruction as GradientReconstruction
    from seepage.attacks.gradient.labels import recover_labels as recover_labels
    from seepage.attacks.gradient.reconstruction_study import (
        ReconstructionStudy as ReconstructionStudy,
    )
    from seepage.attacks.gradient.reconstruction_study import (
        reconstruction_study as reconstruction_study,
    )
    from seepage.attacks.gradient.releases import GradientReleases as GradientReleases
    from seepage.attacks.gradient.releases import release_gradients as release_gradients
    from seepage.attacks.gradient.releases import release_updates as release_updates
    from seepage.attacks.gradient.tokens import RecoveredTokens as RecoveredTokens
    from seepage.attacks.gradient.tokens import recover_tokens as recover_tokens
    from seepage.attacks.membership.inference import MembershipInference as MembershipInference
    from seepage.attacks.membership.inference import (
        MembershipInferenceResult as MembershipInferenceResult,
    )
    from seepage.attacks.noisy_releases import Releases as Releases
    from seepage.attacks.noisy_releases import draw_releases as draw_releases
    from seepage.attacks.outliers import OutlierDetection as OutlierDetection
    from seepage.attacks.outliers import out_of_distribution as out_of_distribution
    from seepage.attacks.property_inference import PropertyInference as PropertyInference
    from seepage.attacks.property_inference import (
        PropertyInferenceResult as PropertyInferenceResult,
    )
    from seepage.attacks.property_inference import attack_layers as attack_layers
    from seepage.attacks.property_inference import attack_recording as attack_recording
    from seepage.attacks.record.informed import InformedAdversary as InformedAdversary
    from seepage.attacks.record.informed import Reconstruction as Reconstruction
    from seepage.attacks.record.linearised import LinearisedAdversary as LinearisedAdversary
    from seepage.attacks.record.reconstruction_error import (
        ReconstructionErrors as ReconstructionErrors,
    )
    from seepage.attacks.record.reconstruction_error import (
        categorical_accuracy as categorical_accuracy,
    )
    from seepage.attacks.record.reconstruction_error import (
        reconstruction_errors as reconstruction_errors,
    )
    from seepage.attacks.remedies_compared import RemedyComparison as RemedyComparison
    from seepage.attacks.remedies_compared import RemedyOutcome as RemedyOutcome
    from seepage.attacks.remedies_compared import compare_remedies as compare_remedies
    from seepage.attacks.shadow_clients import ShadowClients as ShadowClients

__getattr__, __dir__ = lazy_names(__name__, globals())
