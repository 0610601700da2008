"""What a decision about a release needs: limits by who will see it, and a sheet for who decides.

``presets`` owns the thresholds of every gate that people do not set themselves. ``check`` writes
what an output checker reads, from the same findings as the report. Nothing here measures anything.
"""
