"""Adversaries that put the measures to the test: what they recover, with a confidence interval.

Everything here is imported on first use, so that ``import seepage.attacks`` costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from seepage.lazy import lazy_names

if TYPE_CHECKING:
    from seepage.attacks.attribute_inversion import AttributeInversion
    from seepage.attacks.black_box import BlackBox
    from seepage.attacks.gradient_inversion import GradientInversion
    from seepage.attacks.gradient_reconstruction import (
        GradientReconstruction,
        ImageQuality,
        compare_images,
    )
    from seepage.attacks.gradient_releases import GradientReleases, release_gradients
    from seepage.attacks.haar_similarity import haarpsi
    from seepage.attacks.ideal import Ideal
    from seepage.attacks.image_similarity import psnr, ssim
    from seepage.attacks.informed import InformedAdversary, Reconstruction
    from seepage.attacks.inversion_result import Accuracy, InversionResult
    from seepage.attacks.label_recovery import recover_labels
    from seepage.attacks.linearised import LinearisedAdversary
    from seepage.attacks.nominal import NominalAttribute
    from seepage.attacks.outliers import OutlierDetection, out_of_distribution
    from seepage.attacks.prior import Prior
    from seepage.attacks.property_inference import (
        PropertyInference,
        PropertyInferenceResult,
        attack_layers,
    )
    from seepage.attacks.reconstruction_error import (
        ReconstructionErrors,
        categorical_accuracy,
        reconstruction_errors,
    )
    from seepage.attacks.releases import Releases, draw_releases
    from seepage.attacks.white_box import WhiteBox

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

_HOME = {
    "Accuracy": "inversion_result",
    "AttributeInversion": "attribute_inversion",
    "BlackBox": "black_box",
    "GradientInversion": "gradient_inversion",
    "GradientReconstruction": "gradient_reconstruction",
    "GradientReleases": "gradient_releases",
    "Ideal": "ideal",
    "ImageQuality": "gradient_reconstruction",
    "InformedAdversary": "informed",
    "InversionResult": "inversion_result",
    "LinearisedAdversary": "linearised",
    "NominalAttribute": "nominal",
    "OutlierDetection": "outliers",
    "Prior": "prior",
    "PropertyInference": "property_inference",
    "PropertyInferenceResult": "property_inference",
    "Reconstruction": "informed",
    "ReconstructionErrors": "reconstruction_error",
    "Releases": "releases",
    "WhiteBox": "white_box",
    "attack_layers": "property_inference",
    "categorical_accuracy": "reconstruction_error",
    "compare_images": "gradient_reconstruction",
    "draw_releases": "releases",
    "haarpsi": "haar_similarity",
    "out_of_distribution": "outliers",
    "psnr": "image_similarity",
    "reconstruction_errors": "reconstruction_error",
    "recover_labels": "label_recovery",
    "release_gradients": "gradient_releases",
    "ssim": "image_similarity",
}

__getattr__ = lazy_names(__name__, _HOME, globals())


def __dir__() -> list[str]:
    return __all__
