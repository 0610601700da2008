"""Paper 003: which layer gives what away."""
