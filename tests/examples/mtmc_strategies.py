"""Random networks and recordings for the laws of files."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from examples.mtmc.network.network import Camera, Link, Network, Zone
from examples.mtmc.network.travel import TravelTime
from examples.mtmc.network.zones import zone_names
from examples.mtmc.recordings.tracklets import Recording, Track, Tracklet

LETTERS = st.characters(codec="utf-8", categories=("L", "N", "P", "S"), exclude_characters="/\\")
NAMES = st.text(LETTERS, min_size=1, max_size=8).filter(lambda name: not name.startswith((".", "view-")))
NUMBERS = st.floats(-1e6, 1e6)
POSITIVE = st.floats(1e-3, 1e4)
SHARES = st.floats(1e-6, 1)


@st.composite
def networks(draw: st.DrawFn, links: bool = True) -> Network:
    """Any network that a links file can hold."""
    names = draw(st.lists(NAMES, min_size=1, max_size=3, unique_by=str.casefold))
    cameras = {name: draw(_cameras(name)) for name in names}
    pairs = draw(st.lists(st.tuples(*[st.sampled_from(names)] * 2), unique=True, max_size=4)) if links else []
    return Network(cameras, tuple(draw(_links(cameras[a], cameras[b])) for a, b in pairs))


@st.composite
def _cameras(draw: st.DrawFn, name: str) -> Camera:
    corners = st.lists(st.tuples(NUMBERS, NUMBERS), min_size=3, max_size=5, unique=True).map(tuple)
    zones = draw(st.dictionaries(st.text(LETTERS, min_size=1, max_size=5), corners, max_size=2))
    return Camera(
        name,
        draw(POSITIVE),
        draw(NUMBERS),
        draw(st.floats(0.5, 2)),
        draw(st.none() | st.tuples(NUMBERS, NUMBERS)),
        draw(SHARES),
        draw(SHARES),
        tuple(Zone(zone, where) for zone, where in zones.items()),
    )


@st.composite
def _links(draw: st.DrawFn, source: Camera, target: Camera) -> Link:
    low = draw(st.floats(0, 100) if source == target else st.floats(-100, 100))
    window = (low, low + draw(st.floats(0.1, 1000)))
    kinds = ["normal"] if window[1] <= 0 else ["normal", "lognormal"]
    travel = None
    if draw(st.booleans()):
        weights = draw(st.lists(st.floats(0.05, 1), min_size=1, max_size=3))
        parts = [(w / sum(weights), draw(POSITIVE), draw(st.floats(1e-3, 10))) for w in weights]
        travel = TravelTime(draw(st.sampled_from(kinds)), tuple(parts), window)
    pairs = [(a, b) for a in zone_names(source) for b in zone_names(target)]
    named = draw(st.lists(st.sampled_from(pairs), unique=True, max_size=3)) if len(pairs) > 1 else []
    named = named[: len(pairs) - 1]
    shares = tuple((a, b, draw(st.floats(0, 1 / 3))) for a, b in named)
    measure = draw(st.sampled_from(["leave", "enter"]))
    reach = draw(st.none() | st.floats(0, 100))
    return Link(source.name, target.name, window, draw(SHARES), travel, measure, reach, shares)


@st.composite
def recordings(draw: st.DrawFn) -> Recording:
    """Some tracklets and true tracks in every camera; embeddings for all or none, places for some."""
    network = draw(networks(links=False))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    looks = draw(st.sampled_from([0, 1, 3]))
    tracklets: list[Tracklet] = []
    truth: list[Track] = []
    for camera in network.cameras:
        for id in draw(st.lists(st.integers(0, 10**9), min_size=1, max_size=3, unique=True)):
            tracklets.append(_tracklet(rng, network, camera, id, looks))
        if draw(st.booleans()):
            t = _tracklet(rng, network, camera, draw(st.integers(0, 99)), 0)
            truth.append(Track(camera, t.id, t.frames, t.boxes, t.world))
    return Recording(network, tracklets, truth)


def _tracklet(rng: np.random.Generator, network: Network, camera: str, id: int, looks: int) -> Tracklet:
    frames = 1 + np.cumsum(rng.integers(1, 4, size=int(rng.integers(1, 6))))
    frames += int(rng.integers(0, 1000))
    if network.cameras[camera].fps < 1:
        frames = frames[0] + np.arange(len(frames))  # an id that skips one of so few has been away for long
    boxes = np.concatenate([rng.uniform(-50, 2000, (len(frames), 2)), rng.uniform(0.001, 500, (len(frames), 2))], 1)
    world = rng.normal(size=(len(frames), 2)) * 100 if rng.random() < 0.5 else None
    first, last = network.cameras[camera].seconds(frames[[0, -1]]).tolist()
    look = rng.normal(size=looks) if looks else None
    return Tracklet(camera, id, frames, boxes, world, first, last, look).in_zones(network)
