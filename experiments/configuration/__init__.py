"""Configurations: what a person may set, and how Hydra makes a configuration of a command and the files in conf/.

schema.py          every key, its type and its default
compose.py         composing a configuration; presets, their labels; learning rates that follow from others
explain.py         Hydra's errors in one line; options that no model of the command uses
hydra_settings.py  having Hydra compose; its flags and settings, and keys, that are refused
"""
