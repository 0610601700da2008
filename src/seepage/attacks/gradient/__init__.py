"""Adversaries who rebuild records from the gradients a network's training gives away; needs torch.

The releases, the search for records that explain them (their simulated gradients, the minimisers),
the labels that are read off beforehand, and how like the originals the found images are.
"""
