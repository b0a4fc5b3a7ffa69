"""Sequence models on the one operator.

Norms, feed-forward layers, attention modules, caches and whole transformers are planned here. Until they land,
``attnops.attend`` serves sequences directly: name a pattern such as ``Causal()`` and a bias such as ``ALiBi(heads)``.
"""

from __future__ import annotations
