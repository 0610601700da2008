"""Adversaries that put the measures to the test: what they recover, with a confidence interval.

A room for every aim: an attribute of known records (``attribute``), a whole record from a released
linear model (``record``), records from a network's gradients (``gradient``). Beside them lie the
attacks that are one file each, the releases they are made on, and the intervals of what they
achieve. Measures and bounds are not here: attacks only test them.

Everything is imported on first use, so that ``import seepage.attacks`` costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from seepage.support.lazy import lazy_names

if TYPE_CHECKING:
    from seepage.attacks.attribute.adversary import Accuracy, AttributeInversion, InversionResult
    from seepage.attacks.attribute.baselines import Ideal, Prior
    from seepage.attacks.attribute.black_box import BlackBox
    from seepage.attacks.attribute.nominal import NominalAttribute
    from seepage.attacks.attribute.white_box import WhiteBox
    from seepage.attacks.gradient.image_similarity import (
        ImageQuality,
        compare_images,
        haarpsi,
        psnr,
        ssim,
    )
    from seepage.attacks.gradient.inversion import GradientInversion, GradientReconstruction
    from seepage.attacks.gradient.labels import recover_labels
    from seepage.attacks.gradient.releases import (
        GradientReleases,
        release_gradients,
        release_updates,
    )
    from seepage.attacks.noisy_releases import Releases, draw_releases
    from seepage.attacks.outliers import OutlierDetection, out_of_distribution
    from seepage.attacks.property_inference import (
        PropertyInference,
        PropertyInferenceResult,
        attack_layers,
    )
    from seepage.attacks.record.informed import InformedAdversary, Reconstruction
    from seepage.attacks.record.linearised import LinearisedAdversary
    from seepage.attacks.record.reconstruction_error import (
        ReconstructionErrors,
        categorical_accuracy,
        reconstruction_errors,
    )
    from seepage.attacks.remedies_compared import (
        RemedyComparison,
        RemedyOutcome,
        compare_remedies,
    )

__all__ = [
    "Accuracy",
    "AttributeInversion",
    "BlackBox",
    "GradientInversion",
    "GradientReconstruction",
    "GradientReleases",
    "Ideal",
    "ImageQuality",
    "InformedAdversary",
    "InversionResult",
    "LinearisedAdversary",
    "NominalAttribute",
    "OutlierDetection",
    "Prior",
    "PropertyInference",
    "PropertyInferenceResult",
    "Reconstruction",
    "ReconstructionErrors",
    "Releases",
    "RemedyComparison",
    "RemedyOutcome",
    "WhiteBox",
    "attack_layers",
    "categorical_accuracy",
    "compare_images",
    "compare_remedies",
    "draw_releases",
    "haarpsi",
    "out_of_distribution",
    "psnr",
    "reconstruction_errors",
    "recover_labels",
    "release_gradients",
    "release_updates",
    "ssim",
]

__getattr__, __dir__ = lazy_names(__name__, globals())
