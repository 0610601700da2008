"""The Jacobian of a GLM's release: closed forms for one output, the operator for several, refits.

It starts from a fitted model's description and its data (``release``); fitting is not done here.
"""
