"""Caveats that a reviewer would write: what makes a comparison incomplete or unequal, one sentence each."""
