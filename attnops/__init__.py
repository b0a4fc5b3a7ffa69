"""Attention as one operator: who may interact is a pattern, what is preferred is a bias."""

from __future__ import annotations

from attnops.version import __version__

__all__ = ["__version__"]
