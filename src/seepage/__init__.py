"""seepage: how much of its training data seeps out of a machine-learning model?"""

__version__ = "0.1.0"
