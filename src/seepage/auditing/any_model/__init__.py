"""Models without an exact bound: forests, boosting, support vectors, neighbours, networks.

For these, only the success of attacks (a lower limit on leakage) and structural risks can be
stated.
"""
