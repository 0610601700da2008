"""What every folder needs and no idea owns: work in chunks, files, lazy imports, the number check.

Code here is short, knows nothing of data or models, and is used by several folders.
"""
