"""PLIS (paper 002): how a record moves its own privacy loss."""
