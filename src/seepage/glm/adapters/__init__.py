"""How fitted models of other libraries are read."""
