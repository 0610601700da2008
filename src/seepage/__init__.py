"""Tells how much of its training data seeps out of a machine-learning model.

Everything people type stands here; each name is imported when it is first used, so that
``import seepage`` and the command line stay quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from seepage import attacks, bounds, data, glm, layers, nn, privacy, streams
    from seepage.auditing.pipeline import audit
    from seepage.calibration import calibrate
    from seepage.cluster.dask_source import dask_rows
    from seepage.composition import compose
    from seepage.errors import InputError, NotConvergedWarning, NotTheMinimiserError
    from seepage.guarantee import guarantees
    from seepage.guarantee_table import Guarantees
    from seepage.leak import Leakage, leakage
    from seepage.noise import Gaussian, Laplace, Noise
    from seepage.perturbation import release
    from seepage.result import Result
    from seepage.streams.parquet_source import parquet

_MODULES = ("attacks", "bounds", "data", "glm", "layers", "nn", "privacy", "streams")
_HOMES = {
    "Gaussian": "noise",
    "Guarantees": "guarantee_table",
    "InputError": "errors",
    "Laplace": "noise",
    "Leakage": "leak",
    "Noise": "noise",
    "NotConvergedWarning": "errors",
    "NotTheMinimiserError": "errors",
    "Result": "result",
    "audit": "auditing.pipeline",
    "calibrate": "calibration",
    "compose": "composition",
    "dask_rows": "cluster.dask_source",
    "guarantees": "guarantee",
    "leakage": "leak",
    "parquet": "streams.parquet_source",
    "release": "perturbation",
}

__all__ = [
    "Gaussian",
    "Guarantees",
    "InputError",
    "Laplace",
    "Leakage",
    "Noise",
    "NotConvergedWarning",
    "NotTheMinimiserError",
    "Result",
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
    "nn",
    "parquet",
    "privacy",
    "release",
    "streams",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"seepage.{name}")
    if name in _HOMES:
        return getattr(import_module(f"seepage.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'seepage' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
