"""Ways to give every head a score: one file per method, pure torch."""
