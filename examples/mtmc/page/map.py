"""What the map is drawn from: places of cameras, and the flow along every link."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from examples.mtmc.page.errors import joins
from examples.mtmc.page.view import View


def camera_data(view: View) -> dict[str, Any]:
    """Names and places of cameras; on a circle where the links file does not say where all of them are."""
    cameras = list(view.recording.network.cameras.values())
    placed = all(camera.position is not None for camera in cameras)
    if placed:
        places = [camera.position or (0.0, 0.0) for camera in cameras]
    else:
        turns = [2 * math.pi * n / max(len(cameras), 1) for n in range(len(cameras))]
        places = [(-math.cos(turn), math.sin(turn)) for turn in turns]
    count = dict.fromkeys(view.recording.network.cameras, 0)
    for tracklet in view.recording.tracklets:
        count[tracklet.camera] += 1
    return {
        "name": [camera.name for camera in cameras],
        "x": [round(float(x), 4) for x, _ in places],
        "y": [round(float(y), 4) for _, y in places],
        "tracklets": list(count.values()),
        "placed": placed,
    }


def link_data(view: View) -> dict[str, Any]:
    """Columns over links: how many passed as matched and in truth, how long they took, and what was believed."""
    network = view.recording.network
    names = list(network.cameras)
    matched = _passages(view, joins(view.identity))
    true = None if view.true is None else _passages(view, joins(view.true))
    links = network.links
    known = {(link.source, link.target) for link in links}
    believed = [view.network.link(link.source, link.target) for link in links]
    return {
        "source": [names.index(link.source) for link in links],
        "target": [names.index(link.target) for link in links],
        "matched": [len(matched.get((link.source, link.target), [])) for link in links],
        "true": None if true is None else [len(true.get((link.source, link.target), [])) for link in links],
        "median": [_median(matched.get((link.source, link.target), [])) for link in links],
        "prior": [None if link is None else round(link.prior, 4) for link in believed],
        "typical": [None if link is None else round(float(link.density.centre), 2) for link in believed],
        "elsewhere": 0 if true is None else sum(len(v) for pair, v in true.items() if pair not in known),
    }


def _passages(view: View, pairs: list[tuple[int, int]]) -> dict[tuple[str, str], list[float]]:
    found: dict[tuple[str, str], list[float]] = {}
    entering = {(link.source, link.target) for link in view.recording.network.links if link.measure == "enter"}
    for earlier, later in pairs:
        a, b = view.recording.tracklets[earlier], view.recording.tracklets[later]
        since = a.time_in if (a.camera, b.camera) in entering else a.time_out
        found.setdefault((a.camera, b.camera), []).append(b.time_in - since)
    return found


def _median(values: list[float]) -> float | None:
    return round(float(np.median(values)), 2) if values else None
