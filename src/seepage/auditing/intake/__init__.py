"""What comes in: files, recipes and fitted models, read and checked."""
