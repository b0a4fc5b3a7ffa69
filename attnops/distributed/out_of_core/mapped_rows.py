"""Rows in files, and their gradient in files beside them: a tensor that need not fit in memory."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attnops.checks import require_count, require_positive
from attnops.distributed.out_of_core.mapped_file import (
    mapped,
    read_header,
    require_dtype,
    require_width,
    reserve,
    write_header,
)
from attnops.distributed.out_of_core.scratch import make_scratch, remove_stale, remove_with

HEADER = "rows.json"
INTERMEDIATE, GRADIENT = "rows-", "grad-"  # how the names of folders begin that are removed
# What attention over one tile holds at most, in rows of query, key, value and output, and in bytes an edge: measured,
# see tests/distributed/test_out_of_core.py.
ROWS_AT_ONCE, BYTES_AN_EDGE = 20, 120


class RowFiles:
    """`[N, …]` in files of `block` rows each, and their gradient."""

    def __init__(self, folder: Path, num_rows: int, width: tuple[int, ...], block: int, dtype: torch.dtype) -> None:
        self.folder, self.num_rows, self.width = folder, num_rows, width
        self.block, self.dtype = block, dtype
        self.num_blocks = -(-num_rows // block)
        self.grad: RowFiles | None = None

    @staticmethod
    def scratch(parent: Path, prefix: str, *form: Any) -> RowFiles:
        """Files in a folder of their own in `parent`, removed when nothing refers to them."""
        folder, lock = make_scratch(parent, prefix)
        files = RowFiles(folder, *form)
        remove_with(files, folder, lock)
        return files.make()

    def make(self) -> RowFiles:
        """Files of zeros, whose room is taken at once: writing to a mapping on a full disk would end the process."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for index in range(self.num_blocks):
            reserve(self._path(index), self._size(index) * self.dtype.itemsize)
        return self

    def blocks(self) -> Iterator[tuple[int, slice]]:
        """The number of each block, and its rows."""
        for index in range(self.num_blocks):
            yield index, slice(index * self.block, min(self.num_rows, (index + 1) * self.block))

    def read(self, index: int) -> Tensor:
        """A block, mapped."""
        if not isinstance(index, int) or not 0 <= index < self.num_blocks:
            raise ValueError(f"index is {index!r}; there are the blocks 0 to {self.num_blocks - 1}")
        flat = mapped(self._path(index), self._size(index), self.dtype, shared=True)
        return flat.view(self._rows(index), *self.width)

    def add_gradient(self, index: int, gradient: Tensor) -> None:
        """Add to the gradient of a block, in float32 at least."""
        if self.grad is None:
            dtype = torch.promote_types(self.dtype, torch.float32)
            self.grad = RowFiles.scratch(self.folder, GRADIENT, self.num_rows, self.width, self.block, dtype)
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
        grad: None, or the gradient: `.read(index)` is that of a block, `.tensor()` that of all. As with tensors, it
            adds up over backward passes, and is kept for leaves alone: rows that were not computed from others.

    Raises:
        ValueError: sizes that are not positive (N and axes may be 0), a dtype that is not real, a folder that holds
            rows already; a file of another length than its header says, a header that is none.
        FileNotFoundError: `open` of a folder without rows, or whose writing by `from_tensor` did not end; a file that
            is missing.
        OSError: a disk that is full, or cannot be written: room is taken before the first number is written.

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
        files = _made(folder, num_rows, width, block, dtype)
        self._hold(files, requires_grad)
        _name(files)

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
        header = read_header(path, {"num_rows": 0, "block": 1}, {"width": list, "dtype": str})
        dtype, width = require_dtype(f"{path}: ", header["dtype"]), require_width(f"{path}: ", header["width"])
        remove_stale(Path(folder), GRADIENT)
        remove_stale(Path(folder).parent, INTERMEDIATE)
        files = RowFiles(Path(folder), header["num_rows"], width, header["block"], dtype)
        return MappedRows.__new__(MappedRows)._hold(files, requires_grad)

    @staticmethod
    def from_tensor(
        folder: str | os.PathLike[str], rows: Tensor, block: int, requires_grad: bool = False
    ) -> MappedRows:
        """The rows of a tensor, written to files; a folder in which that did not end is no rows."""
        if not isinstance(rows, Tensor) or rows.ndim == 0:
            raise TypeError(f"rows is {_form(rows)}; it must be a tensor [N, …]")
        files = _made(folder, rows.shape[0], tuple(rows.shape[1:]), block, rows.dtype)
        written = MappedRows.__new__(MappedRows)._hold(files, requires_grad)
        for index, where in written.blocks():
            written.write(index, rows[where])
        _name(files)
        return written

    def like(self, width: tuple[int, ...], dtype: torch.dtype) -> MappedRows:
        """As many other rows, in a folder beside this one that is removed when nothing refers to them."""
        form = self.num_rows, tuple(width), self.block, dtype
        files = RowFiles.scratch(self.files.folder.parent, INTERMEDIATE, *form)
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
        """Set a block.

        Raises:
            ValueError: rows of another shape than the block's, or of a kind that its dtype does not hold.
        """
        held = self.files.read(index)
        if not isinstance(rows, Tensor) or rows.shape != held.shape or not torch.can_cast(rows.dtype, held.dtype):
            raise ValueError(f"rows is {_form(rows)}; block {index} is {_form(held)}")
        held.copy_(rows.detach())

    def tensor(self) -> Tensor:
        """All rows in memory, a copy."""
        return self.files.tensor()

    def __repr__(self) -> str:
        return f"MappedRows({[self.num_rows, *self.width]}, {self.dtype}, {self.num_blocks} blocks of {self.block})"


def _made(
    folder: str | os.PathLike[str], num_rows: int, width: tuple[int, ...], block: int, dtype: torch.dtype
) -> RowFiles:
    """Files of zeros, in a folder that is not yet named to hold rows."""
    require_positive(block=block)
    require_count(num_rows=num_rows)
    width, dtype = require_width("", width), require_dtype("", dtype)
    if (Path(folder) / HEADER).exists():
        raise ValueError(f"folder {folder} holds rows already; MappedRows.open reads them")
    remove_stale(Path(folder).parent, INTERMEDIATE)
    return RowFiles(Path(folder), num_rows, width, block, dtype).make()


def _name(files: RowFiles) -> None:
    """Write the header, which says that the rows are whole."""
    dtype = str(files.dtype).removeprefix("torch.")
    header = {"num_rows": files.num_rows, "width": list(files.width), "block": files.block, "dtype": dtype}
    write_header(files.folder / HEADER, header)


def _form(rows: object) -> str:
    """What something is, in a few words."""
    return f"{list(rows.shape)} in {rows.dtype}" if isinstance(rows, Tensor) else type(rows).__name__


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
    require_count(num_edges=num_edges)
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
