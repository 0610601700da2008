"""Models without an exact limit: forests, boosting, support vectors, neighbours, networks.

All that can honestly be said of them is what an attack achieved (never that no attack achieves
more), and which structural risks need no attack.
"""
