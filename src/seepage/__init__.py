"""Tells how much of its training data seeps out of a machine-learning model.

Everything people type stands here; each name is imported when it is first used, so that
``import seepage`` and the command line stay quick.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from seepage.support.lazy import lazy_names

if TYPE_CHECKING:
    from seepage import attacks, bounds, data, glm, layers, nn, privacy, streams
    from seepage.auditing.pipeline import audit
    from seepage.auditing.release.contents import Release
    from seepage.auditing.release.folder import load_release
    from seepage.bounds.guarantees import Guarantees, guarantees
    from seepage.core.calibration import calibrate
    from seepage.core.composition import compose
    from seepage.core.leakage import Leakage
    from seepage.core.noise import Gaussian, Laplace, Noise
    from seepage.core.release import release
    from seepage.core.result import Result
    from seepage.errors import InputError, NotConvergedWarning, NotTheMinimiserError
    from seepage.glm.leakage import leakage
    from seepage.streams.dask.source import dask_rows
    from seepage.streams.disk.source import parquet
    from seepage.support.version import __version__

__all__ = [
    "Gaussian",
    "Guarantees",
    "InputError",
    "Laplace",
    "Leakage",
    "Noise",
    "NotConvergedWarning",
    "NotTheMinimiserError",
    "Release",
    "Result",
    "__version__",
    "attacks",
    "audit",
    "bounds",
    "calibrate",
    "compose",
    "dask_rows",
    "data",
    "glm",
    "guarantees",
    "layers",
    "leakage",
    "load_release",
    "nn",
    "parquet",
    "privacy",
    "release",
    "streams",
]

__getattr__, __dir__ = lazy_names(__name__, globals())
