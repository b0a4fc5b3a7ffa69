"""What a compiled kernel knows of biases: tables read by differences or types, slopes over gaps, numbers laid out."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from attnops.coords import Coords


class Table(NamedTuple):
    """b_ij = table[b, h, row_i, clamp(column_j − shift_i + offset, 0, L − 1)].

    `table [B|1, H|1, R, L]`; `row [B|1, Nq]` (None: i, or 0 where R is 1); `shift [B|1, Nq]`, `column [B|1, Nk]`, int64
    (None: 0 and j). With `diagonal`, the shift is i.
    """

    table: Tensor
    offset: int
    diagonal: bool = False
    row: Tensor | None = None
    shift: Tensor | None = None
    column: Tensor | None = None


class Slope(NamedTuple):
    """b_ij = slope[h] · |x_i − x_j|, with `slope [H]` and x float64, `[B|1, Nq]` and `[B|1, Nk]`."""

    slope: Tensor
    query: Tensor
    key: Tensor


class LaidOut(NamedTuple):
    """b_ij = values[b, h, i, j], `[B|1, H|1, Nq|1, Nk|1]`."""

    values: Tensor


Term = Table | Slope | LaidOut


def by_difference(
    table: Tensor, most: int, coords: tuple[Coords, Coords], num_queries: int, num_keys: int
) -> Table | None:
    """The term that reads column clip(p_j − p_i) + most of a table; None where positions are not integers."""
    query, key = coords
    if "position" not in query and "position" not in key:
        return Table(table, most + key.offset - query.offset, diagonal=True)
    sides = [
        side.data["position"] if "position" in side else torch.arange(side.offset, side.offset + count).unsqueeze(0)
        for side, count in ((query, num_queries), (key, num_keys))
    ]
    if any(side.is_floating_point() for side in sides):
        return None  # cut toward 0 after rounding, which a kernel would have to repeat to the bit
    return Table(table, most, shift=sides[0], column=sides[1])


def by_gap(slope: Tensor, name: str, coords: tuple[Coords, Coords], num_queries: int, num_keys: int) -> Slope | None:
    """The term slope · |x_i − x_j| over a coord; None where the coord takes a gradient or may not be finite."""
    sides = []
    for side, count in zip(coords, (num_queries, num_keys), strict=True):
        if name not in side and name != "position":
            return None
        if not side.finite(name) or (name in side and side.data[name].requires_grad):
            return None
        given = side.data.get(name)
        sides.append(torch.arange(side.offset, side.offset + count).unsqueeze(0) if given is None else given)
    if not any(side.is_floating_point() for side in sides):  # integers past 2^53 lose nothing either
        origin = sides[1][:1, :1].long()
        sides = [side.long() - origin for side in sides]
    query, key = (side.double() for side in sides)
    return Slope(slope, query, key)
