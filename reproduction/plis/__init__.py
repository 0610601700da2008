"""Mueller et al. 2022, the privacy loss-input susceptibility: one file for each table or figure.

Figure 3 and Table 1 share one computation, ``chest``.
"""
