"""The links file: every field in an example, and one line for whatever is wrong."""

from __future__ import annotations

import math
import tempfile
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.mtmc import atomic
from examples.mtmc.errors import InputError
from examples.mtmc.network import links_file
from examples.mtmc.network.links_file import dump_network, load_network, write_network
from examples.mtmc.network.network import Camera, Link, Network, Zone
from examples.mtmc.network.travel import TravelTime
from examples.mtmc.network.zones import zone_of, zone_shares, zones_of
from tests.examples.one_line import assert_one_line


def example() -> Network:
    assert links_file.__doc__ is not None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "links.yaml"
        path.write_text(links_file.__doc__.split("\n\n")[1])
        return load_network(path)


def test_the_example_in_the_docs_shows_every_field() -> None:
    network = example()
    plain_camera, plain_link = Camera("", 0.0), Link("", "", (0.0, 0.0))
    for field in fields(Camera):
        values = [getattr(camera, field.name) for camera in network.cameras.values()]
        assert any(value != getattr(plain_camera, field.name) for value in values), field.name
    for field in fields(Link):
        values = [getattr(link, field.name) for link in network.links]
        assert any(value != getattr(plain_link, field.name) for value in values), field.name


def test_a_distribution_gives_the_window() -> None:
    link = example().link("yard", "hall")
    assert link is not None and link.travel is not None
    low, high = link.window
    assert low == pytest.approx(20 * math.exp(-0.4 * 3.0902)) and high == pytest.approx(20 * math.exp(0.4 * 3.0902))
    seconds = np.linspace(low, high, 20001)
    inside = np.exp(link.travel.log_density(seconds)).sum() * (seconds[1] - seconds[0])
    assert inside == pytest.approx(1.0, abs=0.005)  # what a density must hold


def test_shares_of_zones_sum_to_one() -> None:
    network = example()
    link = network.link("hall", "yard")
    assert link is not None
    shares = zone_shares(link, network)
    assert shares is not None and shares.shape == (3, 2)
    assert shares.sum() == pytest.approx(1) and shares[0, 0] == 0.8 and shares[1, 0] == 0.05
    assert shares[0, 1] == shares[2, 1] == pytest.approx(0.15 / 4)
    assert zone_shares(network.links[1], network) is None  # nothing said, nothing known


@given(
    x=st.floats(0, 10),
    split=st.tuples(st.tuples(st.floats(0, 10), st.floats(0, 10)), st.tuples(st.floats(0, 10), st.floats(0, 10))),
    y=st.floats(0, 10, exclude_max=True),
)
def test_neighbouring_zones_part_the_picture(
    x: float, y: float, split: tuple[tuple[float, float], tuple[float, float]]
) -> None:
    """Two zones with a common edge: every point is in exactly one, the edge's own points too."""
    (top, _), (bottom, _) = split
    left = Zone("left", ((-1.0, 0.0), (top, 0.0), (bottom, 10.0), (-1.0, 10.0)))
    right = Zone("right", ((bottom, 10.0), (top, 0.0), (11.0, 0.0), (11.0, 10.0)))
    on_the_edge = top + y / 10 * (bottom - top)
    for point in ((x, y), (on_the_edge, y)):
        one, other = Camera("a", 1.0, zones=(left,)), Camera("a", 1.0, zones=(right,))
        assert sorted([zones_of(one, [point])[0], zones_of(other, [point])[0]])[0] == ""
        assert zones_of(Camera("a", 1.0, zones=(left, right)), [point])[0] != ""


def test_a_box_stands_where_its_foot_is() -> None:
    door = Camera("a", 1.0, zones=(Zone("door", ((0, 90), (20, 90), (20, 110), (0, 110))),))
    assert zone_of(door, [0, 0, 20, 100]) == "door" and zone_of(door, [0, 0, 20, 80]) == ""


def test_a_links_file_is_written_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network, path = example(), tmp_path / "deep" / "links.json"
    write_network(path, network)
    assert load_network(path) == network and [p.name for p in path.parent.iterdir()] == ["links.json"]
    before = path.read_bytes()
    monkeypatch.setattr(atomic.os, "replace", _fail)
    with pytest.raises(OSError, match="disk"):
        write_network(path, Network({"a": Camera("a", 1.0)}))
    assert path.read_bytes() == before and [p.name for p in path.parent.iterdir()] == ["links.json"]


def _fail(*_: object) -> None:
    raise OSError("disk full")


def test_a_travel_time_is_kept_to_the_last_bit(tmp_path: Path) -> None:
    travel = TravelTime("lognormal", ((1 / 3, 2 / 3, 1e-7), (2 / 3, 1e5, 1 / 7)), (0.1, 1e6))
    cameras = {name: Camera(name, 30.0) for name in "ab"}
    network = Network(cameras, (Link("a", "b", (0.1, 1e6), 0.1 + 0.2, travel),))
    (tmp_path / "links.yaml").write_text(dump_network(network))
    assert load_network(tmp_path / "links.yaml") == network


CAMERA = "cameras:\n  a: {fps: 10}\n  b: {fps: 10}\n"


@pytest.mark.parametrize(
    ("text", "line", "expected"),
    [
        ("", 1, "cameras and links"),
        ("cameras: [1, 2]\n", 1, "a mapping"),
        ("cameras:\n  a: {fps: 0}\n", 2, "a finite number from 1e-06"),
        ("cameras:\n  a: {fps: .nan}\n", 2, "a finite number"),
        ("cameras:\n  a: {}\n", 2, "'fps'"),
        ("cameras:\n  a: {fps: 10, colour: red}\n", 2, "one of fps"),
        ("cameras:\n  ../a: {fps: 10}\n", 2, "can be a file name"),
        ("cameras:\n  a: {fps: 10}\n  a: {fps: 20}\n", 3, "every key once"),
        (CAMERA + "links:\n- {from: a, to: c, window: [1, 2]}\n", 5, "a camera of this file (a, b)"),
        (CAMERA + "links:\n- {from: a, to: b, window: [2, 1]}\n", 5, "least < most"),
        (CAMERA + "links:\n- {from: a, to: b}\n", 5, "'window'"),
        (CAMERA + "links:\n- {from: a, to: b, window: [1, 2], prior: 1.5}\n", 5, "to 1"),
        (CAMERA + "links:\n- {from: a, to: a, window: [-1, 2]}\n", 5, "cannot overlap"),
        (CAMERA + "links:\n- {from: a, to: b, window: [1, 2]}\n- {from: a, to: b, window: [1, 3]}\n", 6, "not two"),
        (CAMERA + "links:\n- {from: a\n", None, "valid YAML"),
        ("cameras:\n  a: {fps: 10, zones: {door: [[0, 0], [1, 1]]}}\n", 2, "three corners"),
        ("cameras:\n  a: {fps: 10, zones: {' ': [[0, 0], [1, 1], [2, 0]]}}\n", 2, "a zone with a name"),
        (CAMERA + "links:\n- {from: a, to: b, window: [1, 2], zones: [[door, '', 1]]}\n", 5, "a zone of camera a"),
        (CAMERA + "links:\n- {from: a, to: b, window: [1, 2], zones: [['', '', 0.5]]}\n", 5, "sum to 1"),
        (CAMERA + "links:\n- {from: a, to: b, window: [1, 2], zones: [['', '', 1], ['', '', 0]]}\n", 5, "once"),
        ("cameras:\n  a: {fps: 1e-308}\n", 2, "from 1e-06 to 1e+06"),
        ("cameras:\n  a: {fps: 10, clock_offset: 1e300}\n", 2, "to 1e+10"),
        ("cameras:\n  a: {fps: 10, clock_rate: 1e300}\n", 2, "to 1000"),
        ("cameras:\n  a: {fps: 10, position: [1e308, 0]}\n", 2, "to 1e+09"),
        (CAMERA + "links:\n- {from: a, to: b, window: [-1e300, 1e300]}\n", 5, "to 1e+10"),
        (CAMERA + "links:\n- {from: a, to: b, travel: {kind: lognormal, components: [[1, 2, 1e6]]}}\n", 5, "to 10"),
        ("cameras: " + "[" * 3000 + "]" * 3000, None, "cameras and links"),
        ("cameras:\n\ta: 1\n", 2, "valid YAML"),
        ("- a\n", 1, "a mapping"),
        ("cameras:\n  " + "é" * 101 + ": {fps: 10}\n", 2, "200 bytes"),
    ],
)
def test_a_wrong_links_file_is_named_in_one_line(tmp_path: Path, text: str, line: int | None, expected: str) -> None:
    path = tmp_path / "links.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        load_network(path)
    assert_one_line(str(error.value), path, line, expected)
    assert "found found" not in str(error.value) and "found :" not in str(error.value)
