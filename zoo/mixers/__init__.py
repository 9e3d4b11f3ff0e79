"""Sequence mixers, one file each (`F` and `G` share grouped_query.py); importing this package registers them all."""
