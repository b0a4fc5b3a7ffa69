"""The oracle: dense, eager, any float dtype, the formula as it is written."""

from __future__ import annotations

from attnops import lowering
from attnops.pairs import Pairs
from attnops.problem import Call, Estimate, Problem, Result


class Reference:
    """Logits on the whole grid, one softmax, one sum. An edge list is a grid whose every key column is an edge."""

    name = "reference"

    def needs_finite(self, problem: Problem) -> bool:
        return False

    def unavailable(self) -> str | None:
        return None

    def refuse(self, problem: Problem) -> list[str]:
        return []

    def estimate(self, problem: Problem) -> Estimate:
        columns = problem.num_keys if problem.num_edges is None else problem.num_edges
        pairs = problem.batch * problem.heads * problem.num_queries * columns
        vectors = 1 if problem.score in ("dot", "softcap") else problem.dim
        copies = (4 if problem.learns else 3) + 2 * vectors
        width = problem.dim + problem.value_dim
        return Estimate(
            pairs * copies * problem.compute_bytes, pairs * (width + 400 * vectors) * (2 if problem.learns else 1)
        )

    def run(self, call: Call) -> Result:
        edges = call.pattern.edges
        query, key, value = (x.to(call.compute_dtype) for x in (call.query, call.key, call.value))
        num_queries = query.shape[2]
        if edges is None:
            pairs = call.block(slice(0, num_queries), slice(0, key.shape[2]))
        else:
            source = edges.source.long()
            key, value = key[:, :, source], value[:, :, source]
            pairs = Pairs.grid(
                call.coords,
                call.batch_shape,
                query.shape[1],
                slice(0, num_queries),
                source,
                dtype=call.compute_dtype,
                device=query.device,
                edge_data=edges.data,
                keys_are_edges=True,
            )
        allowed, bias = lowering.evaluate(call, pairs)
        out, lse, weights = lowering.attention(call, pairs, query, key, value, allowed, bias)
        if edges is not None and weights is not None:
            weights = weights.sum(-2)  # column e holds the weight of edge e in the row of its target alone
        return Result(out.to(call.query.dtype), lse, weights)
