"""Paper 002: PLIS."""
