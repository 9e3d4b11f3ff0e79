"""Looking inside finished and training runs: held-out windows, what is taken from them, the tables it goes into."""
