"""Fair leakage: sample weights under which every record leaks the same (IRFIL, paper 001).

The rule that sets the weights, the rounds of refitting, what they give, and the leakage of the
procedure as a whole, the choice of the weights included.
"""
