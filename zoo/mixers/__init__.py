"""Sequence mixers, one file each; importing this package registers them all. grouped_query.py is shared by `F` and `G`."""
