"""Adversaries who reconstruct records from a network's training gradients; needs torch.

The modules hold the releases, the search for records that explain them (simulated gradients,
minimisers), the recovery of labels beforehand, and the similarity of reconstructed images to the
originals.
"""
