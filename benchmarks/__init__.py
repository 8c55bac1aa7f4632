"""Benchmarks: they compare ratios within one run, state the limit beside the figure, and are no timed tests."""
