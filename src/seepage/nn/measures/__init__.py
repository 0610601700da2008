"""The leakage of one noisy gradient about the records of its batch.

Here are the Jacobian of that release, as the core defines it, estimates of traces, largest
eigenvalues and low-rank sketches of every record's information, and the result that carries
standard errors.
"""
