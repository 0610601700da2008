"""What every room needs and no idea owns: work in chunks, files, late imports, the number check."""
