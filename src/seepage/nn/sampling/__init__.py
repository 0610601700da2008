"""How batches are drawn, whether they arrive as stated, and what random draws gain.

Here are samplers, checks of incoming batches, and the factors κ of amplification by hidden batches.
Nothing here knows the network or its gradients, only their norms.
"""
