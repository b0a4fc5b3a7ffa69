"""What of a call over an edge list a kernel is told: vectors, the bias at each edge, the score's numbers, the walk."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from attnops import lowering
from attnops.joined import keep_joined
from attnops.kernels.edge_operator import EdgeOperator
from attnops.kernels.edge_walk import Walk
from attnops.pairs import Pairs
from attnops.problem import Call, Problem, Result
from attnops.scores.additive import Additive, LeakySum
from attnops.scores.dot import DotProduct


class EdgeTerms(NamedTuple):
    """The arguments of an `EdgeOperator`, as far as they are tensors."""

    query: Tensor
    key: Tensor
    value: Tensor
    bias: Tensor | None
    a: Tensor | None
    term: Tensor | None
    walk: Walk


def refuse_edges(problem: Problem) -> list[str]:
    """Why the kernels for edge lists do not know a problem."""
    reasons = []
    if not problem.fused_score:
        reasons.append(f"its kernels know the dot product and the additive scores, not {problem.score}")
    elif problem.vmapped and problem.score not in ("dot", "softcap"):
        reasons.append("under vmap the parameters of a score may have a batch axis, which its kernels do not read")
    if problem.differentiated:
        reasons.append("torch.func's derivatives do not pass through its kernels; differentiate by backward instead")
    return reasons


def edges_bytes(problem: Problem) -> int:
    """What the kernels keep at each edge and head."""
    numbers = 4 if problem.learns else 1 if problem.biased or problem.weights else 0
    return problem.batch * problem.heads * (problem.num_edges or 0) * numbers * problem.compute_bytes


def run_over_edges(call: Call, operator: EdgeOperator, widened: bool, eager: bool) -> Result:
    """Tell a kernel the call, and bring what it gives to the caller's order and dtype."""
    assert call.pattern.edges is not None
    terms = read_edges(call, widened)
    out, lse, weights = operator(*terms, call.problem.weights, call.problem.learns, eager)
    place = call.pattern.edges.sorted().place
    return Result(out.to(call.query.dtype), lse, weights[:, :, place] if call.problem.weights else None)


def read_edges(call: Call, widened: bool) -> EdgeTerms:
    """The call as kernels take it; `widened`: vectors in the dtype that is computed in."""
    edges = call.pattern.edges
    assert edges is not None
    csr = edges.sorted()
    heads, batch = call.query.shape[1], call.query.shape[0]
    query, key, value = call.query, call.key, call.value
    if widened:
        query, key, value = (x.to(call.compute_dtype) for x in (query, key, value))
    bias = _bias(call, csr.target, csr.source, csr.order)
    if call.score.binds and (call.problem.opaque or not lowering.all_finite(query, key, value)):
        query, key, value = keep_joined(query, key, value, csr, None, bias)
    query, key, score = call.score.bind(query, key)
    kernel = score.kernel
    assert kernel is not None
    a, slope, softcap, term = None, 0.0, 0.0, None
    if isinstance(score, DotProduct):
        softcap = score.softcap or 0.0
    else:
        assert isinstance(score, Additive | LeakySum)
        slope = score.negative_slope
        a = score.a.to(call.compute_dtype) if isinstance(score, Additive) else query.new_ones(heads, 1)
        if score.edge_term is not None:
            data = edges.data[score.edge_term].to(call.compute_dtype)
            term = data.view(1, data.shape[0], heads, -1).transpose(1, 2).expand(batch, -1, -1, -1)
    seed = torch.randint(2**62, (), device=query.device) if call.dropout > 0 else None
    walk = Walk(
        csr.pointer, csr.source, csr.target, csr.source_pointer, csr.source_order, csr.order,
        kernel, call.scale, softcap, slope, call.dropout, seed,
    )  # fmt: skip
    return EdgeTerms(query, key, value, bias, a, term, walk)


def _bias(call: Call, target: Tensor, source: Tensor, order: Tensor) -> Tensor | None:
    """Bias and filter at the edges, `[B, H, E]`: -inf where a pair is forbidden."""
    if call.bias is None and call.pattern.filter is None:
        return None
    assert call.pattern.edges is not None
    pairs = Pairs.listed(
        call.coords,
        call.batch_shape,
        call.query.shape[1],
        target,
        source,
        dtype=call.compute_dtype,
        device=call.query.device,
        edge_data=call.pattern.edges.data,
        edge_ids=order,
    )
    allowed = None if call.pattern.filter is None else lowering.allows_at(call.pattern.filter, pairs)
    if allowed is not None and call.has_dirty_coords:
        pairs.only(allowed)
    bias = torch.zeros((), dtype=call.compute_dtype) if call.bias is None else lowering.bias_at(call.bias, pairs)
    if allowed is not None:
        bias = torch.where(allowed, bias, float("-inf"))
    return bias.expand(pairs.shape)
