"""Lower bounds on ε from one training run in which canaries are included at random.

``one_run`` computes a bound from guesses; ``coins`` draws the included canaries and converts scores
to guesses. ``training`` audits any training function; ``private_training`` audits private SGD, with
Opacus or without.
"""
