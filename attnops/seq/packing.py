"""Packing: many documents in one row, none of which sees another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from attnops.checks import require_positive


class Packed(NamedTuple):
    """Rows of documents: what `Decoder` and `Encoder` take as ids, attention_mask and segments."""

    ids: Tensor
    attention_mask: Tensor
    segments: Tensor


def pack(documents: Sequence[Tensor | Sequence[int]], length: int, pad_id: int = 0) -> Packed:
    """Documents side by side in rows of `length`: the longest first, each into the first row with room for it.

    A document longer than a row is cut into parts, each a document of its own. `segments` counts the documents of a
    row, 0, 1, …; padding is a segment of its own, -1.

    Args:
        documents: token ids, each `[n]`. length: of a row.

    Raises:
        TypeError: tokens that are no integers. ValueError: no documents, or an empty one; a length below 1.

    Example:
        >>> from attnops.seq import pack
        >>> rows = pack([[1, 2], [3, 4, 5], [6]], length=4)
        >>> rows.ids.tolist(), rows.segments.tolist()
        ([[3, 4, 5, 6], [1, 2, 0, 0]], [[0, 0, 0, 1], [0, 0, -1, -1]])
    """
    require_positive(length=length)
    if isinstance(pad_id, bool) or not isinstance(pad_id, int):
        raise TypeError(f"pad_id is {pad_id!r}; it must be an integer")
    if not isinstance(documents, Sequence):
        raise TypeError(f"documents is {type(documents).__name__}; it must be a list of token ids, each [n]")
    parts: list[Tensor] = []
    for place, document in enumerate(documents):
        if isinstance(document, str):
            raise TypeError(f"documents[{place}] is a str; it must be token ids [n] (see Tokenizer.encode)")
        tokens = torch.as_tensor(document)
        if tokens.numel() and tokens.dtype not in (torch.int32, torch.int64):
            raise TypeError(f"documents[{place}] holds {tokens.dtype}; its tokens must be integers")
        if tokens.ndim != 1 or len(tokens) == 0:
            raise ValueError(f"documents[{place}] has shape {list(tokens.shape)}; it must be [n], of 1 token or more")
        parts.extend(tokens.split(length))  # type: ignore[no-untyped-call]
    if not parts:
        raise ValueError("documents is empty; there must be one or more")
    rows: list[list[Tensor]] = []
    room: list[int] = []
    for part in sorted(parts, key=len, reverse=True):
        row = next((row for row, left in enumerate(room) if left >= len(part)), len(rows))
        if row == len(rows):
            rows.append([])
            room.append(length)
        rows[row].append(part)
        room[row] -= len(part)
    ids = torch.full((len(rows), length), pad_id)
    segments = torch.full((len(rows), length), -1)
    for row, held in enumerate(rows):
        start = 0
        for segment, part in enumerate(held):
            ids[row, start : start + len(part)] = part
            segments[row, start : start + len(part)] = segment
            start += len(part)
    return Packed(ids, (segments >= 0).long(), segments)
