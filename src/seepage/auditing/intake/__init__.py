"""What comes in: tables and fitted models from files, checked, planned and turned into numbers.

Everything that refuses a caller's file or column, and says in one sentence what to do about it, is
here; nothing here fits or measures a model.
"""
