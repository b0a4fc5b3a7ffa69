"""IDF1, HOTA and links against the truth, by a printed protocol."""
