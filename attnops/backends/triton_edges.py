"""Triton's kernels for the GPU: edge lists without a copy of any vector to any edge."""

from __future__ import annotations

import importlib.util
import os

import torch

from attnops.edge_terms import edges_bytes, refuse_edges, run_over_edges
from attnops.problem import Call, Estimate, Problem, Result


class Triton:
    """Each part of a row walks over its edges with the softmax kept up to date, each key over those that leave it."""

    name = "triton"

    def needs_finite(self, problem: Problem) -> bool:
        return False

    def unavailable(self) -> str | None:
        if importlib.util.find_spec("triton") is None:
            return "triton is not installed: pip install triton (torch's builds for GPUs bring it)"
        if not interpreted() and not torch.cuda.is_available():
            return "its kernels run on a GPU, and torch sees none here"
        return None

    def refuse(self, problem: Problem) -> list[str]:
        reasons = []
        if problem.device not in ("cuda", "meta", *(("cpu",) if interpreted() else ())):
            reasons.append(f"its kernels run on a GPU, and these tensors lie on {problem.device}")
        if problem.num_edges is None:
            reasons.append("its kernels walk over an edge list, and this pattern is none")
        return reasons + refuse_edges(problem)

    def estimate(self, problem: Problem) -> Estimate:
        pairs = problem.batch * problem.heads * (problem.num_edges or 0)
        steps = pairs * (problem.dim + problem.value_dim + 16) * (3 if problem.learns else 1)
        slow = 10_000 if problem.device == "cpu" else 1  # interpreted, program by program
        return Estimate(edges_bytes(problem), steps * slow)

    def run(self, call: Call) -> Result:
        from attnops.kernels.triton_edges import triton_edges

        return run_over_edges(call, triton_edges, widened=False, eager=not call.problem.opaque)


def interpreted() -> bool:
    """Whether Triton was asked to interpret its kernels, on the CPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"
