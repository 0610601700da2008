"""The private networks of paper 004's Figures 5 and 6: all runs of a grid trained at once.

``grid`` and ``estimators`` run on an accelerator and write ``reproduction/results``; ``results``
reads the kept results. Training needs only torch and NumPy.
"""
