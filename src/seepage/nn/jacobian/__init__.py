"""The Jacobian of per-record gradients with respect to the records, as passes and probes."""
