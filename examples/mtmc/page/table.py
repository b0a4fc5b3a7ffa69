"""Tables and sections of a page. Every word from data is escaped."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape


@dataclass(frozen=True)
class Table:
    """Rows of cells under a head.

    ``strong`` names the first cell of the row to stress, ``words``: the last column is text.
    """

    caption: str
    head: list[str]
    rows: list[list[str]]
    strong: str = ""
    words: bool = False

    def html(self) -> str:
        """The table, escaped, in a box of its own that scrolls sideways where the page is narrow."""
        head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in self.head)
        body = ""
        for row in self.rows:
            mark = ' class="best"' if row and row[0] == self.strong else ""
            first = "".join(f'<th scope="row">{escape(cell)}</th>' for cell in row[:1])
            body += f"<tr{mark}>{first}" + "".join(f"<td>{escape(cell)}</td>" for cell in row[1:]) + "</tr>\n"
        kind = ' class="words"' if self.words else ""
        return (
            f"<figure><figcaption>{escape(self.caption)}</figcaption>"
            f'<div class="wide" role="region" tabindex="0" aria-label="{escape(self.caption, quote=True)}">'
            f"<table{kind}><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div></figure>"
        )


@dataclass(frozen=True)
class Section:
    """A heading with words and tables."""

    heading: str
    words: list[str] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)

    def html(self) -> str:
        """What stands under the heading, escaped."""
        return "\n".join([f"<p>{escape(text)}</p>" for text in self.words] + [table.html() for table in self.tables])
