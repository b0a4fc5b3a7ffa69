"""The camera network that the simulator walks through: a chain, a branch, an overlapping pair, a shop on the way.

c1 ── c2 ── c3 ── c4 ── c5        c7 and c8 overlap; between c2 and c6 lies a shop;
       ╲    │                     people come and go unwatched at c1, c4, c5 and c8
      shop─ c6 ── c7 ═ c8
"""

from __future__ import annotations

from dataclasses import dataclass

from examples.mtmc.network.network import Camera, Link, Network

FPS = 5.0


@dataclass(frozen=True)
class Way:
    """How people go one direction: a share of those who stay in the network, and their delays in seconds."""

    source: str
    target: str
    share: float
    median: float
    log_sd: float
    overlap: bool = False  # then ``median`` is the mean and ``log_sd`` the sd of a normal delay
    shop: float = 0.0  # the share of walkers who stay in the shop


# Delays differ by direction, as they do between real cameras (a slope, a gate, a stair).
WAYS = (
    Way("c1", "c2", 1.0, 18.0, 0.25),
    Way("c2", "c1", 0.35, 27.0, 0.30),
    Way("c2", "c3", 0.50, 25.0, 0.15),
    Way("c2", "c6", 0.15, 33.0, 0.45, shop=0.6),
    Way("c3", "c2", 0.35, 31.0, 0.18),
    Way("c3", "c4", 0.35, 12.0, 0.30),
    Way("c3", "c6", 0.30, 15.0, 0.25),
    Way("c4", "c3", 0.50, 20.0, 0.35),
    Way("c4", "c5", 0.50, 40.0, 0.30),
    Way("c5", "c4", 1.0, 33.0, 0.28),
    Way("c6", "c3", 0.40, 22.0, 0.30),
    Way("c6", "c7", 0.45, 28.0, 0.25),
    Way("c6", "c2", 0.15, 40.0, 0.40),
    Way("c7", "c6", 0.45, 20.0, 0.25),
    Way("c7", "c8", 0.55, -3.0, 1.2, overlap=True),
    Way("c8", "c7", 1.0, -2.0, 1.4, overlap=True),
)
ENTRANCES = {"c1": 0.30, "c4": 0.12, "c5": 0.28, "c8": 0.30}
LEAVES = {"c1": 0.70, "c2": 0.20, "c3": 0.20, "c4": 0.35, "c5": 0.70, "c6": 0.22, "c7": 0.22, "c8": 0.70}
LEAVES_AT_ONCE = 0.15  # who is seen by the camera of the entrance alone
TURNS_BACK = 0.08  # of the share that a way has otherwise
SHOP_MEDIAN, SHOP_LOG_SD = 700.0, 0.45
STOPS, STOP_SECONDS = 0.18, 30.0
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


def network(clock_error: dict[str, float] | None = None) -> Network:
    """The network as its owner would write it down: windows set by hand, clocks as far as they are known."""
    cameras = {name: Camera(name, FPS, position=place) for name, place in POSITIONS.items()}
    if clock_error:
        cameras = {name: Camera(name, FPS, clock_error[name], 1.0, c.position) for name, c in cameras.items()}
    links = [Link(name, name, FRAGMENT_WINDOW, reach=1.0) for name in cameras]
    for way in WAYS:
        if way.overlap:
            window = (-15.0, 6.0)
        elif way.shop:
            window = (10.0, 1200.0)
        else:
            window = (round(0.5 * way.median), round(1.8 * way.median + 25))
        links.append(Link(way.source, way.target, window))
    return Network(cameras, tuple(links))
