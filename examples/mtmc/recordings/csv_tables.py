"""Tables as CSV, row by row (``tables`` says which columns)."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from examples.mtmc.errors import InputError
from examples.mtmc.network.network import Network
from examples.mtmc.recordings.checks import Fault, Raw
from examples.mtmc.recordings.cleaning import MALFORMED, Log
from examples.mtmc.recordings.formats import Malformed, numbers
from examples.mtmc.recordings.tables import columns_of, raw_of
from examples.mtmc.recordings.text import Progress, blocks, name_of


class CsvTable:
    """Rows of a CSV, most ``most`` at a time."""

    def __init__(
        self, source: Path | IO[Any], network: Network, log: Log, most: int, progress: Progress | None
    ) -> None:
        self.name, self.network, self.log, self.most = name_of(source), network, log, most
        self.blocks = blocks(source, log, progress)
        first = next(self.blocks, None)
        if first is None:
            raise InputError(self.name, None, "no rows", "a header and at least one row")
        (_, header), *self.rest = first
        try:
            self.names = [cell.strip() for cell in _cells(header)]
        except Malformed as error:
            raise InputError(self.name, 1, error.found, error.expected) from None
        self.columns = columns_of(self.name, self.names, log)
        log.rows -= 1  # the header is none
        self.tracklets = self.columns.tracklets

    def __iter__(self) -> Iterator[tuple[Raw, list[Fault]]]:
        place = {name: k for k, name in enumerate(self.names)}
        camera = place["camera"]
        names = (*self.columns.numbers, *self.columns.embedding)
        used = [place[name] for name in names]
        row = 0
        for block in self._blocks():
            for start in range(0, len(block), self.most):
                faults: list[Fault] = []
                cameras: list[str] = []
                values: list[list[float]] = []
                lines: list[int] = []
                places: list[int] = []
                for line, text in block[start : start + self.most]:
                    try:
                        cells = _cells(text)
                        if len(cells) != len(self.names):
                            raise Malformed(f"{len(cells)} columns", f"{len(self.names)}, as the header has")
                        values.append(numbers([cells[k].strip() or "nan" for k in used], names))
                    except Malformed as error:
                        faults.append((line, MALFORMED, error.found, error.expected))
                    else:
                        cameras.append(cells[camera].strip())
                        lines.append(line)
                        places.append(row)
                    row += 1
                table = np.array(values, dtype=np.float64).reshape(-1, len(names))
                by_name = dict(zip(names, table.T, strict=True))
                look = table[:, len(self.columns.numbers) :] if self.columns.embedding else None
                yield raw_of(self.columns, self.network, cameras, by_name, look, lines, places, faults), faults
        if row == 0 and self.log.strict:
            raise InputError(self.name, None, "no rows", "at least one row: the table is empty")

    def _blocks(self) -> Iterator[list[tuple[int, str]]]:
        yield self.rest
        yield from self.blocks


def _cells(text: str) -> list[str]:
    try:
        return next(csv.reader((text,), strict=True))
    except (csv.Error, StopIteration):
        raise Malformed(f"cells {text[:40]!r}", "cells parted by commas") from None
