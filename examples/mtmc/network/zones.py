"""Zones: where in a camera's picture people enter and leave, and which zones of two cameras go together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from examples.mtmc.network.network import Camera, Link, Network


def zone_of(camera: Camera, box: Sequence[float] | NDArray[np.float64]) -> str:
    """The first zone of the camera that holds the foot point of a box (left, top, width, height); "" outside all.

    >>> from examples.mtmc.network.network import Zone
    >>> hall = Camera("hall", 25.0, zones=(Zone("door", ((0, 0), (100, 0), (100, 200), (0, 200))),))
    >>> zone_of(hall, [40, 50, 20, 100]), zone_of(hall, [40, 150, 20, 100])
    ('door', '')
    """
    left, top, width, height = (float(x) for x in box)
    return zones_of(camera, [[left + width / 2, top + height]])[0]


def zones_of(camera: Camera, points: ArrayLike) -> list[str]:
    """The zone of each point ``[n, 2]`` of the picture.

    A point on a corner or an edge that two zones share is in exactly one of them.
    """
    x, y = np.asarray(points, dtype=np.float64).reshape(-1, 2).T
    names = np.full(len(x), "", dtype=object)
    for zone in reversed(camera.zones):
        names[_inside(x, y, np.asarray(zone.corners, dtype=np.float64))] = zone.name
    return [str(name) for name in names]


def _inside(x: NDArray[np.float64], y: NDArray[np.float64], corners: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Whether a ray to the right crosses the polygon's edges an odd number of times (edges are half open)."""
    odd = np.zeros(len(x), dtype=bool)
    for (x0, y0), (x1, y1) in zip(corners, np.roll(corners, -1, axis=0), strict=True):
        if y0 == y1:
            continue
        if y0 > y1:  # from the lower end always, so that two zones compute a shared edge alike
            x0, y0, x1, y1 = x1, y1, x0, y0
        near = np.flatnonzero((y0 <= y) & (y < y1))
        odd[near] ^= x[near] < x0 + (y[near] - y0) / (y1 - y0) * (x1 - x0)
    return odd


def zone_names(camera: Camera) -> list[str]:
    """The camera's zones by name, "" (in none) last."""
    return [*dict.fromkeys(zone.name for zone in camera.zones), ""]


def zone_shares(link: Link, network: Network) -> NDArray[np.float64] | None:
    """The link's passages over (zone of leaving, zone of entering) as ``zone_names`` order them; None if not known.

    What the named pairs leave of 1 is shared evenly by those that are not named. The table sums to 1.
    """
    if not link.zones:
        return None
    leave, enter = zone_names(network.cameras[link.source]), zone_names(network.cameras[link.target])
    share = np.full((len(leave), len(enter)), np.nan)
    for out, into, part in link.zones:
        share[leave.index(out), enter.index(into)] = part
    named = float(np.nansum(share))
    unnamed = int(np.isnan(share).sum())
    share[np.isnan(share)] = max(1 - named, 0.0) / max(unnamed, 1)
    return np.asarray(share / share.sum(), dtype=np.float64)
