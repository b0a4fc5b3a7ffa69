"""For mkdocstrings: the section `Example:` of a docstring holds doctests, as griffe reads `Examples:`."""

from __future__ import annotations

import re
from typing import Any

import griffe


class Examples(griffe.Extension):
    """Renames the section before it is parsed; else `>>>` is taken for a quotation."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Every object of the package, once loaded."""
        if obj.docstring is not None:
            obj.docstring.value = re.sub(r"^Example:$", "Examples:", obj.docstring.value, flags=re.MULTILINE)
