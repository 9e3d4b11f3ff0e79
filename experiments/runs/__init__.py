"""Run folders: their files, locks, weights and metrics; loading a finished run."""
