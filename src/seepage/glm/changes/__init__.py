"""How far a fit moves when a record leaves or is another: centres, certificates, and refits.

``local_model`` is a fit to second order, ``solver`` its inverse Hessian as records see it.
``centres`` moves it while the others' curvature stays, ``certificate`` bounds what that leaves out,
``expansion`` has all of it but for high powers, ``batched_refits`` minimises anew, and
``changed_records`` chooses between them; ``outputs`` writes all of it in the margins that matter.
The symbols, in every file here::

    n, m   records in all, in one piece      K   alternatives of a record
    c      margins that matter: 1, or the classes less one; P the parameters in these terms
    θ̂, δ   the minimiser, its move           H, H₀   Hessian, and without the record
    h      share of a record in the curvature along its own direction: its leverage
    t      shift of the others' margins      ε   what a fixed curvature leaves out of their slopes
    M      constant of self-concordance, |ℓ‴| ≤ M ℓ″; 0 where centres are exact
    E      norm of ε; S, N, Q, R: sizes of t and x̃ in the bound on E (``certificate``)
"""
