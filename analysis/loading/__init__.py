"""Run folders and published tables read into pandas frames.

results.py        `load_results` and `Results`, where to start; labels.py: the labels of their models
columns.py        every column of runs and metrics, with its unit and meaning; metrics.py: the metric rows of all runs
blocks.py         descriptions of blocks in summaries; tasks.py: synthetic tasks of runs
rate_sweeps.py    a sweep of rates as one model, at its best; selection.py: the record of job=compare's selection
split_tables.py   scores by document, by answer and by length; bench_tables.py: tables of job=bench
probe_tables.py   the tables that probes wrote; probed_steps.py: of which training steps
probe_measures.py and routing.py: rows of probes as figures need them
folders.py        finding run folders; sources.py: own files of runs and exported ones; safe_read.py: no links out
"""
