"""The synthetic tasks, one file each; every file here is found by itself (experiments/data/tasks_base.py)."""
