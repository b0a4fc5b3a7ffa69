"""A town of people and cameras, and how like real ones it is."""
