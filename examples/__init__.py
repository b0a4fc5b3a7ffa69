"""Examples that run on attnops' public names."""
