"""What comes in: tables as others made them, each a source of records.

What columns hold, what they are called, how they become numbers, and the source with one chunk (a
table in memory). Nothing here knows a model or a measure.
"""
