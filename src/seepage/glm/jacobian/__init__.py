"""The closed-form Jacobian of a GLM's release, with the accuracy of its results.

The Jacobian is computed at the exact minimiser near a model's coefficients (``optimum``, or
``twice_precise`` where ordinary arithmetic would lose precision). ``terms`` contains the products
of records with the whitener, and bounds the errors of results computed from them. ``operator`` is
the Jacobian for any number of outputs, and in closed form for one; it is also built for some rows
of hundreds of tables in ordinary arithmetic. ``secular`` computes the largest
eigenvalues, and ``inverse`` the inverse information about a record. All modules of this package use
these symbols::

    n, m   number of records in all, in one piece              d   number of columns
    K, L   number of outputs, of numbers in a label            D   d, plus 1 for an intercept
    P      number of released numbers, D K
    x̃      a record, with a 1 for an intercept                 W   coefficients, (d, K)
    r, a, b  slope, curvature and label slope of a record's loss, weights ω folded in
    H, Φ   Hessian of the objective, information of the noise
    A      whitener: AᵀA = H⁻¹ΦH⁻¹ = C       G   mixed derivatives; J = A G
"""
