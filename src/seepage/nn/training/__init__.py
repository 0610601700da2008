"""Private training: our own loop, and Opacus."""
