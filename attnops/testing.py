"""Conformance checks for users' own biases, patterns and scores."""
