"""Installed libraries as backends: each file has `refuses(q, k, v, window)` and `packed_attention(...)`."""
