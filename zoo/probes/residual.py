"""What happens to the residual stream: mixing matrices, their products over depth, gradients, dimensions in use."""
