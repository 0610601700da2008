"""What a fit tells somebody who does not know the other records, and to whom they are like noise.

``others`` has the gradients of the records and how far they make the minimiser vary, ``worlds`` the
two normal distributions of a release with and without a person, ``guesses`` those of a record with
each value it may have, ``predictions`` a release of answers to queries alone, ``resampled`` the
refits on other people that check it, ``stacked`` several releases at once, ``streamed`` tables
that are read in chunks, ``seen`` a release as the attacker sees it, and ``leakage`` the views, with
``membership`` and ``eta`` behind them, ``refusals`` and ``words``. The symbols of
:mod:`seepage.glm.changes` hold here too, and::

    u      share of the others' randomness that is left to the attacker
    g, c   gradient of a person's loss; the same less the mean of all
    G      Σ c cᵀ over the people; G₋ᵢ without person i
    Σ      covariance of the noise on the parameters, if there is any
    ℓ      design leverage: largest share of a person in the curvature
"""
