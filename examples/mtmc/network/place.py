"""A place in a YAML file: a value with its line, and checks whose errors name it."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from examples.mtmc.errors import InputError

Check = Callable[["Place"], Any]


def _shown(node: yaml.Node) -> str:
    """What stands there: a word or number, or a list of them; of anything deeper, what it is."""
    if isinstance(node, yaml.ScalarNode):
        return str(node.value)
    if isinstance(node, yaml.SequenceNode) and all(isinstance(item, yaml.ScalarNode) for item in node.value):
        return "[" + ", ".join(item.value for item in node.value) + "]"
    return "a list" if isinstance(node, yaml.SequenceNode) else "a mapping"


class Place:
    """A node of the file with the line that it stands on."""

    def __init__(self, path: Path, node: yaml.Node, name: str) -> None:
        self.path, self.node, self.name = path, node, name
        self.line = node.start_mark.line + 1

    def wrong(self, expected: str) -> InputError:
        """An error at this place."""
        text = _shown(self.node)
        found = f"{self.name}: {text!s:.80}" if self.name else f"{text!s:.80}"
        return InputError(self.path, self.line, found, expected)

    def entries(self) -> dict[str, Place]:
        """The entries of a mapping; keys must be text and stand once."""
        if not isinstance(self.node, yaml.MappingNode):
            raise self.wrong("a mapping (key: value)")
        found: dict[str, Place] = {}
        for key, value in self.node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise Place(self.path, key, self.name).wrong("text as a key")
            if key.value in found:
                raise InputError(self.path, key.start_mark.line + 1, f"{key.value} a second time", "every key once")
            found[key.value] = Place(self.path, value, f"{self.name}.{key.value}" if self.name else str(key.value))
        return found

    def items(self, length: int | None = None) -> list[Place]:
        """The items of a list."""
        if not isinstance(self.node, yaml.SequenceNode) or length not in (None, len(self.node.value)):
            raise self.wrong("a list" if length is None else f"a list of {length}")
        return [Place(self.path, node, f"{self.name}[{n}]") for n, node in enumerate(self.node.value)]

    def number(self, low: float = -math.inf, high: float = math.inf, above: bool = False) -> float:
        """A finite number within bounds; ``above``: larger than ``low``."""
        text = self.node.value if isinstance(self.node, yaml.ScalarNode) else ""
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or value < low or value > high or (above and value <= low):
            bounds = (f" above {low:g}" if above else f" from {low:g}") if low > -math.inf else ""
            bounds += f" to {high:g}" if high < math.inf else ""
            raise self.wrong(f"a finite number{bounds}")
        return value

    def text(self, *allowed: str) -> str:
        """A word, one of ``allowed`` where given."""
        if not isinstance(self.node, yaml.ScalarNode) or (allowed and self.node.value not in allowed):
            raise self.wrong(" or ".join(allowed) if allowed else "text")
        return str(self.node.value)

    def table(self, checks: dict[str, Check], required: tuple[str, ...] = ()) -> dict[str, Any]:
        """The entries of a mapping, each read by its check; unknown and missing keys are errors."""
        found = self.entries()
        for key in found:
            if key not in checks:
                raise InputError(self.path, found[key].line, f"{found[key].name}", f"one of {', '.join(checks)}")
        for key in required:
            if key not in found:
                raise self.wrong(f"the key {key!r}")
        return {key: checks[key](place) for key, place in found.items()}
