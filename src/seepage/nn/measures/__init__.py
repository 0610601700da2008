"""The leakage of one noisy gradient about the records of its batch.

Contains the Jacobian of that release in the interface of ``core``, estimates of each record's
information (trace, largest eigenvalue, low-rank sketch), and results with standard errors.
"""
