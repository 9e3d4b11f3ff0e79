"""From a configuration to a planned run: checks, identity, folder."""
