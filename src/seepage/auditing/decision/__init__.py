"""Decision about a release: limits by recipient, and a sheet for the output checker.

``presets`` defines the default thresholds of the gates. ``check`` writes the file and sheet for an
output checker, from the report's findings. This package measures nothing.
"""
