"""A page of tables and pictures alone."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from examples.mtmc.page.table import Table

STYLE = """
body{font:16px/1.5 system-ui,sans-serif;max-width:66rem;margin:2rem auto;padding:0 1rem;
color:#1b1b1b;background:#fff}
h1{font-size:1.6rem}h2{font-size:1.2rem;margin-top:2.2rem}
.wide{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums}
th,td{padding:.3rem .6rem;text-align:right;border-bottom:1px solid #ddd;white-space:nowrap}
th:first-child,td:first-child,.words th:last-child,.words td:last-child{text-align:left}
.words td:last-child{white-space:normal;min-width:10rem}thead th{border-bottom:2px solid #555}
tr.best td{font-weight:600;background:#fff4e8}caption{text-align:left;color:#555;padding-bottom:.4rem}
img{max-width:100%;height:auto;border:1px solid #ddd}figure{margin:1rem 0}figcaption{color:#555}
.note{color:#555}
"""


@dataclass(frozen=True)
class Section:
    """A heading with words, a table, or pictures (path and caption)."""

    heading: str
    words: list[str] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    pictures: list[tuple[Path, str]] = field(default_factory=list)

    def html(self) -> str:
        """The section, escaped, pictures inside."""
        parts = [f"<h2>{escape(self.heading)}</h2>"]
        parts += [f"<p>{escape(text)}</p>" for text in self.words]
        parts += [table.html() for table in self.tables]
        for path, caption in self.pictures:
            data = base64.b64encode(path.read_bytes()).decode("ascii")
            image = f'<img alt="{escape(caption, quote=True)}" src="data:image/png;base64,{data}">'
            parts.append(f"<figure>{image}<figcaption>{escape(caption)}</figcaption></figure>")
        return "\n".join(parts)


def page(title: str, sections: list[Section]) -> str:
    """The whole page; it loads nothing from anywhere."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body><main><h1>{escape(title)}</h1>\n"
        + "\n".join(section.html() for section in sections)
        + "\n</main></body></html>\n"
    )
