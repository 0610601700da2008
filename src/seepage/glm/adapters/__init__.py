"""Adapters for fitted models: readers for supported models, and reasons for unsupported ones.

Each library's models are read in a separate module; ``refused`` lists models without an exact
audit. All kinds are entered into ``registry``. Its ``unwrap`` extracts the model from searches,
pipelines and formulas, and removes columns that a penalty dropped; its ``describe`` reads the
model.
"""

from seepage.glm.adapters import other_libraries, refused, scikit_learn, statsmodels_results
from seepage.glm.adapters.registry import register

register(*scikit_learn.KINDS, *statsmodels_results.KINDS, *other_libraries.KINDS, *refused.KINDS)
