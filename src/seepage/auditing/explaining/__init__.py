"""What a privacy budget means: (ε, δ), or the noise of a training run, in numbers people know.

``explanation`` has the numbers and :func:`seepage.explain`; ``picture`` draws them; ``command``
prints them. Words are in the templates of the report. Nothing here sees any data.
"""
