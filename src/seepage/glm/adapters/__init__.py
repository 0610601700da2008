"""Fitted models of any library, read into one description of the objective they minimise.

There is one file for each library whose models are known, and ``describe`` in front of them. What
is read is a :class:`~seepage.glm.fitting.objective.FittedGLM`; nothing is fitted or measured here.
"""
