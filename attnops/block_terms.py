"""What of a call's pattern and biases the compiled block kernel is told: ranges of keys, tables, slopes, numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from attnops import lowering
from attnops.biases.base import Bias
from attnops.biases.terms import LaidOut, Slope, Table
from attnops.coords import Coords
from attnops.kernels.block_attention import MOST_TERMS
from attnops.overrides import speaks_for
from attnops.pairs import Pairs
from attnops.patterns.rows import exact_ranges
from attnops.problem import Call

KEPT = 64  # ranges and tables of constant priors that are kept, where making them costs more than a small call
_kept: dict[tuple[object, ...], Any] = {}
Made = TypeVar("Made")


class Terms(NamedTuple):
    """Pattern and bias as the kernel takes them."""

    intervals: Tensor | None
    additive: Tensor | None
    tables: list[Tensor]
    indices: list[Tensor]
    offsets: list[int]
    slopes: list[Tensor]
    spots: list[Tensor]


def told(call: Call) -> Terms | None:
    """Pattern and biases as the kernel knows them; None where it does not know one."""
    intervals = _intervals(call)
    if intervals is None and lowering.forbids(call):
        return None
    terms = Terms(intervals, None, [], [], [0, 0], [], [])
    return terms if call.bias is None else _with_biases(call, terms)


def _intervals(call: Call) -> Tensor | None:
    """The pattern's ranges, int32."""
    if not lowering.forbids(call):
        return None

    def make() -> Tensor | None:
        num_keys = call.key.shape[2]
        ranges = exact_ranges(call.pattern, call.coords, call.batch_shape, call.query.shape[2], num_keys)
        return None if ranges is None else ranges.clamp(0, num_keys).int().contiguous()

    return _kept_or_made(call, call.pattern.constants, make)


def _kept_or_made(call: Call, constants: tuple[object, ...] | None, make: Callable[[], Made]) -> Made:
    """What constants over positions that were not given make of a problem's sizes: made once."""
    p = call.problem
    given = any("position" in side for side in call.coords)
    if constants is None or given or p.opaque or torch.is_inference_mode_enabled():
        return make()
    place = (constants, p.heads, p.num_queries, p.num_keys, call.compute_dtype)
    if place not in _kept:
        if len(_kept) >= KEPT:
            _kept.clear()
        _kept[place] = make()
    return _kept[place]  # type: ignore[no-any-return]


def _with_biases(call: Call, terms: Terms) -> Terms | None:
    assert call.bias is not None
    aligned = "position" not in call.coords[0] and "position" not in call.coords[1]
    relative: list[Bias] = []
    additive: Tensor | None = None
    tables, slopes = [], []
    for bias in (bias for bias in call.bias.terms if bias.adds):
        reach = bias.reach if speaks_for(type(bias), "reach", "forward") else None
        if reach is not None and (aligned or (reach < math.inf and _are_integers(call.coords))):
            relative.append(bias)
            continue
        sizes = (call.batch_shape, call.query.shape[2], call.key.shape[2])
        term = bias.term(call.coords, *sizes) if speaks_for(type(bias), "term", "forward") else None
        if isinstance(term, Table):
            tables.append(term)
        elif isinstance(term, Slope):
            slopes.append(term)
        elif isinstance(term, LaidOut):
            values = term.values.to(call.compute_dtype)
            additive = values if additive is None else additive + values
        else:
            return None
    if relative:
        each = tuple(bias.constants for bias in relative)
        constants = None if None in each else ("differences", *each)
        tables.append(_kept_or_made(call, constants, lambda: _by_differences(call, relative, aligned)))
    if len(tables) > MOST_TERMS or len(slopes) > MOST_TERMS:
        return None
    nothing = torch.empty(0, dtype=torch.long)
    for table in tables:
        terms.tables.append(table.table.to(call.compute_dtype))
        terms.indices.extend(nothing if x is None else x for x in (table.row, table.shift, table.column))
        terms.offsets.extend((table.offset, int(table.diagonal)))
    for slope in slopes:
        terms.slopes.append(slope.slope.to(call.compute_dtype))
        terms.spots.extend((slope.query, slope.key))
    return terms._replace(additive=additive)


def _are_integers(coords: tuple[Coords, Coords]) -> bool:
    return not any("position" in side and side.data["position"].is_floating_point() for side in coords)


def _by_differences(call: Call, biases: list[Bias], aligned: bool) -> Table:
    """The sum of biases that depend on the difference of positions alone, evaluated once over all differences."""
    query, key = call.coords
    num_queries, num_keys, heads = call.query.shape[2], call.key.shape[2], call.query.shape[1]
    if aligned:  # differences from that of the last query and first key on
        low, count = key.offset - query.offset - (num_queries - 1), num_queries + num_keys - 1
    else:
        reach = int(max(bias.reach or 0 for bias in biases))
        low, count = -reach, 2 * reach + 1
    origin, differences = Coords(), Coords()
    differences.offset = low
    where = ((origin, differences), (), heads, slice(0, 1), slice(0, count))
    pairs = Pairs.grid(*where, dtype=call.compute_dtype, device=call.query.device)
    table = lowering.bias_at(biases[0], pairs)
    for bias in biases[1:]:
        table = table + lowering.bias_at(bias, pairs)
    if aligned:
        return Table(table, num_queries - 1, diagonal=True)
    sides = [
        side.data["position"] if "position" in side else torch.arange(side.offset, side.offset + size).unsqueeze(0)
        for side, size in ((query, num_queries), (key, num_keys))
    ]
    return Table(table, -low, shift=sides[0], column=sides[1])
