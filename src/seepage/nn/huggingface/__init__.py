"""Hugging Face models: leakage about each token, private training, and a trainer callback.

``nn/problem`` computes the model's own loss and detects its main input.
"""
