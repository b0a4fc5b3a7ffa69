"""Candidates, their prior, the graph, the matcher, and identities by assignment."""
