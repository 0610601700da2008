"""Paper 004: bounds on reconstruction."""
