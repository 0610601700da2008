"""How far a fit moves when a record leaves or is another: centres, certificates, and refits."""
