"""Packed sequences: several sequences of any length one after another on a single axis of tokens.

boundaries.py    where sequences begin and end, and which one a token belongs to
chunks.py        the axis as chunks of one size that never cross a boundary; nothing is read on the host
chunk_layout.py  boundaries and chunks as one tuple, the argument of chunked kernels
rectangles.py    the axis as a few rectangular batches of sequences of about one length; lengths are read on the host
"""
