"""Compiled kernels for the CPU: edge lists without a copy of any vector to any edge, and blocks of a dense grid."""

from __future__ import annotations

from attnops.block_kernel import attend_blocks, estimate_blocks, refuse_blocks
from attnops.edge_terms import edges_bytes, refuse_edges, run_over_edges
from attnops.kernels import library
from attnops.kernels.edge_attention import native_edges
from attnops.problem import Call, Estimate, Problem, Result


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
        return reasons + refuse_edges(problem)

    def estimate(self, problem: Problem) -> Estimate:
        if problem.num_edges is None:
            return estimate_blocks(problem)
        pairs = problem.batch * problem.heads * (problem.num_edges or 0)
        steps = pairs * (problem.dim + problem.value_dim + 16) * (3 if problem.learns else 1)
        return Estimate(edges_bytes(problem), steps + 150_000)

    def run(self, call: Call) -> Result:
        if call.problem.num_edges is None:
            return attend_blocks(call)
        return run_over_edges(call, native_edges, widened=True, eager=not call.problem.opaque)
