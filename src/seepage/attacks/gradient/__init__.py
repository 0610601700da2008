"""Adversaries who reconstruct records from a network's training gradients; needs torch.

The releases, the search for records that explain them (simulated gradients, minimisers), the labels
read off beforehand, and the similarity of reconstructed images to the originals.
"""
