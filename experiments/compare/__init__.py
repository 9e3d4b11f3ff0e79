"""A fair comparison of models: settings selected for each on the validation split, then confirmed with other seeds.

select.py                 both stages: trials that select each model's settings, and the runs that confirm them
trials.py                 one run of the selection, and its outcome
selection_record.py       the record of the selection, results/NAME/selection.csv
time_estimate.py          how long a comparison will take, from a few timed steps
length_generalization.py  scores of confirmed runs beyond the trained length
"""
