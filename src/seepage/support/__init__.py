"""What every room needs and no idea owns: work in chunks, files, late imports, the number check.

What is put here is short, knows nothing of data or models, and is used by several rooms.
"""
