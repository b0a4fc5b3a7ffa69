"""The camera network that the simulator walks through: a chain, a branch, an overlapping pair, a shop on the way.

c1 ── c2 ── c3 ── c4 ── c5        c7 and c8 overlap; between c2 and c6 lies a shop;
       ╲    │                     people come and go unwatched in every picture but c7's,
      shop─ c6 ── c7 ═ c8         and by side doors on every way
"""

from __future__ import annotations

from dataclasses import dataclass

from examples.mtmc.network.network import Camera, Link, Network, Zone

FPS = 4.0


@dataclass(frozen=True)
class Way:
    """How people go one direction: a share of those who stay in the network, and their delays in seconds.

    ``lost`` is the share of those who set out and never arrive; ``stops`` the share who stop on the way; ``window``
    what the owner of the cameras wrote down, in seconds.
    """

    source: str
    target: str
    share: float
    median: float
    log_sd: float
    lost: float
    window: tuple[float, float]
    stops: float = 0.18
    shop: float = 0.0  # the share of walkers who stay in the shop
    overlap: bool = False  # then ``median`` is the mean and ``log_sd`` the sd of a normal delay


# Delays differ by direction, as they do between real cameras (a slope, a gate, a stair): up to 3.6 times.
WAYS = (
    Way("c1", "c2", 1.0, 16.0, 0.25, 0.13, (6, 38)),
    Way("c2", "c1", 0.30, 32.0, 0.30, 0.20, (12, 60)),
    Way("c2", "c3", 0.48, 25.0, 0.15, 0.20, (14, 45), stops=0.0),  # a long corridor: nowhere to stop
    Way("c2", "c6", 0.22, 27.0, 0.30, 0.20, (10, 2400), stops=0.0, shop=0.64),
    Way("c3", "c2", 0.35, 42.0, 0.18, 0.20, (22, 60), stops=0.0),
    Way("c3", "c4", 0.35, 10.0, 0.30, 0.22, (3, 30), stops=0.10),
    Way("c3", "c6", 0.30, 15.0, 0.25, 0.18, (5, 33)),
    Way("c4", "c3", 0.50, 36.0, 0.35, 0.20, (7, 140)),
    Way("c4", "c5", 0.50, 24.0, 0.30, 0.22, (11, 45), stops=0.15),
    Way("c5", "c4", 1.0, 44.0, 0.28, 0.12, (20, 80)),
    Way("c6", "c3", 0.40, 30.0, 0.30, 0.22, (14, 58), stops=0.15),
    Way("c6", "c7", 0.45, 8.0, 0.08, 0.10, (4, 26), stops=0.0),  # an escalator
    Way("c6", "c2", 0.15, 40.0, 0.40, 0.22, (14, 104)),
    Way("c7", "c6", 0.45, 16.0, 0.25, 0.20, (5, 30), stops=0.12),
    Way("c7", "c8", 0.55, -2.6, 0.8, 0.0, (-15, 12), overlap=True),
    Way("c8", "c7", 1.0, -2.2, 0.8, 0.0, (-16, 14), overlap=True),
)
ENTRANCES = {"c1": 0.28, "c2": 0.05, "c3": 0.07, "c4": 0.10, "c5": 0.22, "c6": 0.08, "c8": 0.20}
LEAVES_AT_ONCE = 0.0  # the share of those who are seen by the camera of the entrance alone and leave by it
LEAVES = {"c1": 0.72, "c2": 0.40, "c3": 0.33, "c4": 0.40, "c5": 0.72, "c6": 0.33, "c7": 0.20, "c8": 0.72}
TURNS_BACK = 0.08  # of the share that a way has otherwise
SHOP_MEDIAN, SHOP_LOG_SD = 761.0, 0.654
STOP_SECONDS = 14.0
POSITIONS = {
    "c1": (0.0, 0.0),
    "c2": (30.0, 0.0),
    "c3": (65.0, 0.0),
    "c4": (85.0, 0.0),
    "c5": (135.0, 0.0),
    "c6": (65.0, -25.0),
    "c7": (65.0, -60.0),
    "c8": (80.0, -65.0),
}
FRAGMENT_WINDOW = (0.0, 4.0)

# Where in its picture one goes from a camera to another, or out unwatched.
OUT = "out"
DOORS = {
    "c1": {OUT: "left", "c2": "right"},
    "c2": {"c1": "left", "c3": "right", "c6": "back", OUT: "front"},
    "c3": {"c2": "left", "c4": "right", "c6": "front", OUT: "back"},
    "c4": {"c3": "left", "c5": "right", OUT: "front"},
    "c5": {"c4": "left", OUT: "right"},
    "c6": {"c2": "left", "c3": "back", "c7": "front", OUT: "right"},
    "c7": {"c6": "left", "c8": "right", OUT: "left"},  # one door for two
    "c8": {"c7": "left", OUT: "right"},
}
ZONES = (
    Zone("left", ((0.0, 480.0), (300.0, 480.0), (300.0, 1080.0), (0.0, 1080.0))),
    Zone("right", ((1620.0, 480.0), (1920.0, 480.0), (1920.0, 1080.0), (1620.0, 1080.0))),
    Zone("back", ((640.0, 440.0), (1280.0, 440.0), (1280.0, 610.0), (640.0, 610.0))),
    Zone("front", ((600.0, 920.0), (1320.0, 920.0), (1320.0, 1080.0), (600.0, 1080.0))),
)

# The ground that c7 and c8 share, in metres: each sees 12 m of a passage that is 4 m wide, the middle 3 m both.
GROUND = {"c7": (0.0, 12.0), "c8": (9.0, 21.0)}
BREADTH = 4.0


@dataclass(frozen=True)
class Preset:
    """How hard the recording is; ``real`` is fitted to the figures of real networks (``realism.py``)."""

    says: str
    per_minute: float = 9.0  # people who enter the town
    groups: float = 0.35  # the share of people who walk in groups of two to four
    bursts: float = 0.80  # how uneven arrivals are: sd of their rate over its mean, by the minute
    view_noise: float = 0.90  # of a look, beside 1 for what is the person's own
    camera_shift: float = 0.5
    breaks: float = 0.75  # fragments: breaks in a visit (Poisson)
    switches: float = 0.10  # identity switches: of the pairs whose boxes overlap
    missed_visits: float = 0.03
    missed_frames: float = 0.08
    clutter: float = 0.02  # tracklets of nobody for each true visit
    clock_sd: float = 0.3  # seconds that a camera's clock is off
    ground_sd: float = 0.3  # metres that a place on the ground is off


PRESETS = {
    "easy": Preset(
        "fewer people, nearly all alone and evenly spread; clear pictures; a tracker that seldom errs; good clocks",
        per_minute=7.5,
        groups=0.10,
        bursts=0.3,
        view_noise=0.70,
        camera_shift=0.3,
        breaks=0.25,
        switches=0.05,
        missed_visits=0.01,
        missed_frames=0.04,
        clutter=0.01,
        clock_sd=0.1,
        ground_sd=0.15,
    ),
    "real": Preset("as the figures of real networks have it"),
    "hard": Preset(
        "more people, half of them in groups, in waves; poor pictures; a tracker that often errs; bad clocks",
        per_minute=12.0,
        groups=0.55,
        bursts=1.2,
        view_noise=1.25,
        camera_shift=0.8,
        breaks=0.9,
        switches=0.20,
        missed_visits=0.06,
        missed_frames=0.15,
        clutter=0.05,
        clock_sd=0.8,
        ground_sd=0.6,
    ),
}


def network() -> Network:
    """The network as its owner would write it down: windows and zones drawn by hand, clocks believed to be right."""
    cameras = {}
    for name, place in POSITIONS.items():
        zones = tuple(zone for zone in ZONES if zone.name in DOORS[name].values())
        cameras[name] = Camera(name, FPS, position=place, zones=zones)
    links = [Link(name, name, FRAGMENT_WINDOW, reach=1.0) for name in cameras]
    links += [Link(way.source, way.target, (float(way.window[0]), float(way.window[1]))) for way in WAYS]
    return Network(cameras, tuple(links))
