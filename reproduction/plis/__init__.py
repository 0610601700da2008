"""Paper 002, the susceptibility of the privacy loss (PLIS): its table and figures, one file each.

Figure 3 and Table 1 share one computation, ``chest``.
"""
