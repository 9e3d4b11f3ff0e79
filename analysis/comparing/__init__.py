"""Comparisons of models: which are better than the baseline, by how much, and on what terms.

verdicts.py     differences from a baseline, which of them are verdicts, and the answer in sentences
equal_terms.py  what was equal for the models and what was not, in settings and in sizes
tables.py       the comparison table, a row a model; the table of synthetic tasks, a row a model and task
"""
