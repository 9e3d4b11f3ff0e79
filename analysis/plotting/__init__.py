"""Plotting helpers that figures share.

style.py          fonts, colours, line styles and markers of series; saving
axes.py           axes of lengths, bytes and rows; lines with bands, means with intervals
legends.py        legend entries
captions.py       sentences that captions share: seeds, training text, bands, models without data
depth_panels.py   a column of panels for each depth; sentence_maps.py: maps over the tokens of one sentence
"""
