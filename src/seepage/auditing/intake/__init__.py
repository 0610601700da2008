"""What comes in: tables and fitted models from files, checked, planned and turned into numbers.

This folder refuses files and columns that cannot be used, and says in one sentence what to do about
it; nothing here fits or measures a model.
"""
