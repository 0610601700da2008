"""The question about a step of training: network, loss, view and clip, and batches of records.

``problem`` binds a network to its loss per record and to a view (``views``), which says what is
unknown of a record; ``clipping`` says how its gradient is clipped before it is released.
``sharding`` runs networks that are sharded over processes. Nothing here takes a gradient.
"""
