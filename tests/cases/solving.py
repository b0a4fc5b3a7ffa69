"""What solutions of reported faults are written with: `@solves("B01")` keeps one, `attend` runs it on a backend."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

import attnops
from attnops import Edges

Results = dict[str, Tensor]
SOLUTIONS: dict[str, Callable[..., Results]] = {}


def solves(case: str) -> Callable[[Callable[..., Results]], Callable[..., Results]]:
    def keep(solution: Callable[..., Results]) -> Callable[..., Results]:
        SOLUTIONS[case] = solution
        return solution

    return keep


def heads(x: Tensor) -> Tensor:
    """`[N, D]` as `[1, N, D]`."""
    return x.unsqueeze(0)


def everyone(queries: int, keys: int) -> Edges:
    row, column = torch.cartesian_prod(torch.arange(queries), torch.arange(keys)).t()
    return Edges(torch.stack([column, row]), queries, keys)


def attend(query: Tensor, key: Tensor, value: Tensor, backend: str, **arguments: Any) -> Any:
    """On edge lists `scatter` runs every pair as an edge; a dense bias goes along."""
    if backend == "scatter" and not _listed(arguments.get("pattern")):
        edges, pattern = everyone(query.shape[-2], key.shape[-2]), arguments.pop("pattern", None)
        if isinstance(pattern, Tensor):
            pattern = attnops.Mask(pattern)
        bias = arguments.get("bias")
        if isinstance(bias, Tensor):
            full = bias.expand(*bias.shape[:-2], query.shape[-2], key.shape[-2])
            arguments["bias"] = full[..., edges.target, edges.source]
        arguments["pattern"] = edges if pattern is None else edges & pattern
    return attnops.attend(query, key, value, backend=backend, **arguments)


def _listed(pattern: Any) -> bool:
    return isinstance(pattern, attnops.Pattern) and pattern.edges is not None


def differentiate(run: Callable[..., Tensor], inputs: list[Tensor], cotangent: Tensor) -> tuple[Tensor, list[Tensor]]:
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    out = run(*leaves)
    return out.detach(), list(torch.autograd.grad(out, leaves, cotangent))


def check(cases: ModuleType, case: str, got: Results) -> None:
    """Every result is the expected one, in shape and number."""
    _, expected = cases.CASES[case]()
    rtol, atol = cases.TOL.get(case, (1e-9, 1e-9))
    assert got, "nothing was compared"
    for name, tensor in got.items():
        assert tensor.shape == expected[name].shape, f"{name} has shape {list(tensor.shape)}"
        torch.testing.assert_close(
            tensor.double(), expected[name].double(), rtol=rtol, atol=atol, msg=lambda m, n=name: f"{n}: {m}"
        )
