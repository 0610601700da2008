"""Models without an exact limit: forests, boosting, support vectors, neighbours, networks.

What can be honestly said of them: what an attack achieved (never that no attack achieves more), and
structural risks that need no attack.
"""
