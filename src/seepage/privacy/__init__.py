"""Differential privacy, as far as bounds on reconstruction need it: what a mechanism promises."""

from seepage.privacy.events import renyi_of_event
from seepage.privacy.gaussian_mechanism import analytic_gaussian_sigma, classic_gaussian_sigma
from seepage.privacy.sensitivity import (
    Sensitivity,
    clip_rows,
    epsilon_printed_in_paper_004,
    output_perturbation,
    output_sensitivity,
)
from seepage.privacy.statements import DifferentialPrivacy, GaussianDP, PrivacyStatement, RenyiDP

__all__ = [
    "DifferentialPrivacy",
    "GaussianDP",
    "PrivacyStatement",
    "RenyiDP",
    "Sensitivity",
    "analytic_gaussian_sigma",
    "classic_gaussian_sigma",
    "clip_rows",
    "epsilon_printed_in_paper_004",
    "output_perturbation",
    "output_sensitivity",
    "renyi_of_event",
]
