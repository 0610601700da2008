"""Models of Hugging Face: leakage about each token, and a callback for their trainer.

The model's own loss and the detection of its input are in ``nn/problem``.
"""
