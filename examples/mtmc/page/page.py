"""``report.html``: one page that stands alone, loads nothing, and draws what it shows from the data inside it.

Words from data reach the page in two ways. In the head, the notes and the given tables they are escaped here. All else
is JSON in a script element that browsers do not run, where every character that HTML could read is written as a JSON
escape; the page's own script puts it into the page as text. A content security policy forbids every other script, by
the hashes of the two that are here, and every request.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import tempfile
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from plotly.offline import get_plotlyjs

from examples.mtmc.page.errors import find_errors
from examples.mtmc.page.map import camera_data, link_data
from examples.mtmc.page.matrix import pair_data
from examples.mtmc.page.timeline import tracklet_data
from examples.mtmc.page.transits import transit_data
from examples.mtmc.page.view import View, delays_by_link, true_identities

__all__ = ["View", "delays_by_link", "true_identities", "write_page"]

ASSETS = Path(__file__).parent / "assets"
SCRIPTS = ("base.js", "state.js", "timeline.js", "lists.js", "pictures.js", "main.js")
PARTS = {
    "scores": "Scores",
    "map": "Map",
    "timeline": "Timeline",
    "identities": "Identities",
    "errors": "Errors",
    "matrix": "Match matrix",
    "transits": "Transit times",
    "reliability": "Reliability",
}


def write_page(path: Path, view: View) -> None:
    """Write the page of a view; the file appears whole or not at all."""
    text = page(view)
    handle, draft = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(text.encode("utf-8", "replace"))
        os.chmod(draft, 0o644)
        os.replace(draft, path)
    except BaseException:
        os.unlink(draft)
        raise


def page(view: View) -> str:
    """The page as text."""
    plotly = _script(get_plotlyjs())
    own = _script("(() => {\n" + "".join(_asset(name) for name in SCRIPTS) + "})();\n")
    policy = (
        f"default-src 'none'; script-src {_hash(plotly)} {_hash(own)}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
    absent = set() if view.scores else {"scores"}
    if view.reliability is None:
        absent.add("reliability")
    contents = "".join(f'<li><a href="#h-{key}">{name}</a></li>' for key, name in PARTS.items() if key not in absent)
    more = "".join(
        f'<section aria-labelledby="h-more-{n}">\n<h2 id="h-more-{n}">{escape(section.heading)}</h2>\n'
        f"{section.html()}\n</section>\n"
        for n, section in enumerate(view.more)
    )
    return Template(_asset("page.html")).substitute(
        policy=policy,
        title=escape(view.title),
        style=_asset("style.css"),
        notes="\n".join(f"<p>{escape(note)}</p>" for note in view.notes),
        contents=f"<ul>{contents}</ul>",
        no_scores="" if view.scores else "hidden",
        scores="\n".join(table.html() for table in view.scores),
        more=more,
        data=as_json(page_data(view)),
        plotly=plotly,
        script=own,
    )


def page_data(view: View) -> dict[str, Any]:
    """All that the page's script draws."""
    reliability = view.reliability
    return {
        "cameras": camera_data(view),
        "links": link_data(view),
        "tracklets": tracklet_data(view),
        "pairs": pair_data(view),
        "errors": [{"kind": e.kind, "earlier": e.earlier, "later": e.later, "why": e.why} for e in find_errors(view)],
        "transits": transit_data(view),
        "delays_of": view.delays_of,
        "reliability": None
        if reliability is None
        else {
            "edges": [float(x) for x in reliability.edges],
            "predicted": [None if x != x else round(float(x), 4) for x in reliability.predicted],
            "observed": [None if x != x else round(float(x), 4) for x in reliability.observed],
            "count": [int(x) for x in reliability.count],
        },
    }


def as_json(data: Any) -> str:
    """JSON that HTML cannot misread, whatever the words in it: no ``<``, ``>``, ``&``, and nothing but ASCII.

    >>> as_json({"camera": "</script>\\u2028&"})
    '{"camera":"\\\\u003c/script\\\\u003e\\\\u2028\\\\u0026"}'
    """
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


def _script(text: str) -> str:
    """A script that may stand in a script element: ended by no word of its own, lines as a browser counts them."""
    return text.replace("\r\n", "\n").replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _hash(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
