"""Torch's FlexAttention: bias and pattern as its score_mod and mask_mod, whole blocks skipped."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attnops import lowering
from attnops.pairs import Pairs
from attnops.problem import Call, Estimate, NotFiniteError, Problem, Result
from attnops.scores.dot import DotProduct

BLOCK = 128


class Flex:
    """FlexAttention, fused under `torch.compile`; called eagerly it holds all logits, as torch does."""

    name = "flex"

    def needs_finite(self, problem: Problem) -> bool:
        return True

    def unavailable(self) -> str | None:
        if importlib.util.find_spec("torch.nn.attention.flex_attention") is None:
            return f"torch {torch.__version__} has no torch.nn.attention.flex_attention; install torch 2.5 or newer"
        return None

    def refuse(self, problem: Problem) -> list[str]:
        reasons = []
        if problem.device == "cpu" and (problem.grad or problem.bias_grad):
            reasons.append("FlexAttention has no backward on a CPU")
        if problem.device != "cpu" and problem.coords_grad:
            reasons.append(
                "FlexAttention's backward reads a tensor that needs a gradient at one place a pair, and coords are "
                "read at both ends"
            )
        if problem.device == "cpu" and problem.lse:
            reasons.append("FlexAttention does not return the lse on a CPU")
        if problem.weights:
            reasons.append("FlexAttention does not return weights")
        if problem.dropout:
            reasons.append("FlexAttention has no dropout")
        if problem.score not in ("dot", "softcap"):
            reasons.append(f"FlexAttention computes dot products alone, not {problem.score}")
        if problem.num_edges is not None and problem.unique_edges is not True:
            what = "which a grid of pairs cannot tell apart"
            if problem.unique_edges is None:
                reasons.append(
                    f"this edge list was not searched for duplicates, {what}; name the backend to have it searched"
                )
            else:
                reasons.append(f"this edge list holds duplicate edges, {what}")
        if problem.vmapped:
            reasons.append("FlexAttention runs its own vmap over the pairs and does not nest in another")
        return reasons

    def estimate(self, problem: Problem) -> Estimate:
        width = problem.dim + problem.value_dim
        if not problem.compiling:
            return Estimate(problem.pairs * problem.compute_bytes * 4, problem.pairs * (width + 600))
        pairs = problem.pairs
        if problem.blocks_known:
            pairs = min(pairs, problem.bound + problem.batch * problem.heads * problem.num_queries * BLOCK)
        return Estimate(problem.pairs // BLOCK**2 * 8, pairs * (width + 40))

    def run(self, call: Call) -> Result:
        from torch.nn.attention.flex_attention import flex_attention

        if not call.problem.compiling:  # in one pair, so that an error is this library's and not of torch's tracer
            lowering.evaluate(call, call.block(slice(0, 1), slice(0, 1)))
        key, value = _finite(call)
        query = call.query
        if not torch.is_grad_enabled():  # torch refuses a CPU's backward by requires_grad alone
            query, key, value = query.detach(), key.detach(), value.detach()
        if call.problem.compiling and call.query.device.type == "cpu" and len(call.batch_shape) != 1:
            rows = torch.arange(query.shape[0])  # inductor's CPU template looks through views and their clones
            query, key, value = query.index_select(0, rows), key.index_select(0, rows), value.index_select(0, rows)
        ids = None
        edges = call.pattern.edges
        if edges is not None:
            ids = edges.ids(slice(0, edges.num_queries), slice(0, edges.num_keys))
        options: dict[str, Any] = {
            "score_mod": _score_mod(call, ids),
            "block_mask": _block_mask(call, ids),
            "scale": call.scale,
            "enable_gqa": query.shape[1] != key.shape[1],
        }
        if call.problem.compiling:
            return Result(flex_attention(query, key, value, **options))
        with warnings.catch_warnings():
            # run eagerly it is the unfused form, which the planner's estimate says and torch would warn of
            warnings.filterwarnings("ignore", message="flex_attention called without torch.compile")
            out = flex_attention(query, key, value, **options)
        assert isinstance(out, Tensor)
        return Result(out)


def _pair_of(call: Call, ids: Tensor | None) -> Callable[[Tensor, Tensor, Tensor, Tensor], Pairs]:
    """The pair at four indices; made outside the mods, so that tracing them captures no query."""
    heads, device, edges = call.query.shape[1], call.query.device, call.pattern.edges

    def pair(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Pairs:
        return Pairs.single(
            call.coords,
            call.batch_shape,
            heads,
            batch,
            head,
            query,
            key,
            dtype=call.compute_dtype,
            device=device,
            edge_data=None if edges is None else edges.data,
            edge_ids=None if ids is None else ids[query, key],
        )

    return pair


def _score_mod(call: Call, ids: Tensor | None) -> Any:
    cap = call.score.cap if isinstance(call.score, DotProduct) and call.score.softcap is not None else None
    bias = call.bias
    if cap is None and bias is None:
        return None
    pair_of = _pair_of(call, ids)

    def score_mod(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        if cap is not None:
            score = cap(score)
        if bias is not None:
            score = score + bias(pair_of(batch, head, query, key))
        return score

    return score_mod


def _block_mask(call: Call, ids: Tensor | None) -> Any:
    from torch.nn.attention.flex_attention import BlockMask

    if not lowering.forbids(call):
        return None
    pair_of = _pair_of(call, ids)

    def mask_mod(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        pair = pair_of(batch, head, query, key)
        if ids is None:
            return call.pattern.allows(pair)
        assert pair.edge.ids is not None
        allowed = pair.edge.ids >= 0
        return allowed if call.pattern.filter is None else allowed & call.pattern.filter.allows(pair)

    num_queries, num_keys = call.query.shape[2], call.key.shape[2]
    counts, blocks = _blocks(call, num_queries, num_keys)
    device = call.query.device
    return BlockMask.from_kv_blocks(
        torch.tensor(counts, dtype=torch.int32, device=device).view(1, 1, -1),
        torch.tensor(blocks, dtype=torch.int32, device=device).view(1, 1, len(counts), -1),
        BLOCK_SIZE=BLOCK,
        mask_mod=mask_mod,
        seq_lengths=(num_queries, num_keys),
    )


def _blocks(call: Call, num_queries: int, num_keys: int) -> tuple[list[int], list[list[int]]]:
    """For each block of queries, the blocks of keys inside the pattern's ranges, and then the others."""
    counts, rows = [], []
    every = range(-(-num_keys // BLOCK))
    for start in range(0, num_queries, BLOCK):
        ranges = call.pattern.key_ranges(call.coords, slice(start, min(num_queries, start + BLOCK)), num_keys)
        met = sorted({block for low, high in ranges for block in range(low // BLOCK, (high - 1) // BLOCK + 1)})
        counts.append(len(met))
        rows.append(met + [block for block in every if block not in met])
    return counts, rows


def _finite(call: Call) -> tuple[Tensor, Tensor]:
    """Key and value free of the garbage of rows that no query attends."""
    key, value = call.key, call.value
    if not call.problem.forbids or (not call.problem.compiling and lowering.all_finite(key, value)):
        return key, value
    allowed, bias = lowering.evaluate(call, call.block(slice(0, call.query.shape[2]), slice(0, key.shape[2])))
    if bias is not None:
        possible = bias != float("-inf")
        allowed = possible if allowed is None else allowed & possible
    assert allowed is not None
    key, value = lowering.without_garbage(allowed, key, value)
    if not call.problem.compiling and not lowering.all_finite(key, value):
        raise NotFiniteError("backend 'flex' met keys or values that are not finite where some query may attend them")
    return key, value
