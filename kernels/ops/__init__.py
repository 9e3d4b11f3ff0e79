"""One folder an operation: a reference to read, a PyTorch form, and whatever else serves it."""
