"""Training the cells of a sweep, and what the terminal shows meanwhile; who runs them: experiments.engines."""
