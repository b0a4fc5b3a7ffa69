"""The camera layout text of regob/vehicle_mtmc, read as a network.

Comments begin with #; then blocks of a keyword and rows of numbers, for n cameras:

    fps                one row
    scales             one row, optional: seconds of the camera's clock per common second
    offset             one row: seconds to add
    compatibility      n rows: 1 where who leaves camera i (row) may be seen in camera j (column)
    dtmin, dtmax       n rows each: who left i at t reaches j in [t + dtmin, t + dtmax]; inf for no bound

A frame f of camera i was taken at f / fps / scale + offset. Cameras are called what a comment ``# cam 0: NAME`` says,
else cam0, cam1 and so on. What such a file holds and a links file does not is reported, never passed over in silence.
"""

from __future__ import annotations

import math
import re
from pathlib import Path

from examples.mtmc.errors import InputError
from examples.mtmc.network.links_file import fit_for_a_file
from examples.mtmc.network.network import Camera, Link, Network

SQUARE = ("compatibility", "dtmin", "dtmax")
BLOCKS = ("fps", "scales", "offset", *SQUARE)
NAME = re.compile(r"#\s*cam\s*(\d+)\s*:\s*(\S.*)")
LONGEST = 3600.0  # seconds, in place of an infinite bound

Rows = list[tuple[int, list[float]]]


def read_layout(path: Path, names: list[str] | None = None) -> tuple[Network, list[str]]:
    """The network, and notes on what was not taken over as it stands."""
    blocks, found = _blocks(path)
    for needed in ("fps", "offset", *SQUARE):
        if needed not in blocks:
            raise InputError(path, None, f"no block {needed}", f"the blocks {', '.join(BLOCKS)} (scales may lack)")
    count = len(blocks["fps"][0][1]) if blocks["fps"] else 0
    for keyword, rows in blocks.items():
        _check(path, keyword, rows, count)
    cameras = _cameras(path, blocks, names, found, count)
    links, notes = _links(path, blocks, list(cameras))
    if "scales" not in blocks:
        notes.insert(0, "no block scales: all clocks run alike")
    return Network(cameras, tuple(links)), notes


def _blocks(path: Path) -> tuple[dict[str, Rows], dict[int, str]]:
    blocks: dict[str, Rows] = {}
    names: dict[int, str] = {}
    keyword = None
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(path, None, f"no readable file ({type(error).__name__})", "a camera layout") from None
    for number, line in enumerate(lines, 1):
        comment = NAME.fullmatch(line.strip())
        if comment:
            names[int(comment[1])] = comment[2].strip()
        words = line.split("#")[0].split()
        if not words:
            continue
        if len(words) == 1 and words[0] in BLOCKS:
            keyword = words[0]
            if keyword in blocks:
                raise InputError(path, number, f"block {keyword} a second time", "every block once")
            blocks[keyword] = []
            continue
        try:
            values = [float(word) for word in words]
        except ValueError:
            raise InputError(path, number, f"{line.strip()!r:.60}", f"numbers, or one of {', '.join(BLOCKS)}") from None
        if keyword is None:
            raise InputError(path, number, "numbers", f"a keyword first: one of {', '.join(BLOCKS)}")
        blocks[keyword].append((number, values))
    return blocks, names


def _check(path: Path, keyword: str, rows: Rows, count: int) -> None:
    high = count if keyword in SQUARE else 1
    if len(rows) != high or count == 0:
        raise InputError(path, rows[-1][0] if rows else None, f"{len(rows)} rows of {keyword}", f"{max(high, 1)}")
    for line, row in rows:
        if len(row) != count:
            raise InputError(path, line, f"{len(row)} numbers of {keyword}", f"{count}, one a camera")
        finite = keyword not in ("dtmin", "dtmax")
        if any(math.isnan(x) or (finite and math.isinf(x)) for x in row):
            raise InputError(path, line, f"{keyword} that is not finite", "numbers")
        if keyword in ("fps", "scales") and min(row) <= 0:
            raise InputError(path, line, f"{keyword} {min(row):g}", "numbers above 0")
        if keyword == "compatibility" and not set(row) <= {0.0, 1.0}:
            raise InputError(path, line, "compatibility other than 0 and 1", "0 or 1")


def _cameras(
    path: Path, blocks: dict[str, Rows], names: list[str] | None, found: dict[int, str], count: int
) -> dict[str, Camera]:
    names = [found.get(k, f"cam{k}") for k in range(count)] if names is None else names
    if len(names) != count or len(set(names)) != count:
        raise InputError(path, None, f"{count} cameras and the names {', '.join(names):.200}", "a name for each")
    unfit = [name for name in names if not fit_for_a_file(name)]
    if unfit:
        raise InputError(path, None, f"a camera {unfit[0]!r:.60}", "a name that can be a file name (--names)")
    fps, offset = blocks["fps"][0][1], blocks["offset"][0][1]
    scales = blocks["scales"][0][1] if "scales" in blocks else [1.0] * count
    return {
        name: Camera(name, f, clock_offset=o, clock_rate=1 / s)
        for name, f, o, s in zip(names, fps, offset, scales, strict=True)
    }


def _links(path: Path, blocks: dict[str, Rows], names: list[str]) -> tuple[list[Link], list[str]]:
    links, notes = [], []
    allowed, low, high = ([row for _, row in blocks[keyword]] for keyword in SQUARE)
    for i, source in enumerate(names):
        for j, target in enumerate(names):
            if not allowed[i][j]:
                if (low[i][j], high[i][j]) != (0, 0):
                    notes.append(f"{source} to {target}: a window without a link, not taken over")
                continue
            if i == j:
                line = blocks["compatibility"][i][0]
                notes.append(
                    f"{source} linked to itself (line {line}) with the window [{low[i][j]:g}, {high[i][j]:g}]: a slip, "
                    f"not taken over (a link that joins fragments has a window from 0 on and a reach)"
                )
                continue
            if low[i][j] >= high[i][j]:
                line, found = blocks["dtmin"][i][0], f"dtmin {low[i][j]:g} and dtmax {high[i][j]:g}"
                raise InputError(path, line, f"{found} of {source} to {target}", "dtmin below dtmax")
            window = (max(low[i][j], -LONGEST), min(high[i][j], LONGEST))
            if window != (low[i][j], high[i][j]):
                notes.append(f"{source} to {target}: an infinite bound, taken as {LONGEST:g} s")
            links.append(Link(source, target, window))
    return links, notes
