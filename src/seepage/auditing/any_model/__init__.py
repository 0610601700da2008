"""Models without an exact bound: forests, boosting, support vector machines, networks and others.

For these, only the success of attacks (a lower limit on leakage) and structural risks can be
stated.
"""
