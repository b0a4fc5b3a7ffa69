"""Tables as Parquet, batch by batch (``tables`` says which columns)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from examples.mtmc.errors import InputError
from examples.mtmc.network.network import Network
from examples.mtmc.recordings.checks import Fault, Raw
from examples.mtmc.recordings.cleaning import MALFORMED, Log
from examples.mtmc.recordings.tables import columns_of, raw_of
from examples.mtmc.recordings.text import Progress, name_of


class ParquetTable:
    """Rows of a Parquet file, at most ``most`` at a time."""

    def __init__(
        self, source: Path | IO[Any], network: Network, log: Log, most: int, progress: Progress | None
    ) -> None:
        import pyarrow as pa
        from pyarrow import parquet

        if not isinstance(source, Path):
            raise ValueError(f"source is {name_of(source)}; a Parquet file must be a path: it is no stream")
        self.path, self.network, self.log, self.most, self.progress = source, network, log, most, progress
        if not source.is_file():
            raise InputError(source, None, "no such file", "a file of rows")
        try:
            self.file = parquet.ParquetFile(source)
        except (pa.ArrowException, OSError) as error:
            raise InputError(source, None, f"no Parquet ({type(error).__name__})", "a Parquet file") from None
        schema = self.file.schema_arrow
        is_list = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
        lists = [field.name for field in schema if any(check(field.type) for check in is_list)]
        if "embedding" in lists and not _is_number(pa, schema.field("embedding").type.value_type):
            raise InputError(source, None, f"column embedding of {schema.field('embedding').type}", "lists of numbers")
        self.columns = columns_of(source, schema.names, log, lists)
        self.tracklets = self.columns.tracklets
        for name in (*self.columns.numbers, *(n for n in self.columns.embedding if n not in lists)):
            kind = schema.field(name).type
            if not _is_number(pa, kind):
                raise InputError(source, None, f"column {name} of {kind}", "numbers")

    def __iter__(self) -> Iterator[tuple[Raw, list[Fault]]]:
        import pyarrow as pa

        total, row = max(self.file.metadata.num_rows, 1), 0
        wanted = ["camera", *self.columns.numbers, *self.columns.embedding]
        try:
            for batch in self.file.iter_batches(self.most, columns=wanted):
                faults: list[Fault] = []
                cameras = ["" if x is None else str(x) for x in batch.column("camera").to_pylist()]
                by_name = {name: _numbers(batch.column(name)) for name in self.columns.numbers}
                places = list(range(row, row + len(cameras)))
                lines = [k + 1 for k in places]
                look = self._embedding(batch, lines, faults)
                row += len(cameras)
                self.log.rows += len(cameras)
                yield raw_of(self.columns, self.network, cameras, by_name, look, lines, places, faults), faults
                if self.progress:
                    self.progress(self.log.rows, row / total)
        except (pa.ArrowException, OSError) as error:
            found = f"unreadable Parquet after row {row} ({type(error).__name__})"
            raise InputError(self.path, None, found, "a whole file") from None
        if row == 0 and self.log.strict:
            raise InputError(self.path, None, "no rows", "at least one row: the table is empty")

    def _embedding(self, batch: Any, lines: list[int], faults: list[Fault]) -> NDArray[np.floating] | None:
        if self.columns.embedding != ("embedding",):
            parts = [_numbers(batch.column(name)) for name in self.columns.embedding]
            return np.stack(parts, 1) if parts else None
        rows = batch.column("embedding").to_pylist()
        given = [row for row in rows if row]
        length = len(given[0]) if given else 0
        if not length:
            return None
        look = np.full((len(rows), length), np.nan)
        for k, row in enumerate(rows):
            if row and len(row) == length:
                look[k] = [np.nan if x is None else x for x in row]
            elif row:
                faults.append((lines[k], MALFORMED, f"an embedding of {len(row)} numbers", f"{length} numbers"))
        return look


def _is_number(pa: Any, kind: Any) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind))


def _numbers(column: Any) -> NDArray[np.float64]:
    return np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.float64)
