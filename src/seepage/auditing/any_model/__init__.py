"""Models without an exact bound: forests, boosting, support vector machines, networks and others.

For these models, only the success of attacks (a lower limit on leakage) and structural risks are
known.
"""
