"""Adversaries who reconstruct records from a network's training gradients; needs torch.

The modules define the releases, the search for records that explain them (with simulated gradients
and minimisers), label recovery, and the similarity of reconstructed images to the originals.
"""
