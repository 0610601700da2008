"""Training runs of paper 004, and their kept results."""
