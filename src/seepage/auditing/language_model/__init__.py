"""``seepage attack``, which attacks a language model in a folder and writes a report.

``loading`` opens the folders, ``command`` runs the attack, and ``report`` and ``first_screen``
present the findings like the report on tables.
"""
