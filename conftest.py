"""Pytest, at the root: the links seq and graph show attnops/seq and attnops/graph a second time; collect them once."""

from __future__ import annotations

collect_ignore = ["seq", "graph"]
