"""Federated rounds: simulated, recorded, or run with Flower."""
