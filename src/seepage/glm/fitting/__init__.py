"""Minimising the objective, and telling why that cannot be done."""
