"""Training-data extraction from a language model: how likely it is to emit a record's text.

``sampler`` describes how the next token is chosen. ``probability`` multiplies the probabilities of
a record's tokens from one forward pass, and ``text`` bounds the probability of a text in any
tokenisation. ``secrets`` finds strings to attack, ``exposure`` ranks a secret among candidates of
the same shape, and ``near`` counts near-verbatim copies by sampling. ``attack`` combines these
modules, and ``shading`` displays the tokens.
"""
