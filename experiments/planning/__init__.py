"""Configurations become planned runs.

plan.py      a configuration is resolved, checked, and given its folder
identity.py  what decides a run's result and names its folder; notices about settings that do not
"""
