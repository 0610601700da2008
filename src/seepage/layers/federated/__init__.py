"""Updates of federated clients, layer by layer: simulated, recorded, or from Flower.

The modules simulate rounds, record gradients and updates, and store the recorded gradients,
projected if they are too wide for memory.
"""
