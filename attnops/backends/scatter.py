"""Edge lists, in plain torch: one logit an edge and head, a softmax a target, one weighted sum."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from attnops import lowering
from attnops.joined import keep_joined
from attnops.pairs import Pairs
from attnops.patterns.sorting import Sorted
from attnops.problem import Call, Estimate, NotFiniteError, Problem, Result
from attnops.scores.dot import DotProduct
from attnops.segments import Graph, edge_dot, gather_rows, gather_sum, segment_exponentials, spread


class Scatter:
    """Edges grouped by target; with the dot product no key and no value is copied to an edge, forward or backward."""

    name = "scatter"

    def needs_finite(self, problem: Problem) -> bool:
        return True

    def unavailable(self) -> str | None:
        return None

    def refuse(self, problem: Problem) -> list[str]:
        if problem.num_edges is None:
            return ["it runs edge lists alone, and the pattern is not an Edges (or Edges & P)"]
        if problem.differentiated:
            return ["torch.func's derivatives do not pass through its operations; differentiate by backward instead"]
        return []

    def estimate(self, problem: Problem) -> Estimate:
        edges = problem.batch * problem.heads * (problem.num_edges or 0)
        copied = 1 if problem.score in ("dot", "softcap") else 4 * problem.dim * (2 if problem.learns else 1)
        numbers = edges * (copied + 6)
        width = problem.dim + problem.value_dim
        steps = edges * (4 * width + 20 + 10 * copied) * (3 if problem.learns else 1)
        return Estimate(numbers * problem.compute_bytes, steps + 300_000)

    def run(self, call: Call) -> Result:
        edges = call.pattern.edges
        assert edges is not None
        csr = edges.sorted()
        graph = Graph(csr.target, csr.source, csr.pointer, csr.source_pointer, csr.source_order, csr.source_place)
        pairs = Pairs.listed(
            call.coords,
            call.batch_shape,
            call.query.shape[1],
            csr.target,
            csr.source,
            dtype=call.compute_dtype,
            device=call.query.device,
            edge_data=edges.data,
            edge_ids=csr.order,
        )
        allowed = None if call.pattern.filter is None else lowering.allows_at(call.pattern.filter, pairs)
        if allowed is not None and call.has_dirty_coords:
            pairs.only(allowed)
        bias = None if call.bias is None else lowering.bias_at(call.bias, pairs)
        query, key, value = _clean(call, csr, allowed, bias)
        query, key, value = (x.to(call.compute_dtype) for x in (query, key, value))
        logits = _score(call, pairs, query, key, graph)
        if bias is not None:
            logits = logits + bias
        if allowed is not None:
            logits = torch.where(allowed, logits, float("-inf"))
        exponentials, total, lse = segment_exponentials(logits, csr.pointer, csr.target)
        if call.dropout > 0:
            exponentials = F.dropout(exponentials, call.dropout)
        # divided by its sum a row at a time, not an edge at a time
        out = gather_sum(exponentials, value, *graph, query.shape[1]) / total.unsqueeze(-1)
        weights = None
        if call.problem.weights:
            weights = (exponentials / spread(total, csr.pointer, csr.target))[:, :, csr.place]
        return Result(out.to(call.query.dtype), lse, weights)


def _score(call: Call, pairs: Pairs, query: Tensor, key: Tensor, graph: Graph) -> Tensor:
    if isinstance(call.score, DotProduct):
        dots = edge_dot(query, key, *graph)
        return call.score.cap(dots * call.scale)
    heads = query.shape[1]
    query, key, score = call.score.bind(query, key)
    in_order = torch.arange(graph.row.shape[0], device=query.device)
    rows = gather_rows(query, graph.row, graph.pointer, in_order, in_order)
    columns = gather_rows(key, graph.column, graph.column_pointer, graph.column_order, graph.column_place)
    return lowering.score_at(score, rows, lowering.per_head(columns, heads), pairs).expand(pairs.shape)


def _clean(call: Call, csr: Sorted, allowed: Tensor | None, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value without the garbage of rows that no edge joins."""
    query, key, value = call.query, call.key, call.value
    if allowed is None and bias is None and not call.score.binds:
        return query, key, value
    opaque = call.problem.opaque
    if not opaque and lowering.all_finite(query, key, value):
        return query, key, value
    query, key, value = keep_joined(query, key, value, csr, allowed, bias)
    if (allowed is not None or bias is not None) and not opaque and not lowering.all_finite(key, value):
        raise NotFiniteError(
            "backend 'scatter' met keys or values that are not finite on an allowed edge, beside forbidden ones"
        )
    return query, key, value
