"""The accountant that runs beside a training loop."""
