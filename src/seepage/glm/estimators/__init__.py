"""The models people fit, with scikit-learn's interface.

Regressors and classifiers, what they share, and how what is handed to them is read. How an
objective is minimised is the business of :mod:`seepage.glm.fitting`.
"""
