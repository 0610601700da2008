"""The leakage of one noisy gradient about the records of its batch.

The Jacobian of that release in the interface of ``core``, estimates of traces, largest eigenvalues
and low-rank sketches of every record's information, and results with standard errors.
"""
