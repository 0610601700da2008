"""Hugging Face models: leakage about each token, and a callback for the trainer.

The model's own loss and the detection of its input are in ``nn/problem``.
"""
