"""Explains a privacy budget, (ε, δ) or the settings of a training run, by attack success rates.

``explanation`` computes the numbers and contains :func:`seepage.explain`; ``picture`` draws them;
``command`` prints them. The text is in the templates of the report. This package uses no data.
"""
