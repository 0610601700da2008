"""The Jacobian of clipped per-record gradients with respect to the records, never formed in full.

``engine`` is the entry point and applies the clip. It uses finite changes (``finite_changes``), or
products with random directions (``random_directions``) of the release (``probes``) or of the record
(``tangents``). ``tangents`` also computes pullbacks of directions that differ from record to
record. Noise, measures and the accounting of many steps are built on top.
"""
