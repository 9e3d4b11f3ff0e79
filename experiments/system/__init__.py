"""The operating system and this machine, as runs and sweeps need them.

signals.py    Ctrl-C, and signals that tell a run to make room
locks.py      locks between processes, on one machine or several
processes.py  progress, on the terminal or as messages to the process that runs a sweep
torchrun.py   torchrun, which ends with the process that started it
machine.py    facts about the machine; errors of the operating system in one line;  paths.py: the project's folders
"""
