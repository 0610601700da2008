"""What can be drawn out of a language model: the probability that it emits a training record.

``sampler`` says how the next token is chosen, ``probability`` takes the product over the tokens of
a record from one forward pass, ``text`` turns it into the probability of a text, ``secrets`` finds
what is worth asking for, ``exposure`` ranks a secret among all that look like it, ``near`` counts
near-verbatim copies by sampling, ``attack`` puts these together, and ``shading`` shows the words.
"""
