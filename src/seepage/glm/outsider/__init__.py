"""The leakage of a fit to an outsider, for whom the unknown records act as noise.

``others`` contains the records' gradients and the resulting variance of the minimiser. ``worlds``
contains the two distributions of a release, with and without a person, and ``guesses`` those for
each candidate value of a record. ``predictions`` covers answers to queries, and ``resampled`` the
refits that check the approximation. ``stacked`` covers several releases, ``streamed`` tables read
in chunks, and ``seen`` a release as the attacker sees it. ``leakage`` has the public methods, based
on ``membership`` and ``eta``; ``refusals`` has their errors and ``words`` describes their
assumptions. In addition to the symbols of :mod:`seepage.glm.changes`, this package uses::

    u      share of the variance that is due to records the attacker does not know
    g, c   gradient of a person's loss; g minus its mean over all people
    G      Σ c cᵀ over the people; G₋ᵢ without person i
    Σ      covariance of the noise on the parameters, if there is any
    ℓ      design leverage: largest share of a person in the curvature
"""
