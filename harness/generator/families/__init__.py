"""Template families, one a file: those that every set draws from."""
