"""Lower bounds on ε from one training run with canaries included at random.

``one_run`` turns guesses into a bound; ``coins`` draws the included canaries and makes guesses from
scores. ``training`` audits any training function; ``private_training`` audits private SGD, with
Opacus or without.
"""
