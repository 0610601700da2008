"""Adversaries who guess a nominal attribute of records whose other columns they know.

The attribute (``nominal``), what all adversaries share and how they are scored (``adversary``), and
each of them: those who ignore the release, the black box, and the white box with its candidate
models.
"""
