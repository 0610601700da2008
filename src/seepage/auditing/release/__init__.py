"""Releases: all published items of a model are counted, checked and written to one folder.

A single procedure turns the table into the folder. Rerunning it with a record removed or replaced
shows which published figures change.
"""
