"""Models of Hugging Face: which word leaks, and leakage beside their trainer.

What every model needs (its own loss, its input found by itself) is in ``nn/problem``.
"""
