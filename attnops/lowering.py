"""What dense backends share: pattern and bias on a block, grouped heads, and keys that may hold garbage."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from attnops.biases.base import Bias
from attnops.pairs import Pairs
from attnops.patterns.base import Full, Pattern
from attnops.problem import Call
from attnops.scores.base import Score
from attnops.scores.dot import DotProduct


def evaluate(call: Call, pairs: Pairs, allowed: Tensor | None = None) -> tuple[Tensor | None, Tensor | None]:
    """Pattern and bias at the pairs: `allowed` (None: all) and `bias` (None: 0), each broadcasting over the pairs.

    What is `allowed` may be given, where it is known already.
    """
    allowed = allows(call, pairs) if allowed is None else allowed
    bias = None
    if call.bias is not None and call.bias.adds:
        if allowed is not None and call.has_dirty_coords:
            pairs.only(allowed)
        bias = bias_at(call.bias, pairs)
    return allowed, bias


def bias_at(bias: Bias, pairs: Pairs) -> Tensor:
    """What a bias adds at the pairs, of their rank and in the dtype of their logits."""
    return _over(pairs, bias(pairs), bias, "forward", "a real tensor").to(pairs.dtype)


def score_at(score: Score, query: Tensor, key: Tensor, pairs: Pairs) -> Tensor:
    """The logits of vectors gathered at the pairs, before bias and pattern."""
    return _over(pairs, score(query, key, pairs), score, "forward", "a real tensor").to(pairs.dtype)


def allows_at(pattern: Pattern, pairs: Pairs) -> Tensor:
    """Whether a pattern allows the pairs, of their rank."""
    return _over(pairs, pattern.allows(pairs), pattern, "allows", "a bool tensor")


def _over(pairs: Pairs, value: object, owner: Bias | Score | Pattern, method: str, kind: str) -> Tensor:
    """`value` with the rank of the pairs, or an error that names the user's class which gave it."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{owner}.{method} gave a {type(value).__name__}; it must give {kind} over the pairs")
    if value.dtype.is_complex or (value.dtype == torch.bool) != (kind == "a bool tensor"):
        raise TypeError(f"{owner}.{method} gave {value.dtype}; it must give {kind} over the pairs")
    shape, rank = tuple(value.shape), len(pairs.shape)
    sizes = zip(reversed(shape), reversed(pairs.shape), strict=False)
    # symbolic sizes are compared where the tensors meet
    if len(shape) > rank or (not torch.compiler.is_compiling() and any(a not in (1, b) for a, b in sizes)):
        raise ValueError(
            f"{owner}.{method} gave shape {list(shape)}; it must broadcast to the pairs, {list(pairs.shape)}"
        )
    return value if len(shape) == rank else value.reshape((1,) * (rank - len(shape)) + shape)


def allows(call: Call, pairs: Pairs) -> Tensor | None:
    """The pattern at the pairs of a grid, None where it forbids nothing."""
    edges = call.pattern.edges
    if edges is None:
        return allows_at(call.pattern, pairs) if forbids(call) else None
    if pairs.keys_are_edges:
        allowed = edges.target == pairs.query.index
    else:
        assert pairs.edge.ids is not None
        allowed = pairs.edge.ids >= 0
    return allowed if call.pattern.filter is None else allowed & allows_at(call.pattern.filter, pairs)


def forbids(call: Call) -> bool:
    """Whether the pattern itself may forbid a pair."""
    return type(call.pattern) is not Full


def group_query(query: Tensor, kv_heads: int) -> Tensor:
    """`[B, H, Nq, D]` as `[B, Hkv, G·Nq, D]`: the heads that share a key head become more rows of it."""
    batch, heads, num_queries, dim = query.shape
    return query.reshape(batch, kv_heads, heads // kv_heads * num_queries, dim)


def ungroup(rows: Tensor, heads: int) -> Tensor:
    """`[B, Hkv, G·Nq, X]` back to `[B, H, Nq, X]`."""
    batch, kv_heads, grouped, width = rows.shape
    return rows.reshape(batch, heads, grouped // (heads // kv_heads), width)


def per_head(tensor: Tensor, heads: int) -> Tensor:
    """`[B, Hkv, N, D]` repeated to `[B, H, N, D]`, for scores that are not products."""
    kv_heads = tensor.shape[1]
    return tensor if kv_heads == heads else tensor.repeat_interleave(heads // kv_heads, 1)


def all_finite(*tensors: Tensor) -> bool:
    """Whether every number is finite, by one sum where that suffices."""
    total = tensors[0].detach().sum()
    for tensor in tensors[1:]:
        total = total + tensor.detach().sum()
    return math.isfinite(float(total)) or all(bool(torch.isfinite(tensor).all()) for tensor in tensors)


def attended_keys(allowed: Tensor, kv_heads: int, num_keys: int) -> Tensor:
    """`[B|1, Hkv|1, Nk|1, 1]`: whether some query of the batch row and key head may attend each key."""
    attended = allowed.any(dim=-2)  # [B|1, H|1, Nk|1]
    if attended.shape[1] > 1 and attended.shape[1] != kv_heads:
        attended = attended.view(attended.shape[0], kv_heads, -1, attended.shape[2]).any(2)
    return attended.unsqueeze(-1)


def without_garbage(allowed: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Key and value with zeros in the rows that no query may attend: a padded row may hold anything."""
    attended = attended_keys(allowed, key.shape[1], key.shape[2])
    return torch.where(attended, key, 0), torch.where(attended, value, 0)


def without_dead_queries(allowed: Tensor, query: Tensor) -> Tensor:
    """Query with zeros in the rows that may attend no key."""
    return torch.where(allowed.any(dim=-1, keepdim=True), query, 0)


def softmax(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Weights and lse over the last axis, where -inf is a forbidden pair and a row of them gives 0 and -inf."""
    if logits.shape[-1] == 0:
        return logits, logits.new_full(logits.shape[:-1], float("-inf")) + logits.sum(-1)
    top = logits.detach().amax(-1, keepdim=True)
    top = torch.where(top == float("-inf"), 0, top)
    exponential = torch.where(logits == float("-inf"), 0, (logits - top).exp())
    total = exponential.sum(-1, keepdim=True)
    empty = total == 0
    total = torch.where(total > 0, total, 1)  # a NaN total must not reach the row's forbidden pairs
    lse = torch.where(empty, float("-inf"), total.log() + top).squeeze(-1)
    return exponential / total, lse


def attention(
    call: Call,
    pairs: Pairs,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    allowed: Tensor | None,
    bias: Tensor | None,
    keep: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The formula over a grid of pairs: out, lse and weights. `keep` multiplies the weights: dropout already drawn."""
    if bias is not None:
        not_forbidden = bias.detach() != float("-inf")
        allowed = not_forbidden if allowed is None else allowed & not_forbidden
        bias = torch.where(not_forbidden, bias, 0)
    dirty: Tensor | None = None
    if allowed is not None:
        if allowed.ndim < 4 or allowed.shape[-2:] != pairs.shape[-2:]:
            allowed = allowed.expand(*allowed.shape[:-2], *pairs.shape[-2:])
        if call.problem.opaque:
            key, value = without_garbage(allowed, key, value)
            query = without_dead_queries(allowed, query)
        elif not all_finite(query, key, value):
            key, value = without_garbage(allowed, key, value)
            query = without_dead_queries(allowed, query)
            bad = ~(torch.isfinite(key).all(-1) & torch.isfinite(value).all(-1))
            columns = bad.flatten(0, 1).any(0).nonzero().flatten()
            dirty = columns if columns.numel() else None
    logits = _score(call, pairs, query, key, allowed, dirty)
    if bias is not None:
        logits = logits + bias
    if allowed is not None:
        logits = torch.where(allowed, logits, float("-inf"))
    weights, lse = softmax(logits.expand(pairs.shape))
    if keep is not None:
        weights = weights * keep
    elif call.dropout > 0:
        weights = F.dropout(weights, call.dropout)
    return _weighted_sum(weights, value, allowed, dirty), lse, weights


def _score(
    call: Call, pairs: Pairs, query: Tensor, key: Tensor, allowed: Tensor | None, dirty: Tensor | None
) -> Tensor:
    heads = query.shape[1]
    if isinstance(call.score, DotProduct):
        if dirty is None:
            return call.score.cap(_product(query, key.transpose(-1, -2)) * call.scale)
        clean = key.index_fill(2, dirty, 0)
        columns = per_head(key[:, :, dirty], heads).unsqueeze(2)  # [B, H, 1, J, D]
        assert allowed is not None
        columns = torch.where(allowed[..., dirty].unsqueeze(-1), columns, 0)
        logits = _product(query, clean.transpose(-1, -2))
        logits = logits.index_copy(3, dirty, (query.unsqueeze(3) * columns).sum(-1))
        return call.score.cap(logits * call.scale)
    query, key, score = call.score.bind(query, key)
    columns = per_head(key, heads).unsqueeze(2)
    if dirty is not None and allowed is not None:
        columns = torch.where(allowed.unsqueeze(-1), columns, 0)
    return score_at(score, query.unsqueeze(3), columns, pairs)


def _weighted_sum(weights: Tensor, value: Tensor, allowed: Tensor | None, dirty: Tensor | None) -> Tensor:
    if dirty is None:
        return _product(weights, value)
    assert allowed is not None
    columns = per_head(value[:, :, dirty], weights.shape[1]).unsqueeze(2)
    columns = torch.where(allowed[..., dirty].unsqueeze(-1), columns, 0)
    out = _product(weights, value.index_fill(2, dirty, 0))
    return out + (weights[..., dirty].unsqueeze(-1) * columns).sum(-2)


def _product(left: Tensor, right: Tensor) -> Tensor:
    """`left @ right`, where right has Hkv heads and left H, without repeating right."""
    return ungroup(group_query(left, right.shape[1]) @ right, left.shape[1])
