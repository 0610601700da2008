"""Adversaries who reconstruct records from a network's training gradients (requires torch).

The modules define the released gradients, the recovery of labels, the search for records whose
simulated gradients match the released ones, and the similarity of reconstructed images to the
originals.
"""
