"""Template families and word lists that only finals draw from."""
