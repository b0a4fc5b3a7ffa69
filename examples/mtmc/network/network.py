"""The camera network: what each camera's clock says, and who can be reached from whom, how likely and how fast."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from examples.mtmc.network.travel import TravelTime, from_window


@dataclass(frozen=True)
class Zone:
    """A part of the picture where people enter or leave: a polygon of ``corners`` (x, y) in pixels."""

    name: str
    corners: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Camera:
    """One camera: frame ``f`` was taken at ``clock_offset + clock_rate · f / fps`` seconds of the common clock."""

    name: str
    fps: float
    clock_offset: float = 0.0
    clock_rate: float = 1.0
    position: tuple[float, float] | None = None  # on a map, any unit
    starts: float = 0.3  # share of its tracklets that come from no other tracklet
    ends: float = 0.3  # share of its tracklets that no other tracklet follows
    zones: tuple[Zone, ...] = ()

    def seconds(self, frames: NDArray[np.int64]) -> NDArray[np.float64]:
        """Common time of frames."""
        return self.clock_offset + self.clock_rate * np.asarray(frames, dtype=np.float64) / self.fps

    def frame(self, seconds: NDArray[np.float64] | float) -> NDArray[np.int64]:
        """The frame taken at, or last before, a common time."""
        local = (np.asarray(seconds, dtype=np.float64) - self.clock_offset) / self.clock_rate
        return np.floor(local * self.fps + 1e-6).astype(np.int64)


@dataclass(frozen=True)
class Link:
    """One direction in which people pass: who leaves ``source`` may come to ``target`` after a delay in ``window``.

    The delay is counted from leaving the source to entering the target, in seconds; negative where views overlap.
    With ``measure="enter"`` it is counted from entering the source, which suits views that share most of their scene.
    ``prior`` is the share of tracklets at the source that go on to the target. A link from a camera to itself joins
    fragments; ``reach`` then bounds the way between them, in box heights a second (plus one). ``zones`` are (zone of
    leaving, zone of entering, share of the link's passages), "" standing for no zone; pairs that are not named share
    what is left evenly, and without any nothing is known.
    """

    source: str
    target: str
    window: tuple[float, float]
    prior: float = 0.3
    travel: TravelTime | None = None
    measure: str = "leave"
    reach: float | None = None
    zones: tuple[tuple[str, str, float], ...] = ()

    @property
    def density(self) -> TravelTime:
        """The travel time that is known or, without one, what the window says."""
        return self.travel or from_window(self.window)


@dataclass(frozen=True)
class Network:
    """Cameras by name, and directed links."""

    cameras: dict[str, Camera]
    links: tuple[Link, ...] = field(default=())

    def index(self, camera: str) -> int:
        """The number of a camera, in the order of the links file."""
        return list(self.cameras).index(camera)

    def link(self, source: str, target: str) -> Link | None:
        """The link of one direction, or None."""
        return self._by_ends.get((source, target))

    @cached_property
    def _by_ends(self) -> dict[tuple[str, str], Link]:
        return {(x.source, x.target): x for x in reversed(self.links)}

    def without(self, source: str, target: str) -> Network:
        """The network with one directed link taken out."""
        return replace(self, links=tuple(x for x in self.links if (x.source, x.target) != (source, target)))

    def stretched(self, factor: float) -> Network:
        """The network that believes every way between two cameras takes ``factor`` times as long."""
        changed = [replace(x, travel=x.density.stretched(factor)) if x.source != x.target else x for x in self.links]
        return replace(self, links=tuple(changed))
