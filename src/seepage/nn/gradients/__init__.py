"""Computes a network's per-record gradients layer by layer, without a backward pass per record.

A network is checked for each new kind of batch (``network_checks``, ``first_look``) and traced as
it runs (``watching``). Most operations that use a parameter have a rule (``rules``). The rule
computes the parameter's per-record gradients (``per_record_gradients``) from the operation's input
and the gradient at its output. Norms and sums of clipped gradients (``norms``) follow from the
per-record gradients. If an operation has no rule, the module that encloses it is run with ``vmap``.
Operations that torch cannot differentiate twice, or only slowly, are replaced (``plain_kernels``,
``second_order``).
"""
