"""A pattern and a bias laid out over all pairs, for people to look at; no backend comes this way."""

from __future__ import annotations

import torch
from torch import Tensor

from attnops.biases.base import Bias, TensorBias
from attnops.checks import require_index, require_positive
from attnops.coords import Coords, as_pair, resolve_coords
from attnops.pairs import Pairs
from attnops.patterns.base import Full, Pattern
from attnops.patterns.blocks import Mask
from attnops.patterns.segments import check_broadcast

CoordsLike = Coords | tuple[Coords, Coords] | None


def evaluate(
    bias: Bias | Pattern | Tensor | None,
    heads: int,
    num_queries: int,
    num_keys: int,
    coords: CoordsLike,
    pattern: Pattern | Tensor | None,
    batch_size: int,
    batch: int,
) -> tuple[Tensor, Tensor]:
    """What is allowed, bool, and b_ij, float32: `[H, Nq, Nk]` each, on the CPU, of one row of a batch.

    Args:
        bias: None is 0; a pattern is 0 or -inf; a tensor broadcasts to `[*B, H, Nq, Nk]`, or `[*B, H, E]` over edges.
        heads, num_queries, num_keys: H, Nq and Nk.
        coords, pattern: as in `attend`.
        batch_size, batch: B, and the row of it.

    Raises:
        TypeError: what is neither a bias nor a pattern.
        ValueError: sizes that do not fit, or below 1; a bias that adds nothing or needs content; an edge list that
            lists a pair twice, under a bias.
    """
    require_positive(heads=heads, num_queries=num_queries, num_keys=num_keys, batch_size=batch_size)
    require_index(batch_size, batch=batch)
    allowing = Mask(pattern) if isinstance(pattern, Tensor) else Full() if pattern is None else pattern
    if not isinstance(allowing, Pattern):
        raise TypeError(f"pattern is {type(allowing).__name__}; it must be a Pattern or a bool tensor")
    if bias is not None and not isinstance(bias, (Bias, Pattern, Tensor)):
        raise TypeError(f"bias is {type(bias).__name__}; it must be a Bias, a Pattern or a tensor")
    added = bias if isinstance(bias, Pattern) else bias.pattern if isinstance(bias, Bias) else None
    if isinstance(added, Pattern):
        allowing = allowing & added
    if isinstance(bias, Tensor):
        last = (num_queries, num_keys) if allowing.edges is None else (allowing.edges.num_edges,)
        check_broadcast("bias", bias, (batch_size, heads, *last), bias.device)
        bias = TensorBias(bias, per_edge=allowing.edges is not None)
    elif isinstance(bias, Pattern):
        bias = None
    device = _device(bias, allowing, coords)
    sides = resolve_coords(coords, (batch_size,), num_queries, num_keys, device)
    allowing.check((batch_size,), heads, num_queries, num_keys, device)
    edges = allowing.edges
    if bias is not None:
        _check_bias(bias, heads, allowing)
        bias.check(sides, {} if edges is None else edges._bounds)
    rows, columns = slice(0, num_queries), slice(0, num_keys)
    pairs = Pairs.grid(
        sides,
        (batch_size,),
        heads,
        rows,
        columns,
        dtype=torch.float32,
        device=device,
        edge_data=None if edges is None else edges.data,
        edge_ids=None if edges is None else edges.ids(rows, columns),
    )
    with torch.no_grad():
        allowed = allowing.allows(pairs).expand(pairs.shape)[batch].cpu()
        if bias is None:
            return allowed, torch.zeros(allowed.shape)
        return allowed, bias(pairs).expand(pairs.shape)[batch].float().cpu()


def _check_bias(bias: Bias, heads: int, pattern: Pattern) -> None:
    for term in bias.terms:
        if term.heads is not None and term.heads != heads:
            raise ValueError(f"{term} is made for {term.heads} heads; heads is {heads}")
    if bias.binds:
        raise ValueError(f"{bias} depends on the content of queries; draw what its bind(query, key) returns")
    if not bias.adds and bias.pattern is None:
        raise ValueError(f"{bias} adds nothing to the logits, so it has no b_ij to draw")
    if pattern.edges is not None and pattern.edges.unique is False:
        raise ValueError("pattern lists a pair twice; a heat map has room for one b_ij a pair")


def _device(bias: Bias | None, pattern: Pattern, coords: CoordsLike) -> torch.device:
    """Where the data lie that are read."""
    tensors: list[Tensor] = list(bias.parameters()) if bias is not None else []
    for side in () if coords is None else as_pair(coords):
        tensors += list(side.data.values())
    tensors += [pattern.edges.edge_index] if pattern.edges is not None else []
    tensors += [leaf.mask for leaf in pattern.leaves if isinstance(leaf, Mask)]
    return tensors[0].device if tensors else torch.device("cpu")
