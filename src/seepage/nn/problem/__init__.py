"""What is asked about a step of training: network, loss, view and clip, and batches of records.

``problem`` binds a network to its loss per record and to a view (``views``), which says what of a
record is unknown; ``clipping`` says how its gradient is cut before it is released. A part of a
record may be named in many ways (``record_parts``), and a fitted linear model is a network of one
layer (``linear_models``). Nothing here takes a gradient.
"""
