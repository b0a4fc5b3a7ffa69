"""Parts of a page that a script writes: what stands between `<!-- name -->` and `<!-- /name -->`."""

from __future__ import annotations

import re
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def read_part(page: str, name: str) -> str:
    """What stands between the marks, without the blank lines around it."""
    found = re.search(rf"<!-- {name} -->\n(.*?)<!-- /{name} -->", page, re.DOTALL)
    if found is None:
        raise ValueError(f"the page has no part marked <!-- {name} --> … <!-- /{name} -->")
    return found[1].strip("\n")


def with_part(page: str, name: str, body: str) -> str:
    """The page with `body` between the marks."""
    read_part(page, name)
    before, rest = page.split(f"<!-- {name} -->\n", 1)
    _, after = rest.split(f"<!-- /{name} -->", 1)
    return f"{before}<!-- {name} -->\n{body}\n<!-- /{name} -->{after}"


def write_part(name: str, body: str, path: Path = README) -> None:
    """Put `body` between the marks of a file, which is replaced whole."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(with_part(path.read_text(encoding="utf-8"), name, body), encoding="utf-8")
    partial.replace(path)
