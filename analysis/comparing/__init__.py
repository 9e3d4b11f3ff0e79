"""Comparisons: models side by side, who differs from the baseline, what was equal."""
