"""Identities while a stream runs: within a stated latency, and never changed afterwards."""
