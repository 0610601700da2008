"""The accountant that runs beside a training loop, and what it keeps of the run.

The accountant counts what a run gives away about every record, step by step; a measured run holds
the sums; others join several runs and read them. The engine (``nn/jacobian``) measures steps, and
the trainer (``nn/training``) takes them.
"""
