"""What is asked about a step of training: network, loss, view and clip, and batches of records.

``problem`` binds a network to its loss per record and to a view (``views``), which says what of a
record is unknown; ``clipping`` says how its gradient is cut before it is released. ``sharding``
runs networks that are spread over processes. Nothing here takes a gradient.
"""
