"""Which attribute of a record its privacy loss comes from: PLIS (Mueller et al. 2022).

Here are the susceptibility of one gradient and of a run, its norms over attributes, patches and
records, and its comparison with JacSens and FIL.
"""
