"""Batch sampling, checks that batches are drawn as stated, and amplification by subsampling.

Contains samplers, checks of incoming batches, and the amplification factors κ. This package uses
only the norms of gradients.
"""
