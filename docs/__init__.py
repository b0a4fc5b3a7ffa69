"""The documentation, and the scripts that make its generated parts: `python -m docs.support_table`, `docs.pictures`."""
