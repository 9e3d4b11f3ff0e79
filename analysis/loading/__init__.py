"""Run folders and published tables, read into pandas frames.

results.py  `load_results` and `Results`, where to start; tables that probes wrote
files.py    finding run folders and reading them, own files of runs or exported ones, without following links out
columns.py  every column of runs and metrics, with its unit and meaning; blocks in summaries; labels of models
tables.py   metric rows, benchmarks, selection, scores by document, answer and length; synthetic tasks of runs
probes.py   rows of probes as figures need them; sweeps of learning rates as one model at its best rate
"""
