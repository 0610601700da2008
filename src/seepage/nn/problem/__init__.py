"""Definition of a measurement: network, loss, view, clip, and batches of records.

``problem`` binds a network to its per-record loss and to a view. ``views`` defines which values of
a record are unknown, and ``clipping`` how its gradient is clipped before release. ``sharding`` runs
networks that are sharded across processes.
"""
