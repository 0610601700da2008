"""Hugging Face models: leakage about each token, and a callback for the trainer.

``nn/problem`` computes the model's own loss and detects its main input.
"""
