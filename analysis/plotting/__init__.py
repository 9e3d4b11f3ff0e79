"""Plotting helpers that figures share.

style.py          fonts, colours, line styles and markers of series; saving
axes.py           axes of lengths, bytes and rows; lines with bands, means with intervals
legends.py        legend entries
captions.py       sentences that captions share: seeds, training text, bands, models without data
series_marks.py   marks by which a page lights one model up in every figure; choice_colors.py: colours of routes
depth_panels.py   a column of panels for each depth; task_panels.py: a panel a task
sentence_maps.py  maps over the tokens of one sentence; token_labels.py: tokens as labels of an axis
sketches.py       diagrams of mixers; masks.py: schematic attention masks; bench.py: figures of job=bench tables
"""
