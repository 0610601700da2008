"""Hannun et al. 2021, Fisher information loss: its table and figures, one file each.

Beside them are the models and problems that several of them share (``image_models``,
``attribute_problems``).
"""
