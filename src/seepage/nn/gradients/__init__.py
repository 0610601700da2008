"""Per-record gradients of a network, layer by layer, without one backward pass per record.

A network is checked once (``network_checks``, ``first_look``) and then watched as it runs
(``watching``): each operation that uses a parameter has a rule (``rules``) by which its input and
the gradient at its output give the parameter's gradient of every record (``per_record_gradients``),
from which follow norms and clipped sums (``norms``). Operations without a rule fall back on
``vmap`` (``fallback``); those that torch cannot differentiate twice, or only slowly, are replaced
(``plain_kernels``, ``second_order``). Derivatives with respect to records are not taken here.
"""
