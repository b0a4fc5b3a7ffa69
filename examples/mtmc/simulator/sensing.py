"""What a single-camera tracker makes of the truth: fragments, switches, misses, clutter, imperfect looks and places."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from examples.mtmc.network.network import Network
from examples.mtmc.network.zones import zones_of
from examples.mtmc.recordings.tracklets import Dropped, Track, Tracklet
from examples.mtmc.simulator.looks import DIMS, PIECE_NOISE, Looks, drawn, read
from examples.mtmc.simulator.town import Preset

GAP = (0.6, 3.0)  # seconds lost at each break
SWITCH_IOU = 0.25  # how much two boxes must overlap to be exchanged
LEAST_BOXES = 3


@dataclass(eq=False)
class _Piece:
    """Boxes with the identity each of them shows, while the tracker still makes its mistakes."""

    camera: str
    frames: NDArray[np.int64]
    boxes: NDArray[np.float64]
    shows: NDArray[np.int64]
    world: NDArray[np.float64]  # [n, 2], NaN where the camera has no ground


def see(
    rng: np.random.Generator, net: Network, truth: list[Track], looks: Looks, preset: Preset
) -> tuple[list[Tracklet], list[Dropped]]:
    """The tracklets that a tracker reports of the true tracks, and what it lost."""
    view = {}
    dropped: list[Dropped] = []
    pieces: list[_Piece] = []
    for track in truth:
        looks.of(rng, track.id)
        view[track.camera, track.id] = preset.view_noise * rng.normal(size=DIMS)
        if rng.random() < preset.missed_visits:
            dropped.append(
                Dropped(track.camera, f"identity {track.id}", "the simulated tracker missed the whole visit")
            )
            continue
        pieces += _fragments(rng, track, net.cameras[track.camera].fps, preset)
    _switch(rng, pieces, preset.switches)
    pieces += _clutter(rng, truth, preset.clutter)
    tracklets = []
    numbers = dict.fromkeys(net.cameras, 0)
    for piece in sorted(pieces, key=lambda p: (p.camera, int(p.frames[0]))):
        if len(piece.frames) < LEAST_BOXES:
            why = f"shorter than {LEAST_BOXES} boxes"
            dropped.append(Dropped(piece.camera, f"a fragment at frame {int(piece.frames[0])}", why))
            continue
        numbers[piece.camera] += 1
        tracklets.append(_tracklet(rng, net, piece, numbers[piece.camera], looks, view))
    return _in_zones(net, tracklets), dropped


def _in_zones(net: Network, tracklets: list[Tracklet]) -> list[Tracklet]:
    """The tracklets with the zones they enter and leave by, a camera at a time."""
    placed: list[Tracklet] = []
    for name, camera in net.cameras.items():
        own = [t for t in tracklets if t.camera == name]
        ends = np.array([[t.boxes[0], t.boxes[-1]] for t in own]).reshape(-1, 4)
        zones = zones_of(camera, ends[:, :2] + ends[:, 2:] * (0.5, 1.0))
        placed += [replace(t, zone_in=a, zone_out=b) for t, a, b in zip(own, zones[::2], zones[1::2], strict=True)]
    return placed


def _fragments(rng: np.random.Generator, track: Track, fps: float, preset: Preset) -> list[_Piece]:
    n = len(track.frames)
    seen = rng.random(n) >= preset.missed_frames
    for _ in range(rng.poisson(preset.breaks)):
        at = int(rng.integers(0, n))
        seen[at : at + max(1, int(rng.uniform(*GAP) * fps))] = False
    frames = track.frames[seen]
    size = track.boxes[seen][:, 2:]
    jitter = np.concatenate([rng.normal(0, 0.03, size.shape) * size, rng.normal(0, 0.03, size.shape) * size], 1)
    boxes = track.boxes[seen] + jitter
    world = np.full((len(frames), 2), np.nan)
    if track.world is not None:  # off as a whole, and from box to box
        world = track.world[seen] + preset.ground_sd * (rng.normal(size=2) + rng.normal(size=world.shape)) / np.sqrt(2)
    # The tracker keeps an id over gaps of up to half a second and starts a new one after longer ones.
    cuts = np.flatnonzero(np.diff(frames) > 0.5 * fps + 1) + 1
    return [
        _Piece(track.camera, f, b, np.full(len(f), track.id), w)
        for f, b, w in zip(np.split(frames, cuts), np.split(boxes, cuts), np.split(world, cuts), strict=True)
        if len(f)
    ]


def _switch(rng: np.random.Generator, pieces: list[_Piece], share: float) -> None:
    """Where two people cross, the tracker sometimes goes on with the wrong one: their tails are exchanged."""
    by_camera: dict[str, list[_Piece]] = {}
    for piece in pieces:
        by_camera.setdefault(piece.camera, []).append(piece)
    for same in by_camera.values():
        same.sort(key=lambda p: int(p.frames[0]))
        for i, first in enumerate(same):
            for second in same[i + 1 :]:
                if second.frames[0] > first.frames[-1]:
                    break
                common, at, bt = np.intersect1d(first.frames, second.frames, True, True)
                if len(common) == 0:
                    continue
                overlap = _iou(first.boxes[at], second.boxes[bt])
                worst = int(overlap.argmax())
                if overlap[worst] > SWITCH_IOU and rng.random() < share:
                    _exchange(first, second, int(common[worst]))


def _exchange(first: _Piece, second: _Piece, frame: int) -> None:
    a, b = first.frames >= frame, second.frames >= frame
    for name in ("boxes", "shows", "world", "frames"):
        x, y = getattr(first, name), getattr(second, name)
        setattr(first, name, np.concatenate([x[~a], y[b]]))
        setattr(second, name, np.concatenate([y[~b], x[a]]))


def _iou(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """Intersection over union, box by box."""
    low, high = np.maximum(a[:, :2], b[:, :2]), np.minimum(a[:, :2] + a[:, 2:], b[:, :2] + b[:, 2:])
    inter = np.prod(np.maximum(high - low, 0), 1)
    return np.asarray(inter / (a[:, 2] * a[:, 3] + b[:, 2] * b[:, 3] - inter))


def _clutter(rng: np.random.Generator, truth: list[Track], share: float) -> list[_Piece]:
    """Tracklets of nobody: a poster, a reflection."""
    pieces = []
    for track in truth:
        if rng.random() < share:
            frames = track.frames[:: 1 + int(rng.integers(0, 2))]
            boxes = np.tile(rng.uniform([0, 300, 60, 150], [1800, 700, 120, 300]), (len(frames), 1))
            boxes += rng.normal(0, 2, boxes.shape)
            nowhere = np.full((len(frames), 2), np.nan)
            pieces.append(_Piece(track.camera, frames, boxes, np.full(len(frames), -1), nowhere))
    return pieces


def _tracklet(
    rng: np.random.Generator,
    net: Network,
    piece: _Piece,
    number: int,
    looks: Looks,
    view: dict[tuple[str, int], NDArray[np.float64]],
) -> Tracklet:
    who, count = np.unique(piece.shows, return_counts=True)
    mix = np.zeros(DIMS)
    for identity, share in zip(who.tolist(), count / count.sum(), strict=True):
        if identity < 0:
            mix += share * rng.normal(size=DIMS) * np.sqrt(1 + looks.noise**2)
        else:
            mix += share * (looks.people[identity] + view[piece.camera, identity])
    look = mix + looks.shift[piece.camera] + PIECE_NOISE * rng.normal(size=DIMS)
    main = int(who[count.argmax()])
    seconds = net.cameras[piece.camera].seconds(piece.frames[[0, -1]])
    return Tracklet(
        piece.camera,
        number,
        piece.frames,
        piece.boxes,
        None if np.isnan(piece.world).any() else piece.world,
        time_in=float(seconds[0]),
        time_out=float(seconds[1]),
        embedding=look / np.linalg.norm(look),
        truth=main if main >= 0 else None,
        attributes=read(rng, looks.attributes[main] if main >= 0 else drawn(rng)),
    )
