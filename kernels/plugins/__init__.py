"""Installed libraries as backends: a file each with `refuses(q, k, v, window)` and `packed_attention(...)`.

lookup.py finds their functions.
"""
