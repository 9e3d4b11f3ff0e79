"""From a configuration to a planned run: it is checked before any work, and its content names its folder.

plan.py    the plan of a run: its identity, its folder, and the files of its blocks
checks.py  configurations that cannot work are refused
"""
