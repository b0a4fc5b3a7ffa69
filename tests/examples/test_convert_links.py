"""Camera layouts of regob/vehicle_mtmc as links files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from examples.mtmc.cli import app
from examples.mtmc.errors import InputError
from examples.mtmc.network.layout import read_layout
from examples.mtmc.network.links_file import load_network
from tests.examples.one_line import assert_one_line

LAYOUT = """# two cameras
### camera mapping
# cam 0: gate
# cam 1: yard
fps
10.0 25
scales
1.0 0.5
offset
-2.5 4
compatibility
0 1
1 1
dtmin
0 -7
2 0
dtmax
0 7
inf 0
"""


def test_a_layout_becomes_a_links_file(tmp_path: Path) -> None:
    (tmp_path / "layout.txt").write_text(LAYOUT)
    out = tmp_path / "links.yaml"
    run = CliRunner().invoke(
        app, ["convert-links", "--layout", str(tmp_path / "layout.txt"), "--out", str(out), "--json"]
    )
    assert run.exit_code == 0, run.output
    told = json.loads(run.stdout)
    network = load_network(out)
    assert list(network.cameras) == ["gate", "yard"] and told["links"] == len(network.links) == 2
    yard = network.cameras["yard"]
    assert (yard.fps, yard.clock_offset, yard.clock_rate) == (25, 4, 2)
    assert yard.seconds([50]).tolist() == [50 / 25 / 0.5 + 4]  # type: ignore[arg-type]
    forth, back = network.link("gate", "yard"), network.link("yard", "gate")
    assert forth is not None and back is not None and network.link("yard", "yard") is None
    assert forth.window == (-7, 7) and back.window == (2, 3600)
    assert len(told["notes"]) == 2 and "yard linked to itself (line 13)" in told["notes"][1]
    assert "infinite bound" in told["notes"][0]
    named, _ = read_layout(tmp_path / "layout.txt", ["a", "b"])
    assert list(named.cameras) == ["a", "b"]


@pytest.mark.parametrize(
    ("old", "new", "line", "expected"),
    [
        ("fps\n10.0 25\n", "", None, "the blocks fps"),
        ("10.0 25", "10.0 0", 6, "numbers above 0"),
        ("10.0 25", "10.0 nan", 6, "numbers"),
        ("1.0 0.5", "1.0", 8, "2, one a camera"),
        ("-2.5 4", "-2.5 four", 10, "numbers, or one of fps"),
        ("0 1\n1 1\n", "0 1\n", 12, "2"),
        ("0 1\n1 1\n", "0 1\n1 2\n", 13, "0 or 1"),
        ("0 7\n", "0 -7\n", 15, "dtmin below dtmax"),
        ("scales", "fps", 7, "every block once"),
        ("# two cameras", "1 2", 1, "a keyword first"),
        ("# cam 1: yard", "# cam 1: gate", None, "a name for each"),
        ("# cam 1: yard", "# cam 1: ../yard", None, "can be a file name"),
    ],
)
def test_a_wrong_layout_is_named_in_one_line(
    tmp_path: Path, old: str, new: str, line: int | None, expected: str
) -> None:
    path = tmp_path / "layout.txt"
    assert old in LAYOUT
    path.write_text(LAYOUT.replace(old, new, 1))
    with pytest.raises(InputError) as error:
        read_layout(path)
    assert_one_line(str(error.value), path, line, expected)


REAL = {  # cameras, links, half width of the windows in seconds, the first names, notes
    "cityflow_s01": (5, 20, 7, ["c001", "c002"], ["c005 linked to itself"]),
    "cityflow_s02": (4, 12, 6, ["c006", "c007"], []),
    "zala_mtmc": (4, 12, 5, ["balaton", "gasparich"], []),
    "examples_mtmc": (4, 12, 5, ["cam0", "cam1"], ["no block scales"]),
}


@pytest.mark.parametrize("name", REAL)
def test_published_layouts(data_dir: Path, tmp_path: Path, name: str) -> None:
    cameras, links, seconds, first, expected = REAL[name]
    network, notes = read_layout(data_dir / "mtmc" / "camera_links" / f"{name}_camera_layout.txt")
    assert (len(network.cameras), len(network.links)) == (cameras, links)
    assert {link.window for link in network.links} == {(-seconds, seconds)}
    assert list(network.cameras)[:2] == first
    assert len(notes) == len(expected) and all(note.startswith(e) for note, e in zip(notes, expected, strict=True))
    if name == "cityflow_s01":  # frame f of c002: f / fps / scale + offset
        assert network.cameras["c002"].seconds([1093])[0] == pytest.approx(100 - 6.3)  # type: ignore[arg-type]
