"""The losses of generalized linear models, with the derivatives that everything else is made of.

Losses of one margin and one label (:class:`~seepage.glm.losses.families.Family`), the loss of
softmax, and the check of a new family's derivatives. Nothing here knows about tables or fits.
"""
