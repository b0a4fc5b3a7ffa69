"""What a perfect camera draws: the true boxes of every visit, from door to door, and places on the shared ground."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from examples.mtmc.network.network import Network
from examples.mtmc.recordings.tracklets import Track
from examples.mtmc.simulator import town
from examples.mtmc.simulator.walks import MOST_VISITS, Visit

# Where the foot point is as one comes through a door: least and most x, least and most y, in pixels of 1920 x 1080.
DOORSTEP = {
    "left": (20.0, 130.0, 560.0, 1000.0),
    "right": (1790.0, 1900.0, 560.0, 1000.0),
    "back": (800.0, 1120.0, 500.0, 560.0),
    "front": (700.0, 1220.0, 990.0, 1060.0),
}
MIDDLE = (700.0, 1220.0, 640.0, 880.0)
BESIDE = (35.0, 12.0)  # pixels (sd) between those who walk together, and BESIDE_METRES on the ground
BESIDE_METRES = 0.35
Path = NDArray[np.float64]


def perfect_tracks(
    rng: np.random.Generator, network: Network, visits: list[Visit], clock_error: dict[str, float], start: float
) -> list[Track]:
    """The true track of every visit, on the cameras' own (wrong) clocks; the recording starts at ``start``."""
    ground, corners = _Ground(rng, visits), _Corners(rng)
    return [_track(rng, network, visit, ground, corners, clock_error[visit.camera], start) for visit in visits]


def _track(
    rng: np.random.Generator,
    network: Network,
    visit: Visit,
    ground: _Ground,
    corners: _Corners,
    clock_error: float,
    start: float,
) -> Track:
    fps = network.cameras[visit.camera].fps
    first, last = (int((start + t + clock_error) * fps) + 1 for t in (visit.start, visit.end))
    frames = np.arange(first, last)
    frames = frames[frames >= 1]
    if len(frames) == 0:
        frames = np.array([1])
    true_time = frames / fps - clock_error - start
    world = None
    if visit.camera in town.GROUND:
        world = ground.places(visit, true_time)
        foot = seen_from(visit.camera, world)
    else:
        begin, middle, end = corners.of(visit)
        s = np.linspace(0, 1, len(frames))[:, None]
        foot = (1 - s) ** 2 * begin + 2 * s * (1 - s) * middle + s**2 * end + rng.normal(0, BESIDE)
    height = (120 + 200 * np.clip((foot[:, 1] - 500) / 500, 0, 1.2)) * rng.uniform(0.92, 1.08)
    sway = 12 * np.sin(np.arange(len(frames)) / 7 + rng.uniform(0, 6))
    boxes = np.stack([foot[:, 0] - 0.2 * height, foot[:, 1] - height + sway, 0.4 * height, height], 1)
    return Track(visit.camera, visit.identity, frames.astype(np.int64), boxes, world)


class _Corners:
    """Where a group comes into a picture, turns and leaves it: the same for all who walk together."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.known: dict[tuple[int, int], tuple[NDArray[np.float64], ...]] = {}

    def of(self, visit: Visit) -> tuple[NDArray[np.float64], ...]:
        """The door of coming, a point in the middle, and the door of going, each ``[2]`` in pixels."""
        key = visit.group, visit.step
        if key not in self.known:
            doors = town.DOORS[visit.camera]
            places = DOORSTEP[doors[visit.came]], MIDDLE, DOORSTEP[doors[visit.goes]]
            self.known[key] = tuple(_point(self.rng, place) for place in places)
        return self.known[key]


def _point(rng: np.random.Generator, within: tuple[float, float, float, float]) -> NDArray[np.float64]:
    return rng.uniform((within[0], within[2]), (within[1], within[3]))


class _Ground:
    """One path on the ground for each stay in the shared views, however many visits of the two cameras it makes."""

    def __init__(self, rng: np.random.Generator, visits: list[Visit]) -> None:
        self.of: dict[tuple[int, float], tuple[Path, Path]] = {}
        lateral: dict[tuple[int, int], Path] = {}  # across the passage, the same for all who walk together
        by_identity: dict[int, list[Visit]] = {}
        for visit in visits:
            if visit.camera in town.GROUND:
                by_identity.setdefault(visit.identity, []).append(visit)
        for own in by_identity.values():
            own.sort(key=lambda v: v.start)
            joined = [own[:1]]
            for visit in own[1:]:
                if visit.start < joined[-1][-1].end:
                    joined[-1].append(visit)
                else:
                    joined.append([visit])
            for stay in joined:
                key = stay[0].group, stay[0].step
                if key not in lateral:
                    lateral[key] = rng.uniform(0.4, town.BREADTH - 0.4, 3 * MOST_VISITS)
                path = self._path(stay, lateral[key], rng.normal(0, BESIDE_METRES, 2))
                for visit in stay:
                    self.of[visit.identity, visit.start] = path

    @staticmethod
    def _path(stay: list[Visit], lateral: Path, beside: Path) -> tuple[Path, Path]:
        """Knots ``[n]`` in time and ``[n, 2]`` on the ground; between the views both ends of the overlap are knots."""
        knots: list[tuple[float, float]] = []
        for n, visit in enumerate(stay):
            low, high = town.GROUND[visit.camera]
            outer, inner = (low, high) if visit.camera == "c7" else (high, low)  # the door; the end of the view beyond
            from_other = n > 0 or visit.came in town.GROUND
            to_other = n + 1 < len(stay) or visit.goes in town.GROUND
            knots.append((visit.start, inner if from_other else outer))
            if from_other == to_other:  # in and out on one side: as far as where the other camera does not look
                far = outer + 0.5 * (inner - outer) if not from_other else outer + 0.4 * (inner - outer)
                knots.append(((visit.start + visit.end) / 2, far))
            knots.append((visit.end, inner if to_other else outer))
        knots.sort()
        time, along = np.array(knots).T
        return time, np.stack([along, lateral[: len(time)]], 1) + beside

    def places(self, visit: Visit, time: NDArray[np.float64]) -> Path:
        """Metres on the ground ``[n, 2]`` at true times."""
        knots, place = self.of[visit.identity, visit.start]
        return np.stack([np.interp(time, knots, place[:, k]) for k in range(2)], 1)


def seen_from(camera: str, world: Path) -> Path:
    """Foot points in the picture of a camera of the shared ground; c8 looks from the other side than c7."""
    low, high = town.GROUND[camera]
    across = 70 + 1780 * (world[:, 0] - low) / (high - low)
    depth = 400 * world[:, 1] / town.BREADTH
    return np.stack([across, 570 + depth if camera == "c7" else 970 - depth], 1)
