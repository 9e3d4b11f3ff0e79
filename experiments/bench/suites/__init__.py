"""Suites of measurements, one file (or folder) a suite; `run(config)` returns the rows of its table."""
