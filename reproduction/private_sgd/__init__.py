"""The private networks of Guo et al. 2022's Figures 5 and 6: all runs of a grid trained at once.

``grid`` and ``estimators`` run on an accelerator and write ``reproduction/results``; ``results``
reads the kept results. Training needs only torch and NumPy.
"""
