"""``report.html``: one page that stands alone and loads nothing."""

from __future__ import annotations

from html import escape
from pathlib import Path

from examples.mtmc.page.view import View, delays_by_link, true_identities

__all__ = ["View", "delays_by_link", "true_identities", "write_page"]


def write_page(path: Path, view: View) -> None:
    """Write the page of a view."""
    parts = [f"<p>{escape(note)}</p>" for note in view.notes] + [table.html() for table in view.scores]
    parts += [f"<h2>{escape(section.heading)}</h2>{section.html()}" for section in view.more]
    head = '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
    body = f"<title>{escape(view.title)}</title></head><body><h1>{escape(view.title)}</h1>" + "\n".join(parts)
    path.write_text(f"{head}{body}</body></html>\n", encoding="utf-8")
