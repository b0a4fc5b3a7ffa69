"""Cameras and the ways between them: what is known, written down in a links file, or learned."""
