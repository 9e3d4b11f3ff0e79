"""Residual schemes, one file each; importing this package registers them all.

`hc`, `mhc`, `ohc`, `shc` and `identity` have several streams and share hyper_connections.py.
"""
