"""Where attention goes: sinks, spread, distance, gates and selected keys."""
