"""The Jacobian of a GLM's release, the equations it is solved by, and refits with a record changed.

All of it starts from derivatives and a Hessian at hand; what model they are of is not known here.
"""
