"""Sequence mixers, one file each; importing this package registers them all."""
