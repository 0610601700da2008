"""Sampling of batches, checks that batches arrive as stated, and amplification by sampling.

Samplers, checks of incoming batches, and the amplification factors κ. Of the gradients, only their
norms are used here.
"""
