"""The Jacobian of a minimiser with respect to its data, in closed form."""
