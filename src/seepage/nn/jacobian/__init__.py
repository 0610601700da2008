"""The Jacobian of clipped per-record gradients with respect to the records, never written out.

``engine`` is the door, and owns the clip. It asks for products with random directions
(``random_directions``): of the release (``probes``), or of the record (``tangents``), or for pulls
of directions that differ from record to record (``pullbacks``). Noise, measures and accounting of
many steps are above this room.
"""
