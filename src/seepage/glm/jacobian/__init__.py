"""The Jacobian of a GLM's release, the equations that give it, and refits with a record changed.

It is taken at the exact minimiser near a model's coefficients (``optimum``), answers in closed
forms (``operator``, ``secular``, ``inverse``), and says how exact its answers are (``accuracy``).
"""
