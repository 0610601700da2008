"""Updates of federated clients, layer by layer: simulated, recorded, or from Flower.

Rounds of a simulation, the recording of gradients and updates, and the recorded gradients
themselves, projected where they are too wide to hold.
"""
