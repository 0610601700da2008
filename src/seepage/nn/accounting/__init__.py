"""The accountant that runs beside a training loop, and the record of a run that it leaves.

What may be in it: what a run gave away about every record, step by step (the accountant), the sums
it keeps (the run record), how several of them go together, and how they are read. How steps are
measured is the engine's business (``nn/jacobian``), how they are taken the trainer's
(``nn/training``).
"""
