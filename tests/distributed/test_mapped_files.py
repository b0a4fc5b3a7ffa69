"""Files of rows and edges that are short, missing, damaged, half written or without room: an error, and no number."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from attnops import Coords, Edges
from attnops.distributed import out_of_core
from attnops.distributed.out_of_core import MappedEdges, MappedRows, map_rows, rows_within, sum_rows


def rows(folder: Path, *width: int) -> MappedRows:
    return MappedRows.from_tensor(folder, torch.ones(6, *(width or (2, 4))), 3)


def edges(folder: Path) -> MappedEdges:
    ends = torch.tensor([[0, 1, 5], [5, 2, 0]], dtype=torch.int32)
    return MappedEdges.write(folder, [Edges(ends, 6, 6, w=torch.ones(3))], query_block=3, key_block=3)


def read_rows(folder: Path) -> object:
    return MappedRows.open(folder).tensor()


def read_edges(folder: Path) -> object:
    found = MappedEdges.open(folder)
    return [found.tile(block, keys) for block in range(2) for keys in found.keys_of(block)]


def shorten(path: Path) -> None:
    os.truncate(path, 1)


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() * 2)


def garble(path: Path) -> None:
    path.write_bytes(b"\xff" * path.stat().st_size)


@pytest.mark.parametrize(
    ("file", "change", "words"),
    [
        ("000001.rows", shorten, "000001.rows holds 1 bytes; it must hold 96"),
        ("000001.rows", lengthen, "000001.rows holds 192 bytes"),
        ("000001.rows", os.remove, "000001.rows is missing"),
        ("0-1.source", shorten, "0-1.source holds 1 bytes; it must hold 4"),
        ("0-1.target", lengthen, "0-1.target holds 8 bytes"),
        ("0-1.data-w", os.remove, "0-1.data-w is missing"),
        ("0-1.source", garble, "tile 0-1 is damaged: .*holds the source .key. -1; it must be from 0 to 2"),
    ],
)
def test_files_that_are_not_what_the_header_says(
    tmp_path: Path, file: str, change: Callable[[Path], None], words: str
) -> None:
    make, read = (rows, read_rows) if file.endswith(".rows") else (edges, read_edges)
    make(tmp_path)
    read(tmp_path)
    change(tmp_path / file)
    with pytest.raises((ValueError, FileNotFoundError), match=words):
        read(tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"block": 0}, "block is 0; it must be an integer of 1 or more"),
        ({"num_rows": -4}, "num_rows is -4"),
        ({"num_rows": "a"}, "num_rows is 'a'"),
        ({"width": 3}, "width is 3; it must be a list"),
        ({"width": [-2]}, r"width is \[-2\]"),
        ({"dtype": "load"}, "dtype is 'load'; it must be a real dtype"),
        ({"query_block": 0}, "query_block is 0"),
        ({"num_keys": 2}, "counts names the tile '0-1'"),
        ({"counts": {"../../x": 1}}, "counts names the tile '../../x'"),
        ({"counts": {"0-0": -1}}, "counts of 0-0 is -1"),
        ({"data": {"../x": ["int8", []]}}, "'../x' cannot name a file"),
        ({"data": {"w": "a"}}, "data w is 'a'"),
        ({"data": {"w": ["load", []]}}, "dtype is 'load'"),
        ("{", "is not JSON"),
        ("[]", "holds a list"),
        ("{}", "is None; it must be"),
    ],
)
def test_headers_that_are_none(tmp_path: Path, change: Any, words: str) -> None:
    rows(tmp_path / "rows")
    edges(tmp_path / "edges")
    said = []
    for path, read in ((tmp_path / "rows" / "rows.json", read_rows), (tmp_path / "edges" / "edges.json", read_edges)):
        held = json.loads(path.read_text())
        if isinstance(change, dict) and not change.keys() <= held.keys():
            continue
        path.write_text(change if isinstance(change, str) else json.dumps(held | change))
        with pytest.raises(ValueError, match=words) as caught:
            read(path.parent)
        said.append(str(caught.value))
        assert str(path) in said[-1]
    assert said


def test_what_is_half_written_is_no_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(self: MappedRows, index: int, rows: torch.Tensor) -> None:
        if index == 1:
            raise KeyboardInterrupt
        self.read(index).copy_(rows)

    with monkeypatch.context() as patch:
        patch.setattr(MappedRows, "write", write)
        with pytest.raises(KeyboardInterrupt):
            rows(tmp_path / "x")
    with pytest.raises(FileNotFoundError, match="its writing did not end"):
        MappedRows.open(tmp_path / "x")
    assert torch.equal(rows(tmp_path / "x").tensor(), torch.ones(6, 2, 4))  # begun again


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="this system cannot take room beforehand")
def test_a_full_disk_is_an_error_before_a_number_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writing to a mapping on a full disk would end the interpreter."""
    x = rows(tmp_path / "x")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match=r"No space left on device, for 96 bytes: .*000000\.rows"):
        rows(tmp_path / "y")
    with pytest.raises(OSError, match="No space left on device"):
        map_rows(torch.nn.Linear(4, 4), x)
    assert not list(tmp_path.glob("rows-*"))


def test_bad_arguments(tmp_path: Path) -> None:
    x, tiles = rows(tmp_path / "x"), edges(tmp_path / "edges")
    wide, heads = rows(tmp_path / "wide", 2, 5), rows(tmp_path / "heads", 3, 4)
    whole = MappedRows.from_tensor(tmp_path / "whole", torch.ones(6, 2, 4).int(), 3)
    times = [Coords(time=torch.ones(count)) for count in (6, 4, 40)]
    graph, new = Edges(torch.tensor([[0], [5]]), 6, 6), tmp_path / "new"
    named = Edges(graph.edge_index, 6, 6, **{"../x": torch.ones(1)})
    for make, words in (
        (lambda: x.write(0, torch.zeros(1)), r"rows is \[1\] in torch.float32; block 0 is \[3, 2, 4\]"),
        (lambda: x.write(0, torch.zeros(3, 2, 4, dtype=torch.complex64)), "complex64; block 0 is"),
        (lambda: whole.write(0, torch.zeros(3, 2, 4)), "float32; block 0 is .* torch.int32"),
        (lambda: x.read("a"), "index is 'a'"),  # type: ignore[arg-type]
        (lambda: MappedRows(new, 3.5, (), 1), "num_rows is 3.5"),  # type: ignore[arg-type]
        (lambda: MappedRows(new, 3, 5, 1), "width is 5"),  # type: ignore[arg-type]
        (lambda: MappedRows(new, 3, (-1,), 1), r"width is \(-1,\)"),
        (lambda: MappedRows(new, 3, (), 1, torch.complex64), "dtype is torch.complex64"),
        (lambda: MappedRows.from_tensor(new, [1], 1), "rows is list"),  # type: ignore[arg-type]
        (lambda: rows_within(10**6, 10, 4, -1000), "num_edges is -1000"),
        (lambda: rows_within(10**6, 10, 4, float("nan")), "num_edges is nan"),  # type: ignore[arg-type]
        (lambda: MappedEdges.write(new, graph, query_block=3, key_block=3), "parts is Edges"),  # type: ignore[arg-type]
        (lambda: MappedEdges.write(new, [None], query_block=3, key_block=3), "parts is NoneType"),  # type: ignore[list-item]
        (lambda: MappedEdges.write(tmp_path / "n", [named], query_block=3, key_block=3), "cannot name a file"),
        (lambda: tiles.tile(2, 0), "query_block is 2; there are the blocks 0 to 1"),
        (lambda: out_of_core.attend(x, x, x, graph), "edges is Edges"),  # type: ignore[arg-type]
        (lambda: out_of_core.attend(x, wide, x, tiles), "D must be one"),
        (lambda: out_of_core.attend(x, heads, heads, tiles), "a multiple of the heads of keys"),
        (lambda: out_of_core.attend(x, x, heads, tiles), "a multiple of the heads of keys"),
        (lambda: out_of_core.attend(whole, whole, whole, tiles), "a floating dtype"),
        (lambda: out_of_core.attend(x, x, x, tiles, coords=times[0]), "coords is Coords"),  # type: ignore[arg-type]
        (lambda: out_of_core.attend(x, x, x, tiles, coords=(times[0], times[1])), "coords of keys time has shape"),
        (lambda: out_of_core.attend(x, x, x, tiles, coords=(times[2], times[0])), "coords of queries time has shape"),
        (lambda: out_of_core.attend(x, x, x, tiles, score=3), "score is int"),  # type: ignore[arg-type]
        (lambda: map_rows(None, x), "function is NoneType"),  # type: ignore[arg-type]
        (lambda: map_rows(lambda a: 1.0, x), "function gives a float"),  # type: ignore[arg-type,return-value]
        (lambda: sum_rows(lambda where, a: 1.0, x), "function gives a float"),  # type: ignore[arg-type,return-value]
        (lambda: map_rows(lambda a: a, x, parameters=3), "parameters is int"),  # type: ignore[arg-type]
        (lambda: map_rows(lambda a: a, x, parameters=["a"]), "parameters holds"),  # type: ignore[list-item]
    ):
        with pytest.raises((ValueError, TypeError), match=words):
            make()


def test_no_rows_and_no_edges(tmp_path: Path) -> None:
    none = MappedRows.from_tensor(tmp_path / "none", torch.ones(0, 2, 4), 3)
    nothing = Edges(torch.zeros(2, 0, dtype=torch.int32), 0, 0)
    tiles = MappedEdges.write(tmp_path / "edges", [nothing], query_block=3, key_block=3)
    assert out_of_core.attend(none, none, none, tiles).tensor().shape == (0, 2, 4)
    empty = MappedRows(tmp_path / "empty", 4, (0,), 3)
    assert empty.tensor().shape == (4, 0)
