"""Probing finished and training runs: held-out windows, rows and maps computed over them, and their tables."""
