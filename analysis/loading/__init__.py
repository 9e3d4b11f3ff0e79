"""Run folders and published tables read into pandas frames.

results.py        `load_results` and `Results`, where to start; labels.py: the labels of their models
columns.py        every column of runs and metrics, with its unit and meaning
probe_tables.py   the tables that probes wrote; probe_measures.py and routing.py: their rows as figures need them
folders.py        finding run folders; sources.py: own files of runs and exported ones; safe_read.py: no links out
"""
