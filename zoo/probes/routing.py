"""Where tokens are sent: loads, imbalance and certainty of routers."""
