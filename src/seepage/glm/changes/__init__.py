"""Changes of a fit when a record is left out or replaced: centres, certificates and refits.

``local_model`` is the second-order model of a fit; ``solver`` applies its inverse Hessian to
records. ``centres`` computes changes with the other records' curvature held fixed; ``certificate``
bounds the resulting error. ``expansion`` omits only high-order terms, ``batched_refits`` refits,
and ``changed_records`` chooses a method. ``neighbouring_models`` finds the largest leakage in
changed tables. ``outputs`` expresses all quantities in the free margins. All modules of this
package use these symbols::

    x̃, z̃   a record, an added record, both with a 1 for the intercept
    ω, ℓ   weight and loss of a record       r, a   slope and curvature of the loss at θ̂
    Φ      Fisher information of the noise   X̃, D   the rows x̃, the curvatures ω a
    n, m   number of records in all, in one piece    K   number of alternatives of a record
    c, P   number of free margins (1, or the classes less one), of free parameters
    θ̂, δ   the minimiser, its change         H, H₀   Hessian with and without the record
    h      share of a record in the curvature along its own direction: its leverage
    t      shift of the other records' margins    ε   error of their slopes at fixed curvature
    M      constant of self-concordance, |ℓ‴| ≤ M ℓ″; 0 where centres are exact
    E      norm of ε; S, N, Q, R: sizes of t and x̃ in the bound on E (``certificate``)
"""
