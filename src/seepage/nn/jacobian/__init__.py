"""The Jacobian of clipped per-record gradients with respect to the records, never formed.

``engine`` is the entry point, and owns the clip. It uses products with random directions
(``random_directions``) of the release (``probes``) or of the record (``tangents``, which also pull
directions back that differ from record to record), or finite changes (``finite_changes``). Noise,
measures and the accounting of many steps are built on top.
"""
