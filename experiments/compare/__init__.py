"""Comparing models fairly: settings selected for each on the validation split, then confirmed with other seeds.

compared_models.py        models that a sweep's grid cannot name
rates.py                  a grid of learning rates and how it grows;  trials.py: one selection run and its outcome
halving.py                only the better half of the settings goes on;  seeds.py: further seeds of the best settings
select.py                 the first stage;  confirm.py: the second
length_generalization.py  scores beyond the trained length
time_estimate.py          core-minutes that a comparison takes, before it runs
selection_record.py       the record of the selection, results/NAME/selection.csv
"""
