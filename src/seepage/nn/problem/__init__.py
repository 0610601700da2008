"""Definition of a measurement: network, loss, view, clip, and batches of records.

``problem`` binds a network to its loss per record and to a view (``views``), which selects the
unknowns of a record; ``clipping`` defines how its gradient is clipped before release.
``sharding`` runs networks that are sharded over processes. No gradients are computed here.
"""
