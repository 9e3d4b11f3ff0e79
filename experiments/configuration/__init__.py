"""Configurations: their schema, how Hydra composes them, presets, and what is refused before any work."""
