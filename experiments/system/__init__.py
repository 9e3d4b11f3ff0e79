"""The operating system and this machine: locks, signals, messages between processes, errors, paths, facts."""
