"""Publishing a study as small files that can be committed, with where its numbers come from."""
