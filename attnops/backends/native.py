"""Compiled kernels for the CPU: edge lists without a copy of any vector to any edge, and blocks of a dense grid."""

from __future__ import annotations

import torch
from torch import Tensor

from attnops import lowering
from attnops.block_kernel import attend_blocks, estimate_blocks, refuse_blocks
from attnops.coords import is_concrete
from attnops.joined import keep_joined
from attnops.kernels import library
from attnops.kernels.edge_attention import Walk
from attnops.kernels.edge_operator import attend_edges
from attnops.pairs import Pairs
from attnops.problem import Call, Estimate, Problem, Result
from attnops.scores.additive import Additive, LeakySum
from attnops.scores.dot import DotProduct


class Native:
    """Each query walks over its edges with the softmax kept up to date, each key over those that leave it."""

    name = "native"

    def needs_finite(self, problem: Problem) -> bool:
        return problem.num_edges is None

    def unavailable(self) -> str | None:
        return library.unavailable()

    def refuse(self, problem: Problem) -> list[str]:
        reasons = []
        if problem.device not in ("cpu", "meta"):
            reasons.append(f"its kernels run on the CPU, and these tensors lie on {problem.device}")
        if problem.num_edges is None:
            return reasons + refuse_blocks(problem)
        if not problem.fused_score:
            reasons.append(f"its kernels know the dot product and the additive scores, not {problem.score}")
        elif problem.vmapped and problem.score not in ("dot", "softcap"):
            reasons.append("under vmap the parameters of a score may have a batch axis, which its kernels do not read")
        if problem.differentiated:
            reasons.append(
                "torch.func's derivatives do not pass through its kernels; differentiate by backward instead"
            )
        return reasons

    def estimate(self, problem: Problem) -> Estimate:
        if problem.num_edges is None:
            return estimate_blocks(problem)
        edges = problem.batch * problem.heads * (problem.num_edges or 0)
        width = problem.dim + problem.value_dim
        numbers = edges * (4 if problem.learns else 1 if problem.biased or problem.weights else 0)
        steps = edges * (width + 16) * (3 if problem.learns else 1)
        return Estimate(numbers * problem.compute_bytes, steps + 150_000)

    def run(self, call: Call) -> Result:
        return attend_blocks(call) if call.problem.num_edges is None else _over_edges(call)


def _over_edges(call: Call) -> Result:
    edges = call.pattern.edges
    assert edges is not None
    csr = edges.sorted()
    heads, batch = call.query.shape[1], call.query.shape[0]
    query, key, value = (x.to(call.compute_dtype) for x in (call.query, call.key, call.value))
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
    seed = torch.randint(2**62, ()) if call.dropout > 0 else None
    walk = Walk(
        csr.pointer, csr.source, csr.target, csr.source_pointer, csr.source_order, csr.order,
        kernel, call.scale, softcap, slope, call.dropout, seed,
    )  # fmt: skip
    eager = not call.problem.opaque and is_concrete(query)
    out, lse, weights = attend_edges(
        query, key, value, bias, a, term, walk, call.problem.weights, call.problem.learns, eager
    )
    return Result(out.to(call.query.dtype), lse, weights[:, :, csr.place] if call.problem.weights else None)


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
