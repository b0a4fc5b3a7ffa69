"""A city of many cameras: a random planar network and a recording of it, made whole arrays at a time, for timing.

The town (``town.py``) is for judging matchers; the city is for asking how they scale. Cameras stand in a jittered grid;
neighbours in the plane are linked until there are 36 linked pairs for 23 cameras (14 % of all pairs there, as in a real
network of that size; the links of one camera stay few as the city grows). The recording holds as many tracklets as
were asked for, so that their rate per camera is that of ``tracklets / seconds / cameras``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from examples.mtmc.network.network import Camera, Link, Network
from examples.mtmc.network.travel import TravelTime
from examples.mtmc.recordings.tracklets import Recording, Tracklet

FPS, DIMS = 5.0, 32
PAIRS_PER_CAMERA, MOST_NEIGHBOURS = 36 / 23, 6
BLOCK = 25.0  # metres between neighbouring cameras, about
SPEED, SPEED_SD = 1.4, 0.2  # metres a second; the spread of its log over directed links
STAY, STAY_SD = 14.0, 0.4
LEAVES, TURNS_BACK = 0.38, 0.08
PIECES = 1.5  # tracklets for each visit; some visit a camera twice, so 1.6 for each identity and camera
FRAGMENT_WINDOW = (0.0, 4.0)
CAMERA_SHIFT, VIEW_NOISE, PIECE_NOISE = 0.5, 1.05, 0.35


def city(cameras: int = 100, tracklets: int = 20_000, seconds: float = 3600, seed: int = 0) -> Recording:
    """A recording of ``tracklets`` tracklets in ``seconds`` seconds; the network's links carry their true travel times.

    Every tracklet has an embedding of 32 numbers and its true identity; there are no true tracks beside them. Made with
    whole arrays: 20 000 tracklets take about a second.
    """
    if cameras < 3 or tracklets < 1 or seconds <= 0:
        raise ValueError(
            f"cameras, tracklets, seconds are {cameras}, {tracklets}, {seconds}; at least 3, 1 and above 0"
        )
    rng = np.random.default_rng([seed, 7])
    network = city_network(cameras, seed)
    visits = _walk(rng, network, tracklets, seconds)
    return Recording(network, _see(rng, network, visits, tracklets))


def city_network(cameras: int, seed: int = 0) -> Network:
    """The cameras in the plane and the links between neighbours, both directions of each, with priors and densities."""
    rng = np.random.default_rng([seed, 8])
    side = int(np.ceil(np.sqrt(cameras)))
    grid = np.stack(np.divmod(np.sort(rng.permutation(side * side)[:cameras]), side), 1)
    place = BLOCK * (grid + rng.uniform(-0.35, 0.35, grid.shape))
    pairs = neighbours(place, max(cameras - 1, round(PAIRS_PER_CAMERA * cameras)))
    names = [f"c{n + 1:03d}" for n in range(cameras)]
    ends = np.concatenate([pairs, pairs[:, ::-1]])
    degree = np.bincount(ends[:, 0], minlength=cameras)
    distance = np.linalg.norm(place[ends[:, 0]] - place[ends[:, 1]], axis=1)
    median = distance / (SPEED * np.exp(rng.normal(0, SPEED_SD, len(ends))))
    spread = rng.uniform(0.15, 0.35, len(ends))
    low, high = np.floor(median * np.exp(-2.3 * spread)), np.ceil(median * np.exp(2.3 * spread) + 4)
    links = [Link(name, name, FRAGMENT_WINDOW, prior=1 - 1 / PIECES, reach=1.0) for name in names]
    for n, (a, b) in enumerate(ends.tolist()):
        window = (max(1.0, float(low[n])), float(high[n]))
        travel = TravelTime("lognormal", ((1.0, float(median[n]), float(spread[n])),), window)
        links.append(Link(names[a], names[b], window, (1 - LEAVES) / degree[a] / PIECES, travel))
    return Network(
        {n: Camera(n, FPS, position=(x, y)) for n, (x, y) in zip(names, place.tolist(), strict=True)}, tuple(links)
    )


def neighbours(place: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """``count`` undirected pairs ``[n, 2]`` of points in the plane that cross nowhere and join all points.

    The shortest edges of Delaunay's triangulation: first a tree over all points, then the shortest of the others, with
    at most six at a point.
    """
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import minimum_spanning_tree
    from scipy.spatial import Delaunay

    corners = Delaunay(place).simplices
    edges = np.unique(np.sort(np.concatenate([corners[:, [0, 1]], corners[:, [1, 2]], corners[:, [0, 2]]]), 1), axis=0)
    length = np.linalg.norm(place[edges[:, 0]] - place[edges[:, 1]], axis=1)
    tree = minimum_spanning_tree(coo_matrix((length, (edges[:, 0], edges[:, 1])), shape=(len(place),) * 2)).tocoo()
    kept = [tuple(sorted(pair)) for pair in zip(tree.row.tolist(), tree.col.tolist(), strict=True)]
    taken, degree = set(kept), np.bincount(np.ravel(kept), minlength=len(place))
    for a, b in edges[np.argsort(length, kind="stable")].tolist():
        if len(kept) >= count:
            break
        if (a, b) not in taken and max(degree[a], degree[b]) < MOST_NEIGHBOURS:
            kept.append((a, b))
            degree[[a, b]] += 1
    return np.array(kept, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class _Visits:
    """Who ``[V]`` was where from when on and for how long."""

    who: NDArray[np.int64]
    camera: NDArray[np.int64]
    start: NDArray[np.float64]
    stay: NDArray[np.float64]
    pieces: NDArray[np.int64]


def _walk(rng: np.random.Generator, network: Network, tracklets: int, seconds: float) -> _Visits:
    """Visits of walkers, all one step at a time, until there are enough for ``tracklets`` tracklets."""
    ways = [x for x in network.links if x.source != x.target]
    number = {name: n for n, name in enumerate(network.cameras)}
    source, target = (np.array([number[getattr(x, end)] for x in ways]) for end in ("source", "target"))
    median, spread = (np.array([x.density.components[0][k] for x in ways]) for k in (1, 2))
    most = int(np.bincount(source).max())
    options = np.full((len(number), most), -1)
    for n in range(len(number)):
        own = np.flatnonzero(source == n)
        options[n, : len(own)] = own
    warm_up = 600.0
    walkers = int(1.3 * tracklets / PIECES * LEAVES * (1 + warm_up / seconds)) + 200
    who, camera = np.arange(walkers), rng.integers(0, len(number), walkers)
    before = np.full(walkers, -1)
    time = rng.uniform(-warm_up, seconds, walkers)
    parts: list[_Visits] = []
    while len(who):
        stay = np.clip(rng.lognormal(np.log(STAY), STAY_SD, len(who)), 5, 60)
        inside = (time >= 0) & (time < seconds)
        pieces = 1 + rng.poisson(PIECES - 1, len(who))
        parts.append(_Visits(who[inside], camera[inside], time[inside], stay[inside], pieces[inside]))
        goes = rng.random(len(who)) >= LEAVES
        who, camera, before, time = who[goes], camera[goes], before[goes], (time + stay)[goes]
        share = np.where(
            options[camera] < 0, 0.0, np.where(target[options[camera]] == before[:, None], TURNS_BACK, 1.0)
        )
        share = share.cumsum(1)
        way = options[camera, (share <= rng.random((len(who), 1)) * share[:, -1:]).sum(1)]
        time = time + rng.lognormal(np.log(median[way]), spread[way])
        before, camera = camera, target[way]
    joined = _Visits(*(np.concatenate([getattr(p, f) for p in parts]) for f in _Visits.__dataclass_fields__))
    order = np.argsort(joined.who, kind="stable")  # walkers came in no order, so the first ones are as good as any
    enough = int(np.searchsorted(joined.pieces[order].cumsum(), tracklets)) + 1
    order = order[:enough]
    return _Visits(*(getattr(joined, f)[order] for f in _Visits.__dataclass_fields__))


def _see(rng: np.random.Generator, network: Network, visits: _Visits, tracklets: int) -> list[Tracklet]:
    """The visits broken into pieces, with boxes and looks; the first ``tracklets`` of them."""
    visit = np.repeat(np.arange(len(visits.who)), visits.pieces)[:tracklets]
    first = np.cumsum(visits.pieces) - visits.pieces
    piece = np.arange(len(visit)) - first[visit]
    step = visits.stay[visit] / visits.pieces[visit]
    gap = np.where(piece > 0, np.minimum(rng.uniform(0.6, 2.0, len(visit)), 0.5 * step), 0.0)
    begin = visits.start[visit] + piece * step + gap
    frame = np.floor(begin * FPS).astype(np.int64) + 1
    count = np.maximum(1, np.floor((step - gap) * FPS).astype(np.int64) - 1)

    whole = np.repeat(np.arange(len(visit)), count)
    frames = frame[whole] + np.arange(len(whole)) - np.repeat(np.cumsum(count) - count, count)
    share = (frames / FPS - visits.start[visit][whole]) / visits.stay[visit][whole]
    back = (rng.random(len(visits.who)) < 0.5)[visit][whole]
    depth = rng.uniform(0, 1, len(visits.who))[visit][whole]
    height = 120 + 200 * depth
    across = 1920 * (0.04 + 0.92 * np.where(back, 1 - share, share))
    boxes = np.stack([across - 0.2 * height, 500 + 500 * depth - height, 0.4 * height, height], 1)
    boxes += rng.normal(0, 3, boxes.shape)

    people = rng.normal(size=(int(visits.who.max()) + 1, DIMS))
    shift = CAMERA_SHIFT * rng.normal(size=(len(network.cameras), DIMS))
    view = VIEW_NOISE * rng.normal(size=(len(visits.who), DIMS))
    looks = people[visits.who[visit]] + shift[visits.camera[visit]] + view[visit]
    looks += PIECE_NOISE * rng.normal(size=looks.shape)
    looks /= np.linalg.norm(looks, axis=1, keepdims=True)

    names = list(network.cameras)
    cut = np.cumsum(count)[:-1]
    rows = zip(
        visits.camera[visit].tolist(), np.split(frames, cut), np.split(boxes, cut), looks,
        (frame / FPS).tolist(), ((frame + count - 1) / FPS).tolist(), visits.who[visit].tolist(), strict=True,
    )  # fmt: skip
    return [
        Tracklet(names[camera], n, f, b, None, start, end, embedding=look, truth=who)
        for n, (camera, f, b, look, start, end, who) in enumerate(rows, 1)
    ]
