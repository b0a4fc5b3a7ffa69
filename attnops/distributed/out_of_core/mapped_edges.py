"""An edge list in files: a tile for the edges between one block of queries and one of keys."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attnops.checks import require_positive
from attnops.distributed.out_of_core.mapped_file import mapped, read_header, require_dtype, require_width, write_header
from attnops.patterns import Edges

HEADER = "edges.json"


class MappedEdges:
    """The edges of a graph in tiles on disk, each read when attention comes to it.

    `write` makes one from parts of an edge list, none of which need be large.

    Attributes:
        num_queries, num_keys, num_edges: of the whole graph.
        query_block, key_block: rows of a tile; those of the mapped queries and keys.

    Raises:
        FileNotFoundError: `open` of a folder without edges, or whose writing did not end; a file that is missing.
        ValueError: a header that is none; a file of another length than it says, or with edges out of range.

    Example:
        >>> import attnops, tempfile, torch
        >>> from attnops.distributed.out_of_core import MappedEdges
        >>> folder = tempfile.TemporaryDirectory()
        >>> edges = attnops.Edges(torch.tensor([[0, 4, 3], [1, 0, 1]]), 2, 5)
        >>> mapped = MappedEdges.write(folder.name + "/edges", [edges], query_block=2, key_block=3)
        >>> mapped.keys_of(0), mapped.tile(0, 1).edge_index                    # keys counted from 3, edges in order
        ([0, 1], tensor([[1, 0],
            [0, 1]], dtype=torch.int32))
        >>> folder.cleanup()
    """

    def __init__(self, folder: Path, header: dict[str, Any]) -> None:
        self.folder = folder
        self.num_queries: int = header["num_queries"]
        self.num_keys: int = header["num_keys"]
        self.query_block: int = header["query_block"]
        self.key_block: int = header["key_block"]
        self._counts: dict[str, int] = header["counts"]
        self._data: dict[str, tuple[str, list[int]]] = {name: tuple(form) for name, form in header["data"].items()}
        self.num_edges = sum(self._counts.values())
        self._keys: dict[int, list[int]] = {}
        for tile in self._counts:
            query_block, key_block = map(int, tile.split("-"))
            self._keys.setdefault(query_block, []).append(key_block)

    @staticmethod
    def open(folder: str | os.PathLike[str]) -> MappedEdges:
        """Edges that were written before."""
        path = Path(folder) / HEADER
        sizes = {"num_queries": 0, "num_keys": 0, "query_block": 1, "key_block": 1}
        header = read_header(path, sizes, {"counts": dict, "data": dict})
        rows = -(-header["num_queries"] // header["query_block"]), -(-header["num_keys"] // header["key_block"])
        for tile, count in header["counts"].items():
            place = re.fullmatch(r"(\d{1,18})-(\d{1,18})", tile, re.ASCII)
            if place is None or not all(int(place[side + 1]) < rows[side] for side in (0, 1)):
                raise ValueError(
                    f"{path}: counts names the tile {tile!r}; tiles are 0-0 to {rows[0] - 1}-{rows[1] - 1}"
                )
            if type(count) is not int or count < 1:
                raise ValueError(f"{path}: counts of {tile} is {count!r}; it must be a positive integer")
        for name, form in header["data"].items():
            _require_file_name(f"{path}: ", name)
            if not isinstance(form, list) or len(form) != 2:
                raise ValueError(f"{path}: data {name} is {form!r}; it must be [dtype, width]")
            require_dtype(f"{path}: data {name}: ", form[0])
            require_width(f"{path}: data {name}: ", form[1])
        return MappedEdges(Path(folder), header)

    @staticmethod
    def write(
        folder: str | os.PathLike[str], parts: Iterable[Edges], *, query_block: int, key_block: int
    ) -> MappedEdges:
        """Sort the edges of all parts into tiles.

        Args:
            folder: an empty one, or one to be made.
            parts: `Edges` over the whole graph's nodes, a part of the edges each, all with the same data by name.
            query_block, key_block: rows of a tile.

        Raises:
            ValueError: no part; a folder that is not empty; parts over other nodes, or with other data; data that
                require a gradient, or whose name is more than letters, digits and _.
        """
        require_positive(query_block=query_block, key_block=key_block)
        if not isinstance(parts, Iterable):
            raise TypeError(f"parts is {type(parts).__name__}; it must be a list of Edges, or give them one by one")
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise ValueError(f"folder {folder} is not empty")
        header: dict[str, Any] | None = None
        counts: dict[str, int] = {}
        for part in parts:
            if not isinstance(part, Edges):
                raise TypeError(f"one of the parts is {type(part).__name__}; it must be an Edges")
            forms = {
                name: (str(data.dtype).removeprefix("torch."), list(data.shape[1:])) for name, data in part.data.items()
            }
            own = {"num_queries": part.num_queries, "num_keys": part.num_keys, "data": forms}
            header = own if header is None else header
            if own != header:
                raise ValueError(f"one of the parts is over {own}; the first is over {header}")
            for name, data in part.data.items():
                _require_file_name("", name)
                if data.requires_grad:
                    raise ValueError(f"edge data {name} require a gradient; those in files cannot have one")
            _append(folder, part, query_block, key_block, counts)
        if header is None:
            raise ValueError("parts is empty; an Edges without edges says how many nodes there are")
        header |= {"query_block": query_block, "key_block": key_block, "counts": dict(sorted(counts.items()))}
        write_header(folder / HEADER, header)
        return MappedEdges.open(folder)

    def keys_of(self, query_block: int) -> list[int]:
        """The blocks of keys from which some edge enters a block of queries, ascending."""
        return sorted(self._keys.get(query_block, []))

    def tile(self, query_block: int, key_block: int) -> Edges:
        """The edges between two blocks, both counted from their first row, with their data."""
        for side, block, rows, length in (
            ("query_block", query_block, self.num_queries, self.query_block),
            ("key_block", key_block, self.num_keys, self.key_block),
        ):
            if not isinstance(block, int) or not 0 <= block < -(-rows // length):
                raise ValueError(f"{side} is {block!r}; there are the blocks 0 to {-(-rows // length) - 1}")
        name = f"{query_block}-{key_block}"
        count = self._counts.get(name, 0)
        ends = [self._read(name, end, torch.int32, (count,)) for end in ("source", "target")]
        data = {
            datum: self._read(name, f"data-{datum}", getattr(torch, dtype), (count, *width)).clone()
            for datum, (dtype, width) in self._data.items()
        }
        queries = min(self.query_block, self.num_queries - query_block * self.query_block)
        keys = min(self.key_block, self.num_keys - key_block * self.key_block)
        try:
            return Edges(torch.stack(ends), queries, keys, **data)
        except ValueError as error:
            raise ValueError(f"{self.folder}: the tile {name} is damaged: {error}") from error

    def _read(self, tile: str, what: str, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
        size = torch.Size(shape).numel()
        if size == 0:
            return torch.zeros(shape, dtype=dtype)
        return mapped(self.folder / f"{tile}.{what}", size, dtype, shared=False).view(shape)

    def __repr__(self) -> str:
        return (
            f"MappedEdges({self.num_edges} edges, {self.num_queries} queries, {self.num_keys} keys, "
            f"{len(self._counts)} tiles)"
        )


def _require_file_name(where: str, name: str) -> None:
    """Names of data are part of a file's name."""
    if re.fullmatch(r"\w{1,64}", name) is None:
        raise ValueError(f"{where}edge data {name!r} cannot name a file; it must be letters, digits and _")


def _append(folder: Path, part: Edges, query_block: int, key_block: int, counts: dict[str, int]) -> None:
    """Each edge to the files of its tile."""
    rows, columns = part.target.long() // query_block, part.source.long() // key_block
    across = -(-part.num_keys // key_block) + 1
    tiles, order = torch.sort(rows * across + columns, stable=True)
    codes, lengths = torch.unique_consecutive(tiles, return_counts=True)
    start = 0
    for code, length in zip(codes.tolist(), lengths.tolist(), strict=True):
        row, column = divmod(code, across)
        edge = order[start : start + length]
        start += length
        tile = f"{row}-{column}"
        counts[tile] = counts.get(tile, 0) + length
        _write(folder / f"{tile}.source", (part.source[edge] - column * key_block).int())
        _write(folder / f"{tile}.target", (part.target[edge] - row * query_block).int())
        for name, data in part.data.items():
            _write(folder / f"{tile}.data-{name}", data[edge])


def _write(path: Path, values: Tensor) -> None:
    """Append the numbers of a tensor to a file."""
    values = values.contiguous()
    if values.numel():
        with open(path, "ab") as file:
            file.write((ctypes.c_char * values.nbytes).from_address(values.data_ptr()))
