"""Federated clients' updates, layer by layer: simulated, recorded, or from Flower.

Contains simulated rounds, the recording of gradients and updates, and the recorded gradients
themselves, projected if they are too wide to hold.
"""
