"""The release: everything that leaves with a model, counted, checked and written as one folder.

What leaves is made by one procedure from the table to the folder, so that it can be run again
without a record, or with another in its place, to see which of the published figures would change.
"""
