"""Models without an exact bound, such as forests, boosting, support vector machines and networks.

For these models, only the success of attacks (a lower bound on leakage) and structural risks are
known.
"""
