"""Generalised linear models: losses, fitting, and the leakage of a released fit.

The basic modules are ``inputs`` (callers' arguments), ``losses``, ``fitting`` (objectives and
minimisers), ``estimators`` (with scikit-learn's interface), ``adapters`` (models of other
libraries) and ``preprocessing`` (raw columns to features). Leakage is computed by ``leakage`` (the
entry point), ``jacobian`` (closed forms of a release's Jacobian), ``changes`` (records left out or
replaced), ``procedure`` (reruns) and ``outsider`` (an attacker who does not know the other
records). Other modules are ``refining`` (models that stopped early), ``forgetting`` (unlearning),
``printed`` (regression tables) and ``reweighting`` (equal leakage). Other ways to release a model
are in ``shaped_noise`` and ``private_shape`` (noise with a shaped covariance),
``objective_perturbation`` (noise in the gradient) and ``exponential_mechanism`` (a choice among
candidates). Code specific to GLMs belongs in this package; code that applies to any release belongs
elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from seepage.support.lazy import lazy_names

if TYPE_CHECKING:
    from seepage.glm.estimators import GeneralizedLinearRegression as GeneralizedLinearRegression
    from seepage.glm.estimators import LinearRegression as LinearRegression
    from seepage.glm.estimators import LogisticRegression as LogisticRegression
    from seepage.glm.estimators import PoissonRegression as PoissonRegression
    from seepage.glm.estimators import SoftmaxRegression as SoftmaxRegression
    from seepage.glm.exponential_mechanism import ExponentialMechanism as ExponentialMechanism
    from seepage.glm.losses import Family as Family
    from seepage.glm.losses import get_family as get_family
    from seepage.glm.losses import register_family as register_family
    from seepage.glm.objective_perturbation import ObjectivePerturbation as ObjectivePerturbation
    from seepage.glm.private_shape import private_shape_leakage as private_shape_leakage
    from seepage.glm.reweighting import Reweighting as Reweighting
    from seepage.glm.reweighting import reweight as reweight
    from seepage.glm.shaped_noise import noise_shape as noise_shape

__getattr__, __dir__ = lazy_names(__name__, globals())
