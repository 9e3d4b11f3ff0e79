"""Comparing models fairly: settings selected for each on the validation split, then confirmed with other seeds.

rates.py    a grid of learning rates and how it grows;  trials.py: one selection run and its outcome
models.py   models that a sweep's grid cannot name;  cost.py: what a comparison takes, before it runs
seeds.py    further seeds of the best settings
select.py   the first stage;  confirm.py: the second;  longer.py: scores beyond the trained length
record.py   the record of the selection, results/NAME/selection.csv
"""
