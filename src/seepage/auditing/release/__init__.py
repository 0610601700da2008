"""The release: everything that leaves with a model, counted, checked and written as one folder.

One procedure leads from the table to the folder, so that it can be rerun with a record left out or
replaced, to see which of the published figures would change.
"""
