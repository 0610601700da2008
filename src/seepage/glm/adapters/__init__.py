"""Every kind of fitted model that is known: how each is read, or why it is not and what is instead.

A file for each library says how its models are read, and ``refused`` which have no exact audit;
``registry`` has them all and is the one door, with ``describe``. ``unwrapping`` opens what holds a
model: searches, pipelines, formulas, and penalties that leave columns out.
"""
