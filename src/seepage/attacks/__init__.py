"""Adversaries that put the measures to the test: what they recover, with a confidence interval.

Everything here is imported on first use, so that ``import seepage.attacks`` costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from seepage.support.lazy import lazy_names

if TYPE_CHECKING:
    from seepage.attacks.attribute.attribute_inversion import AttributeInversion
    from seepage.attacks.attribute.black_box import BlackBox
    from seepage.attacks.attribute.ideal import Ideal
    from seepage.attacks.attribute.inversion_result import Accuracy, InversionResult
    from seepage.attacks.attribute.nominal import NominalAttribute
    from seepage.attacks.attribute.prior import Prior
    from seepage.attacks.attribute.white_box import WhiteBox
    from seepage.attacks.gradient.gradient_inversion import GradientInversion
    from seepage.attacks.gradient.gradient_reconstruction import (
        GradientReconstruction,
        ImageQuality,
        compare_images,
    )
    from seepage.attacks.gradient.gradient_releases import GradientReleases, release_gradients
    from seepage.attacks.gradient.haar_similarity import haarpsi
    from seepage.attacks.gradient.image_similarity import psnr, ssim
    from seepage.attacks.gradient.label_recovery import recover_labels
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
    from seepage.attacks.record.releases import Releases, draw_releases

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
    "WhiteBox",
    "attack_layers",
    "categorical_accuracy",
    "compare_images",
    "draw_releases",
    "haarpsi",
    "out_of_distribution",
    "psnr",
    "reconstruction_errors",
    "recover_labels",
    "release_gradients",
    "ssim",
]

__getattr__, __dir__ = lazy_names(__name__, globals())
