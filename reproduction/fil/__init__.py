"""Paper 001: Fisher information loss."""
