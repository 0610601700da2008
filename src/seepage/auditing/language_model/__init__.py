"""``seepage attack``: from a folder with a language model and its training text to a report.

``loading`` opens the folders, ``command`` runs the attack, ``report`` and ``first_screen`` say what
it found, with the renderer and in the style of the report on tables.
"""
