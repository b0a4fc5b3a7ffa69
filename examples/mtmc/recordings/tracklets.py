"""The data: tracklets of single cameras, what is true where it is known, and what was left out."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from examples.mtmc.network.network import Network
from examples.mtmc.network.zones import zone_of


@dataclass(frozen=True, eq=False)
class Track:
    """Boxes of one id in one camera: ``frames [n]`` ascending, ``boxes [n, 4]`` left, top, width, height in pixels."""

    camera: str
    id: int
    frames: NDArray[np.int64]
    boxes: NDArray[np.float64]
    world: NDArray[np.float64] | None = None  # [n, 2], AI City rows carry it


@dataclass(frozen=True, eq=False)
class Tracklet(Track):
    """One stretch of boxes that a single-camera tracker took for one person or vehicle.

    ``time_in`` and ``time_out`` are seconds on the common clock, ``embedding [D]`` its appearance, ``truth`` the
    identity that most of its boxes show, or None where that is unknown or nobody. ``zone_in`` and ``zone_out`` are the
    zones of its camera in which its first and last box stand, "" outside all. ``attributes`` are what else was read
    off it (colour, make, model; each may be wrong), empty where nothing was.
    """

    time_in: float = 0.0
    time_out: float = 0.0
    embedding: NDArray[np.float64] | None = None
    truth: int | None = None
    zone_in: str = ""
    zone_out: str = ""
    attributes: tuple[str, ...] = ()

    def in_zones(self, network: Network) -> Tracklet:
        """The same tracklet with ``zone_in`` and ``zone_out`` as the network's zones say."""
        camera = network.cameras[self.camera]
        if not camera.zones or not len(self.boxes):
            return self
        return replace(self, zone_in=zone_of(camera, self.boxes[0]), zone_out=zone_of(camera, self.boxes[-1]))


@dataclass(frozen=True)
class Dropped:
    """Something of the input that was not used, and why."""

    camera: str
    what: str
    why: str
    count: int = 1  # how many cases this one stands for


@dataclass(eq=False)
class Recording:
    """The tracklets of all cameras in order of their start, and the true tracks where they are known."""

    network: Network
    tracklets: list[Tracklet]
    truth: list[Track] = field(default_factory=list)  # ids are global identities
    dropped: list[Dropped] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tracklets = sorted(self.tracklets, key=lambda t: (t.time_in, t.time_out, t.camera, t.id))

    def between(self, start: float, end: float) -> Recording:
        """The part whose tracklets start in ``[start, end)``; true boxes are cut at the same times."""
        kept = [t for t in self.tracklets if start <= t.time_in < end]
        truth = []
        for track in self.truth:
            times = self.network.cameras[track.camera].seconds(track.frames)
            inside = (times >= start) & (times < end)
            if inside.any():
                truth.append(Track(track.camera, track.id, track.frames[inside], track.boxes[inside]))
        return Recording(self.network, kept, truth, self.dropped)

    @property
    def duration(self) -> float:
        """Seconds from the first start to the last end."""
        if not self.tracklets:
            return 0.0
        return max(t.time_out for t in self.tracklets) - self.tracklets[0].time_in

    @property
    def has_embeddings(self) -> bool:
        """Whether every tracklet has an appearance."""
        return bool(self.tracklets) and all(t.embedding is not None for t in self.tracklets)
