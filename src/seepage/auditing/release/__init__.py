"""The release: all published items of a model, counted, checked and written as one folder.

One procedure leads from the table to the folder. It can be rerun with a record removed or replaced,
to detect published figures that change.
"""
