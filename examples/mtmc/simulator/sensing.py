"""What a single-camera tracker makes of the truth: fragments, switches, misses, clutter, and imperfect looks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from examples.mtmc.network.network import Network
from examples.mtmc.recordings.tracklets import Dropped, Track, Tracklet

DIMS = 32
SHARE_LOOKS, CLUSTER = 0.21, 3  # a fifth of the people look like two others
WITHIN_CLUSTER = 0.35  # how much of the difference between two people is left inside a cluster
CAMERA_SHIFT, VIEW_NOISE, FRAGMENT_NOISE = 0.5, 1.05, 0.35
BREAKS, GAP = 0.5, (0.6, 3.0)  # breaks a visit (Poisson), seconds lost at each
SWITCHES, SWITCH_IOU = 0.10, 0.25  # of the pairs whose boxes overlap that much
MISSED_VISITS, MISSED_FRAMES, CLUTTER = 0.03, 0.08, 0.02
LEAST_BOXES = 3


class Looks:
    """Appearance: identity + the camera's shift + noise of the view, of unit length."""

    def __init__(self, cameras: np.random.Generator, names: list[str]) -> None:
        self.shift = {name: CAMERA_SHIFT * cameras.normal(size=DIMS) for name in names}
        self.people: dict[int, NDArray[np.float64]] = {}

    def of(self, rng: np.random.Generator, identity: int) -> NDArray[np.float64]:
        """The look of one person, the same in every camera."""
        if identity not in self.people:
            look = rng.normal(size=DIMS)
            if self.people and rng.random() < SHARE_LOOKS * (CLUSTER - 1) / CLUSTER:
                other = self.people[int(rng.choice(list(self.people)))]
                look = np.sqrt(1 - WITHIN_CLUSTER**2) * other + WITHIN_CLUSTER * look
            self.people[identity] = look
        return self.people[identity]


@dataclass(eq=False)
class _Piece:
    """Boxes with the identity each of them shows, while the tracker still makes its mistakes."""

    camera: str
    frames: NDArray[np.int64]
    boxes: NDArray[np.float64]
    shows: NDArray[np.int64]


def see(
    rng: np.random.Generator, net: Network, truth: list[Track], looks: Looks
) -> tuple[list[Tracklet], list[Dropped]]:
    """The tracklets that a tracker reports of the true tracks, and what it lost."""
    view = {}
    dropped: list[Dropped] = []
    pieces: list[_Piece] = []
    for track in truth:
        looks.of(rng, track.id)
        view[track.camera, track.id] = VIEW_NOISE * rng.normal(size=DIMS)
        if rng.random() < MISSED_VISITS:
            dropped.append(
                Dropped(track.camera, f"identity {track.id}", "the simulated tracker missed the whole visit")
            )
            continue
        pieces += _fragments(rng, track, net.cameras[track.camera].fps)
    _switch(rng, pieces)
    pieces += _clutter(rng, truth)
    tracklets = []
    numbers = dict.fromkeys(net.cameras, 0)
    for piece in sorted(pieces, key=lambda p: (p.camera, int(p.frames[0]))):
        if len(piece.frames) < LEAST_BOXES:
            why = f"shorter than {LEAST_BOXES} boxes"
            dropped.append(Dropped(piece.camera, f"a fragment at frame {int(piece.frames[0])}", why))
            continue
        numbers[piece.camera] += 1
        tracklets.append(_tracklet(rng, net, piece, numbers[piece.camera], looks, view))
    return tracklets, dropped


def _fragments(rng: np.random.Generator, track: Track, fps: float) -> list[_Piece]:
    n = len(track.frames)
    seen = rng.random(n) >= MISSED_FRAMES
    for _ in range(rng.poisson(BREAKS)):
        at = int(rng.integers(0, n))
        seen[at : at + max(1, int(rng.uniform(*GAP) * fps))] = False
    frames = track.frames[seen]
    size = track.boxes[seen][:, 2:]
    jitter = np.concatenate([rng.normal(0, 0.03, size.shape) * size, rng.normal(0, 0.03, size.shape) * size], 1)
    boxes = track.boxes[seen] + jitter
    # The tracker keeps an id over gaps of up to half a second and starts a new one after longer ones.
    cuts = np.flatnonzero(np.diff(frames) > 0.5 * fps + 1) + 1
    return [
        _Piece(track.camera, f, b, np.full(len(f), track.id))
        for f, b in zip(np.split(frames, cuts), np.split(boxes, cuts), strict=True)
        if len(f)
    ]


def _switch(rng: np.random.Generator, pieces: list[_Piece]) -> None:
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
                common, at, bt = np.intersect1d(first.frames, second.frames, return_indices=True)
                if len(common) == 0:
                    continue
                overlap = _iou(first.boxes[at], second.boxes[bt])
                worst = int(overlap.argmax())
                if overlap[worst] > SWITCH_IOU and rng.random() < SWITCHES:
                    _exchange(first, second, int(common[worst]))


def _exchange(first: _Piece, second: _Piece, frame: int) -> None:
    a, b = first.frames >= frame, second.frames >= frame
    for name in ("boxes", "shows", "frames"):
        x, y = getattr(first, name), getattr(second, name)
        setattr(first, name, np.concatenate([x[~a], y[b]]))
        setattr(second, name, np.concatenate([y[~b], x[a]]))


def _iou(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """Intersection over union, box by box."""
    low, high = np.maximum(a[:, :2], b[:, :2]), np.minimum(a[:, :2] + a[:, 2:], b[:, :2] + b[:, 2:])
    inter = np.prod(np.maximum(high - low, 0), 1)
    return np.asarray(inter / (a[:, 2] * a[:, 3] + b[:, 2] * b[:, 3] - inter))


def _clutter(rng: np.random.Generator, truth: list[Track]) -> list[_Piece]:
    """Tracklets of nobody: a poster, a reflection."""
    pieces = []
    for track in truth:
        if rng.random() < CLUTTER:
            frames = track.frames[:: 1 + int(rng.integers(0, 2))]
            boxes = np.tile(rng.uniform([0, 300, 60, 150], [1800, 700, 120, 300]), (len(frames), 1))
            pieces.append(_Piece(track.camera, frames, boxes + rng.normal(0, 2, boxes.shape), np.full(len(frames), -1)))
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
            mix += share * rng.normal(size=DIMS) * np.sqrt(1 + VIEW_NOISE**2)
        else:
            mix += share * (looks.people[identity] + view[piece.camera, identity])
    look = mix + looks.shift[piece.camera] + FRAGMENT_NOISE * rng.normal(size=DIMS)
    main = int(who[count.argmax()])
    seconds = net.cameras[piece.camera].seconds(piece.frames[[0, -1]])
    return Tracklet(
        piece.camera,
        number,
        piece.frames,
        piece.boxes,
        time_in=float(seconds[0]),
        time_out=float(seconds[1]),
        embedding=look / np.linalg.norm(look),
        truth=main if main >= 0 else None,
    )
