"""Engines: what runs the cells of a sweep. `sweep.engine` names one; each is a file of this folder.

Every engine runs cells by `execute`, on the run folder that its plan names, under that folder's lock, so that two
sweeps of two engines compute no cell twice, and whether a cell is done is told by the folder alone.
"""
