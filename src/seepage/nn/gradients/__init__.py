"""Per-record gradients of a network, layer by layer."""
