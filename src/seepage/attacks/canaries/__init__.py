"""Lower bounds on ε from one training run, by guessing coins that put records into it.

``one_run`` turns guesses into a bound, ``coins`` draws who takes part and reads the guesses off
scores, ``training`` runs it for any training function and for private SGD, with Opacus or without.
"""
