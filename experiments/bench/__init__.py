"""Measurements: always against a peer in the same process, interleaved, as medians with their spread."""
