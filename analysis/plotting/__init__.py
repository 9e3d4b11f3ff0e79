"""Plotting helpers that figures share.

style.py          fonts, colours, line styles and markers; saving; captions, legends, and marks for the report's page
axes.py           axes of lengths, bytes and rows; lines with bands; panels by depth and by synthetic task
sentence_maps.py  maps over the tokens of one sentence
sketches.py       diagrams of mixers, and schematic attention masks
bench.py          figures of job=bench tables
"""
