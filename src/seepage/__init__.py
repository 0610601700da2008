"""Measures how much a machine-learning model leaks about its training data.

Public API of seepage; submodules load when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from seepage.support.lazy import lazy_names, offer

if TYPE_CHECKING:
    from seepage import attacks as attacks
    from seepage import bounds as bounds
    from seepage import data as data
    from seepage import glm as glm
    from seepage import layers as layers
    from seepage import nn as nn
    from seepage import privacy as privacy
    from seepage import streams as streams
    from seepage.auditing.any_model.attack_audit import audit_estimator as audit_estimator
    from seepage.auditing.entry.audit import audit as audit
    from seepage.auditing.explaining.explanation import explain as explain
    from seepage.auditing.intake.model_saving import load as load
    from seepage.auditing.intake.model_saving import save as save
    from seepage.auditing.release.contents import Release as Release
    from seepage.auditing.release.contents import load_release as load_release
    from seepage.auditing.release.ledger import LedgerFile as LedgerFile
    from seepage.auditing.reporting import check as check
    from seepage.auditing.reporting import report as report
    from seepage.bounds.guarantees import Guarantees as Guarantees
    from seepage.bounds.guarantees import guarantees as guarantees
    from seepage.core.calibration import calibrate as calibrate
    from seepage.core.composition import compose as compose
    from seepage.core.leakage import Leakage as Leakage
    from seepage.core.noise import Attacker as Attacker
    from seepage.core.noise import Gaussian as Gaussian
    from seepage.core.noise import Laplace as Laplace
    from seepage.core.noise import Noise as Noise
    from seepage.core.release import release as release
    from seepage.core.result import Result as Result
    from seepage.errors import InputError as InputError
    from seepage.errors import NotConvergedWarning as NotConvergedWarning
    from seepage.errors import NotTheMinimiserError as NotTheMinimiserError
    from seepage.glm.forgetting import forget as forget
    from seepage.glm.leakage import leakage as leakage
    from seepage.glm.outsider.predictions import Parameters as Parameters
    from seepage.glm.outsider.predictions import Predictions as Predictions
    from seepage.glm.printed.table import RegressionTable as RegressionTable
    from seepage.glm.refining import refine as refine
    from seepage.streams.dask.source import dask_rows as dask_rows
    from seepage.streams.disk.source import parquet as parquet
    from seepage.support.version import __version__ as __version__

__getattr__, __dir__ = lazy_names(__name__, globals())
offer("report", lambda *given: __getattr__("report")(*given))  # for leak.report(folder)


def _leakage_of_batch(*given: Any, **options: Any) -> Any:
    from seepage.auditing.entry.gradients import leakage_of_batch

    return leakage_of_batch(*given, **options)


offer("leakage of a batch", _leakage_of_batch)  # for sp.leakage of a network
