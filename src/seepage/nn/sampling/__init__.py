"""How batches are drawn, whether they came as was said, and what drawing at random gains.

What may be in it: samplers, checks of the batches that come in, and factors κ for what hidden
batches hide. Nothing here knows the network or its gradients, only their lengths.
"""
