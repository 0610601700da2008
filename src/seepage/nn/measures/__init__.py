"""The leakage of one batch of gradients."""
