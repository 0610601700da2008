"""Differential privacy guarantees, from which reconstruction bounds are derived.

``statements`` and ``sampled_gaussian`` define the guarantees; ``statements`` also converts
``dp_accounting`` events to them. ``trade_off`` computes the best membership test under each
guarantee, except Rényi differential privacy. ``gaussian_mechanism`` computes the noise needed for
(ε, δ). ``sensitivity`` bounds the effect of one record on a release, which determines the guarantee
that noise on the release provides. ``filters`` excludes records whose privacy budget is spent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from seepage.support.lazy import lazy_names

if TYPE_CHECKING:
    from seepage.privacy.filters import PrivacyFilter as PrivacyFilter
    from seepage.privacy.gaussian_mechanism import (
        analytic_gaussian_sigma as analytic_gaussian_sigma,
    )
    from seepage.privacy.gaussian_mechanism import classic_gaussian_sigma as classic_gaussian_sigma
    from seepage.privacy.sampled_gaussian import SampledGaussianDP as SampledGaussianDP
    from seepage.privacy.sensitivity import Sensitivity as Sensitivity
    from seepage.privacy.sensitivity import clip_rows as clip_rows
    from seepage.privacy.sensitivity import (
        epsilon_printed_by_guo_2022 as epsilon_printed_by_guo_2022,
    )
    from seepage.privacy.sensitivity import output_perturbation as output_perturbation
    from seepage.privacy.sensitivity import output_sensitivity as output_sensitivity
    from seepage.privacy.statements import DifferentialPrivacy as DifferentialPrivacy
    from seepage.privacy.statements import GaussianDP as GaussianDP
    from seepage.privacy.statements import PrivacyStatement as PrivacyStatement
    from seepage.privacy.statements import RenyiDP as RenyiDP
    from seepage.privacy.statements import renyi_of_event as renyi_of_event
    from seepage.privacy.trade_off import TradeOff as TradeOff

__getattr__, __dir__ = lazy_names(__name__, globals())
