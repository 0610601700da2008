"""Adversaries that put the measures to the test: what they recover, with a confidence interval.

Everything here is imported on first use, so that ``import seepage.attacks`` costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from seepage.lazy import lazy_names

if TYPE_CHECKING:
    from seepage.attacks.attribute_inversion import AttributeInversion
    from seepage.attacks.black_box import BlackBox
    from seepage.attacks.ideal import Ideal
    from seepage.attacks.image_similarity import psnr, ssim
    from seepage.attacks.informed import InformedAdversary, Reconstruction
    from seepage.attacks.inversion_result import Accuracy, InversionResult
    from seepage.attacks.linearised import LinearisedAdversary
    from seepage.attacks.nominal import NominalAttribute
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
    "Ideal",
    "InformedAdversary",
    "InversionResult",
    "LinearisedAdversary",
    "NominalAttribute",
    "Prior",
    "PropertyInference",
    "PropertyInferenceResult",
    "Reconstruction",
    "ReconstructionErrors",
    "Releases",
    "WhiteBox",
    "attack_layers",
    "categorical_accuracy",
    "draw_releases",
    "psnr",
    "reconstruction_errors",
    "ssim",
]

_HOME = {
    "Accuracy": "inversion_result",
    "AttributeInversion": "attribute_inversion",
    "BlackBox": "black_box",
    "Ideal": "ideal",
    "InformedAdversary": "informed",
    "InversionResult": "inversion_result",
    "LinearisedAdversary": "linearised",
    "NominalAttribute": "nominal",
    "Prior": "prior",
    "PropertyInference": "property_inference",
    "PropertyInferenceResult": "property_inference",
    "Reconstruction": "informed",
    "ReconstructionErrors": "reconstruction_error",
    "Releases": "releases",
    "WhiteBox": "white_box",
    "attack_layers": "property_inference",
    "categorical_accuracy": "reconstruction_error",
    "draw_releases": "releases",
    "psnr": "image_similarity",
    "reconstruction_errors": "reconstruction_error",
    "ssim": "image_similarity",
}

__getattr__ = lazy_names(__name__, _HOME, globals())


def __dir__() -> list[str]:
    return __all__
