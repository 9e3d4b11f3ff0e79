"""One folder per operation: a reference to read, a PyTorch form, and further backends."""
