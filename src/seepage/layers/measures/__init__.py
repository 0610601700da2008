"""What is measured of each layer: sensitivity and V-information."""
