"""Columns of a table as others made them: what they hold, what they are called, and as numbers."""
