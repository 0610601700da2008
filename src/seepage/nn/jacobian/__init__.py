"""Products with the Jacobian of clipped per-record gradients with respect to the records.

The full Jacobian is never formed. ``engine`` is the entry point and applies the clip. The engine
uses finite changes (``finite_changes``), or products with random directions (``random_directions``)
of the parameters (``probes``) or of the record (``tangents``). ``tangents`` also computes pullbacks
with a separate direction for each record. The other parts of ``seepage.nn`` implement noise,
leakage measures and accounting over many steps.
"""
