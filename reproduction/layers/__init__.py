"""Mo et al. 2021, what each layer gives away: its figures, and the experiment they are drawn from.

``experiment`` runs on an accelerator and writes ``reproduction/results``; ``measuring`` is one
repetition of it, ``networks`` has its networks; ``accuracy`` trains until accuracy stops rising;
``runs`` and ``longer`` read the kept results.
"""
