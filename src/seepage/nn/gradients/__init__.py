"""Per-record gradients of a network, layer by layer, without one backward pass per record.

A network is checked once (``network_checks``, ``first_look``) and then traced as it runs
(``watching``). Each operation that uses a parameter has a rule (``rules``) that computes the
parameter's gradient of every record from its input and the gradient at its output
(``per_record_gradients``). Norms and clipped sums (``norms``) follow from these. Operations without
a rule fall back on ``vmap`` (``fallback``); those that torch cannot differentiate twice, or only
slowly, are replaced (``plain_kernels``, ``second_order``). Derivatives with respect to records are
not taken here.
"""
