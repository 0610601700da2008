"""Differential privacy, as far as bounds on reconstruction need it: what a mechanism promises.

``statements`` are the promises, whoever keeps them (a ``dp_accounting`` event is read into one);
``gaussian_mechanism`` says how much noise buys (ε, δ); ``sensitivity`` says how far one record can
move a fitted model, and so what noise on its parameters promises.
"""

from seepage.privacy.gaussian_mechanism import analytic_gaussian_sigma, classic_gaussian_sigma
from seepage.privacy.sensitivity import (
    Sensitivity,
    clip_rows,
    epsilon_printed_in_paper_004,
    output_perturbation,
    output_sensitivity,
)
from seepage.privacy.statements import (
    DifferentialPrivacy,
    GaussianDP,
    PrivacyStatement,
    RenyiDP,
    renyi_of_event,
)

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
