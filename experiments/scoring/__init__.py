"""Scores of held-out text and of synthetic tasks, for a run in training or a finished one.

text.py      losses of a split by windows, by document, or with a decode state that is carried along
tasks.py     right answers of a synthetic task
evaluate.py  a finished run, scored on its own text or task or on another one
"""
