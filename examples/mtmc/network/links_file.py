"""The links file: YAML (or JSON) that says which cameras there are and who can be reached from whom.

    cameras:
      hall:                        # a name: the file name, or the camera column, of the data
        fps: 25                    # frames a second (required)
        clock_offset: 1.5          # seconds to add to its clock to get the common one (default 0)
        clock_rate: 1.0002         # common seconds per second of its clock (default 1)
        position: [12.0, 3.5]      # on a map, any unit (optional)
        starts: 0.4                # share of its tracklets that come from no other camera (default 0.3)
        ends: 0.25                 # share of its tracklets that go to no other camera (default 0.3)
        zones:                     # where people enter and leave: polygons in pixels (optional)
          door: [[0, 200], [300, 200], [300, 1080], [0, 1080]]
          stairs: [[1500, 0], [1920, 0], [1920, 500]]
      yard: {fps: 12.5, position: [40.0, 3.5], zones: {gate: [[0, 0], [640, 0], [640, 720], [0, 720]]}}
      lobby: {fps: 25, position: [12.0, 8.0]}
    links:                         # one entry per DIRECTION: hall to yard says nothing of yard to hall
      - from: hall
        to: yard
        window: [4, 60]            # the delay in seconds, least and most (required, unless travel is given)
        prior: 0.5                 # share of the tracklets of "from" that go on to "to" (default 0.3)
        travel:                    # the delay within the window (optional: spread over the window)
          kind: lognormal          # components of weight, median seconds, sd of the log; delays are positive; or
          components: [[0.9, 14.0, 0.3], [0.1, 40.0, 0.5]]  # kind: normal, with weight, mean seconds, sd in seconds
        measure: leave             # delays count from leaving "from" (default), or from entering it ("enter")
        zones:                     # shares of the passages by zone of leaving and of entering; "" is no zone (optional;
          - [door, gate, 0.8]      # pairs that are not named share the rest evenly)
          - [stairs, gate, 0.05]
      - from: yard                 # travel without a window: the window holds all but a thousandth at either end
        to: hall
        travel: {kind: lognormal, components: [[1.0, 20.0, 0.4]]}
      - {from: hall, to: lobby, window: [-15, 6]}    # their views overlap: one enters before leaving, a negative delay
      - {from: lobby, to: hall, window: [0, 20], measure: enter}     # or counted from entering, where much is shared
      - {from: hall, to: hall, window: [0, 4], reach: 1.0}   # joins fragments: same camera, at most this far
                                                             # (box heights a second, plus one) from where it ended

Every error names the file, the line and what was expected.
"""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml

from examples.mtmc.atomic import replaced
from examples.mtmc.errors import InputError
from examples.mtmc.network.network import Camera, Link, Network, Zone
from examples.mtmc.network.place import Check, Place
from examples.mtmc.network.travel import TravelTime, window_of
from examples.mtmc.network.zones import zone_names

LONGEST = 1e10  # seconds of any time: centuries, and the clocks of computers (since 1970)
WIDEST = 10.0  # sd of the log of a delay: a factor of twenty thousand


def load_network(path: Path) -> Network:
    """Read and validate a links file."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            path, None, f"no readable file ({type(error).__name__})", "a links file, YAML or JSON"
        ) from None
    try:
        if path.suffix == ".json":
            json.loads(text)
            text = text.replace("\t", " ")  # YAML reads JSON but for tabs
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except RecursionError:
        raise InputError(path, None, "lists in lists without end", "the keys cameras and links") from None
    except json.JSONDecodeError as error:
        raise InputError(path, error.lineno, error.msg, "valid JSON") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or "unreadable text"
        problem = problem.removeprefix("found ").removeprefix("but found ")
        raise InputError(path, mark.line + 1 if mark else None, problem, "valid YAML") from None
    if root is None:
        raise InputError(path, 1, "an empty file", "the keys cameras and links")
    top = Place(path, root, "")
    found = top.table({"cameras": _cameras, "links": lambda place: place.items()}, ("cameras",))
    cameras: dict[str, Camera] = found["cameras"]
    links: list[Link] = []
    for place in found.get("links", []):
        link = _link(place, cameras)
        if any((x.source, x.target) == (link.source, link.target) for x in links):
            raise place.wrong(f"one link from {link.source} to {link.target}, not two")
        links.append(link)
    return Network(cameras, tuple(links))


def fit_for_a_file(name: str) -> bool:
    """Whether a camera may be called so: results of it are a file of its name."""
    plain = bool(name.strip()) and name.isprintable() and not name.startswith(".")
    return plain and not {"/", "\\"} & set(name) and len(name.encode()) <= 200


def _cameras(place: Place) -> dict[str, Camera]:
    checks: dict[str, Check] = {
        "fps": lambda p: p.number(1e-6, 1e6),
        "clock_offset": lambda p: p.number(-LONGEST, LONGEST),
        "clock_rate": lambda p: p.number(1e-3, 1e3),
        "position": lambda p: tuple(x.number(-1e9, 1e9) for x in p.items(2)),
        "starts": lambda p: p.number(0, 1, above=True),
        "ends": lambda p: p.number(0, 1, above=True),
        "zones": _zones,
    }
    cameras = {}
    for name, entry in place.entries().items():
        if not fit_for_a_file(name):
            expected = "a camera name that can be a file name, of at most 200 bytes"
            raise InputError(place.path, entry.line, f"cameras: {name!r:.80}", expected)
        cameras[name] = Camera(name, **entry.table(checks, ("fps",)))
    if not cameras:
        raise place.wrong("at least one camera")
    return cameras


def _zones(place: Place) -> tuple[Zone, ...]:
    zones = []
    for name, corners in place.entries().items():
        if not name.strip():
            raise corners.wrong("a zone with a name")
        points = [tuple(x.number(-1e9, 1e9) for x in corner.items(2)) for corner in corners.items()]
        if len(set(points)) < 3:
            raise corners.wrong("three corners [x, y] or more, in pixels")
        zones.append(Zone(name, tuple((x, y) for x, y in points)))
    return tuple(zones)


def _window(place: Place) -> tuple[float, float]:
    low, high = (item.number(-LONGEST, LONGEST) for item in place.items(2))
    if low >= high:
        raise place.wrong("[least, most] with least < most, in seconds")
    return low, high


def _window_of(travel: tuple[str, tuple[tuple[float, float, float], ...]], own: bool) -> tuple[float, float]:
    kind, components = travel
    return window_of(kind, components, positive=own)


def _travel(place: Place) -> tuple[str, tuple[tuple[float, float, float], ...]]:
    checks: dict[str, Check] = {"kind": lambda p: p.text("lognormal", "normal"), "components": lambda p: p.items()}
    found = place.table(checks, ("kind", "components"))
    positive = found["kind"] == "lognormal"
    components = []
    for item in found["components"]:
        weight, centre, spread = item.items(3)
        middle = centre.number(0, LONGEST, above=True) if positive else centre.number(-LONGEST, LONGEST)
        widest = WIDEST if positive else LONGEST
        components.append((weight.number(0, 1, above=True), middle, spread.number(0, widest, above=True)))
    if not components or abs(sum(c[0] for c in components) - 1) > 1e-3:
        raise place.wrong("components whose weights sum to 1")
    return found["kind"], tuple(components)


def _link(place: Place, cameras: dict[str, Camera]) -> Link:
    def camera(p: Place) -> str:
        if p.text() not in cameras:
            raise p.wrong(f"a camera of this file ({', '.join(cameras)})")
        return p.text()

    checks: dict[str, Check] = {
        "from": camera,
        "to": camera,
        "window": _window,
        "prior": lambda p: p.number(0, 1, above=True),
        "travel": _travel,
        "measure": lambda p: p.text("leave", "enter"),
        "reach": lambda p: p.number(0),
        "zones": lambda p: [tuple(item.items(3)) for item in p.items()],
    }
    found = place.table(checks, ("from", "to"))
    if "window" not in found and "travel" not in found:
        raise place.wrong("the key 'window', or 'travel'")
    source, target = found.pop("from"), found.pop("to")
    window = found.pop("window", None) or _window_of(found["travel"], source == target)
    if source == target and window[0] < 0:
        raise place.wrong("a window from 0 on: tracklets of one camera that are joined cannot overlap")
    if "travel" in found:
        kind, components = found["travel"]
        if kind == "lognormal" and window[1] <= 0:
            raise place.wrong("kind: normal, since the window holds negative delays alone")
        found["travel"] = TravelTime(kind, components, window)
    if "zones" in found:
        found["zones"] = _zone_shares(place, found["zones"], cameras[source], cameras[target])
    return Link(source, target, window, **found)


def _zone_shares(
    link: Place, rows: list[tuple[Place, Place, Place]], source: Camera, target: Camera
) -> tuple[tuple[str, str, float], ...]:
    shares: dict[tuple[str, str], float] = {}
    for leave, enter, share in rows:
        for place, camera in ((leave, source), (enter, target)):
            if place.text() not in zone_names(camera):
                known = ", ".join(zone.name for zone in camera.zones) or "it has none"
                raise place.wrong(f'a zone of camera {camera.name} ({known}) or "" for none')
        if (leave.text(), enter.text()) in shares:
            raise leave.wrong("every pair of zones once")
        shares[leave.text(), enter.text()] = share.number(0, 1)
    total = sum(shares.values())
    everything = len(shares) == len(zone_names(source)) * len(zone_names(target))
    if total > 1 + 1e-6 or (everything and total < 1 - 1e-6):
        raise link.wrong(f"shares of zones that sum to 1{'' if everything else ' at most'}, not {total:g}")
    return tuple((leave, enter, share) for (leave, enter), share in shares.items())


def dump_network(network: Network, json: bool = False) -> str:
    """The network as the text of a links file, YAML or JSON; ``load_network`` reads the same network again."""
    cameras = {name: _camera_entry(camera) for name, camera in network.cameras.items()}
    whole = {"cameras": cameras, "links": [_link_entry(link) for link in network.links]}
    if json:
        return json_text(whole)
    text: str = yaml.safe_dump(whole, sort_keys=False, allow_unicode=True, width=120, default_flow_style=None)
    return text


def json_text(whole: dict[str, Any]) -> str:
    """Indented JSON that ends with a new line."""
    return json.dumps(whole, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _camera_entry(camera: Camera) -> dict[str, Any]:
    entry = {f.name: getattr(camera, f.name) for f in fields(camera) if f.name != "name"}
    entry["position"] = list(camera.position) if camera.position else None
    entry["zones"] = {zone.name: [list(corner) for corner in zone.corners] for zone in camera.zones} or None
    return {key: value for key, value in entry.items() if value is not None}


def _link_entry(link: Link) -> dict[str, Any]:
    entry: dict[str, Any] = {"from": link.source, "to": link.target, "window": list(link.window), "prior": link.prior}
    if link.travel:
        entry["travel"] = {"kind": link.travel.kind, "components": [list(c) for c in link.travel.components]}
    entry["measure"] = link.measure
    if link.reach is not None:
        entry["reach"] = link.reach
    if link.zones:
        entry["zones"] = [list(row) for row in link.zones]
    return entry


def write_network(path: Path, network: Network) -> None:
    """Write a links file (JSON where its name ends so): whole, or not at all."""
    with replaced(path) as draft:
        draft.write_text(dump_network(network, json=path.suffix == ".json"), encoding="utf-8")
