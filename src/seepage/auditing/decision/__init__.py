"""Decision about a release: limits by recipient, and a sheet for the output checker.

``presets`` defines the default thresholds of the gates. ``check`` writes the file and sheet for an
output checker, from the same findings as the report. Nothing here measures anything.
"""
