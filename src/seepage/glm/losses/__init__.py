"""The losses of generalised linear models and their derivatives."""
