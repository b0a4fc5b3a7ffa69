"""Rows in files, and their gradient in files beside them: a tensor that need not fit in memory."""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from attnops.checks import require_positive

HEADER = "rows.json"
# What attention over one tile holds at most, in rows of query, key, value and output, and in bytes an edge: measured,
# see tests/distributed/test_out_of_core.py.
ROWS_AT_ONCE, BYTES_AN_EDGE = 20, 120


class RowFiles:
    """`[N, …]` in files of `block` rows each, and their gradient."""

    def __init__(
        self, folder: Path, num_rows: int, width: tuple[int, ...], block: int, dtype: torch.dtype, scratch: bool
    ) -> None:
        self.folder, self.num_rows, self.width = folder, num_rows, width
        self.block, self.dtype = block, dtype
        self.num_blocks = -(-num_rows // block)
        self.grad: RowFiles | None = None
        if scratch:  # removed when nothing refers to it
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)

    def make(self) -> RowFiles:
        """Files of zeros, which take no room until they are written."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for index in range(self.num_blocks):
            with open(self._path(index), "wb") as file:
                file.truncate(self._size(index) * self.dtype.itemsize)
        return self

    def blocks(self) -> Iterator[tuple[int, slice]]:
        """The number of each block, and its rows."""
        for index in range(self.num_blocks):
            yield index, slice(index * self.block, min(self.num_rows, (index + 1) * self.block))

    def read(self, index: int) -> Tensor:
        """A block, mapped."""
        if not 0 <= index < self.num_blocks:
            raise ValueError(f"index is {index}; there are the blocks 0 to {self.num_blocks - 1}")
        flat = torch.from_file(str(self._path(index)), shared=True, size=self._size(index), dtype=self.dtype)
        return flat.view(self._rows(index), *self.width)

    def add_gradient(self, index: int, gradient: Tensor) -> None:
        """Add to the gradient of a block, in float32 at least."""
        if self.grad is None:
            dtype = torch.promote_types(self.dtype, torch.float32)
            folder = Path(tempfile.mkdtemp(prefix="grad-", dir=self.folder))
            self.grad = RowFiles(folder, self.num_rows, self.width, self.block, dtype, scratch=True).make()
        self.grad.read(index).add_(gradient)

    def tensor(self) -> Tensor:
        """All rows in memory, a copy."""
        blocks = [self.read(index).clone() for index in range(self.num_blocks)]
        return torch.cat(blocks) if blocks else torch.zeros(0, *self.width, dtype=self.dtype)

    def _rows(self, index: int) -> int:
        return min(self.block, self.num_rows - index * self.block)

    def _size(self, index: int) -> int:
        return self._rows(index) * math.prod(self.width)

    def _path(self, index: int) -> Path:
        return self.folder / f"{index:06}.rows"


class MappedRows:
    """`[N, …]` in files of `block` rows each, mapped into memory one block at a time.

    A step of training reads as over tensors: what `map_rows`, `attend` and `sum_rows` of this package make of mapped
    rows takes its place in autograd, and `loss.backward()` writes gradients of rows to files beside them, in float32 at
    least, block by block. Those of parameters arrive in memory as always.

    Args:
        folder: where the files lie; made where it is missing. A folder that holds rows already is an error: `open` it.
        num_rows: N. width: the other axes. block: rows of a file; the last may have fewer.
        dtype: any real dtype. requires_grad: whether a backward pass leaves `grad`.

    Attributes:
        grad: None, or the gradient: `.read(index)` is that of a block, `.tensor()` that of all.

    Raises:
        ValueError: sizes that are not positive (N may be 0), a folder that holds rows already.
        FileNotFoundError: `open` of a folder without rows, or whose writing did not end.

    Example:
        >>> import tempfile, torch
        >>> from attnops.distributed.out_of_core import MappedRows
        >>> folder = tempfile.TemporaryDirectory()
        >>> x = MappedRows.from_tensor(folder.name + "/x", torch.arange(10.0).view(5, 2), block=2)
        >>> x, [x.read(i).sum().item() for i in range(x.num_blocks)]
        (MappedRows([5, 2], torch.float32, 3 blocks of 2), [6.0, 22.0, 17.0])
        >>> folder.cleanup()
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        num_rows: int,
        width: tuple[int, ...],
        block: int,
        dtype: torch.dtype = torch.float32,
        requires_grad: bool = False,
    ) -> None:
        require_positive(block=block, num_rows=num_rows + 1)
        if (Path(folder) / HEADER).exists():
            raise ValueError(f"folder {folder} holds rows already; MappedRows.open reads them")
        files = RowFiles(Path(folder), num_rows, tuple(width), block, dtype, scratch=False).make()
        header = {
            "num_rows": num_rows,
            "width": list(width),
            "block": block,
            "dtype": str(dtype).removeprefix("torch."),
        }
        draft = files.folder / f"{HEADER}.draft"
        draft.write_text(json.dumps(header), encoding="utf-8")
        draft.replace(files.folder / HEADER)
        self._hold(files, requires_grad)

    def _hold(self, files: RowFiles, requires_grad: bool = False) -> MappedRows:
        if requires_grad and not files.dtype.is_floating_point:
            raise ValueError(f"requires_grad is True; rows of {files.dtype} have no gradient")
        self.files = files
        # Where these rows stand in autograd: it holds no number, and depends on all that the rows depend on. The files
        # know nothing of it, so that a backward pass may keep them without keeping itself.
        self.token = torch.zeros((), requires_grad=requires_grad)
        return self

    @staticmethod
    def open(folder: str | os.PathLike[str], requires_grad: bool = False) -> MappedRows:
        """Rows that were written before."""
        path = Path(folder) / HEADER
        if not path.exists():
            raise FileNotFoundError(f"folder {folder} holds no {HEADER}: no rows, or their writing did not end")
        header = json.loads(path.read_text(encoding="utf-8"))
        dtype, width = getattr(torch, header["dtype"]), tuple(header["width"])
        files = RowFiles(Path(folder), header["num_rows"], width, header["block"], dtype, scratch=False)
        return MappedRows.__new__(MappedRows)._hold(files, requires_grad)

    @staticmethod
    def from_tensor(
        folder: str | os.PathLike[str], rows: Tensor, block: int, requires_grad: bool = False
    ) -> MappedRows:
        """The rows of a tensor, written to files."""
        mapped = MappedRows(folder, rows.shape[0], tuple(rows.shape[1:]), block, rows.dtype, requires_grad)
        for index, where in mapped.blocks():
            mapped.write(index, rows[where])
        return mapped

    def like(self, width: tuple[int, ...], dtype: torch.dtype) -> MappedRows:
        """As many other rows, in a folder beside this one that is removed when nothing refers to them."""
        folder = Path(tempfile.mkdtemp(prefix="rows-", dir=self.files.folder.parent))
        files = RowFiles(folder, self.num_rows, tuple(width), self.block, dtype, scratch=True).make()
        return MappedRows.__new__(MappedRows)._hold(files)

    @property
    def num_rows(self) -> int:
        """N."""
        return self.files.num_rows

    @property
    def width(self) -> tuple[int, ...]:
        """The other axes."""
        return self.files.width

    @property
    def dtype(self) -> torch.dtype:
        """Of the numbers."""
        return self.files.dtype

    @property
    def block(self) -> int:
        """Rows of a file."""
        return self.files.block

    @property
    def num_blocks(self) -> int:
        """How many files."""
        return self.files.num_blocks

    @property
    def requires_grad(self) -> bool:
        """Whether a backward pass writes `grad`."""
        return self.token.requires_grad

    @property
    def grad(self) -> RowFiles | None:
        """The gradient, once a backward pass has come here."""
        return self.files.grad

    def blocks(self) -> Iterator[tuple[int, slice]]:
        """The number of each block, and its rows."""
        return self.files.blocks()

    def read(self, index: int) -> Tensor:
        """A block, mapped: what is changed in it is changed in the file. It is in memory for as long as it is held."""
        return self.files.read(index)

    def write(self, index: int, rows: Tensor) -> None:
        """Set a block."""
        self.files.read(index).copy_(rows.detach())

    def tensor(self) -> Tensor:
        """All rows in memory, a copy."""
        return self.files.tensor()

    def __repr__(self) -> str:
        return f"MappedRows({[self.num_rows, *self.width]}, {self.dtype}, {self.num_blocks} blocks of {self.block})"


def rows_within(budget: int, num_rows: int, row_bytes: int, num_edges: int) -> int:
    """The rows of a block with which attention over mapped rows stays within a budget, for queries and keys alike.

    A tile, the edges between one block of queries and one of keys, is in memory at a time, with what its forward and
    backward pass hold; edges are taken to lie evenly, twice as densely where densest.

    Args:
        budget: bytes above what the process holds anyway.
        row_bytes: of the widest of query, key and value, in float32: H·D·4.

    Raises:
        ValueError: a budget in which not one row fits.

    Example:
        >>> from attnops.distributed.out_of_core import rows_within
        >>> rows_within(64 * 2**20, num_rows=10**7, row_bytes=4 * 32 * 4, num_edges=10**8)
        6552
    """
    require_positive(budget=budget, num_rows=num_rows, row_bytes=row_bytes)
    by_rows, by_edges = ROWS_AT_ONCE * row_bytes, 2 * BYTES_AN_EDGE * num_edges / num_rows**2
    # by_edges·b² + by_rows·b = budget
    block = (
        int((math.sqrt(by_rows**2 + 4 * by_edges * budget) - by_rows) / (2 * by_edges))
        if by_edges
        else budget // by_rows
    )
    if block < 1:
        raise ValueError(f"budget is {budget} bytes; one row takes {by_rows}")
    return min(block, num_rows)
