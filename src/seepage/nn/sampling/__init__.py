"""Batch sampling, checks that batches are drawn as stated, and amplification by subsampling.

Samplers, checks of incoming batches, and the amplification factors κ. Only the norms of gradients
are used here.
"""
