"""Adversaries who guess a nominal attribute of records whose other columns they know.

What is guessed (``nominal``), what all adversaries share and how they are scored (``adversary``),
and each of them: those who look at no release, the black box, and the white box with the models it
compares.
"""
