"""Reported faults of graphs: empty and repeated rows, several relations, half precision, the same bits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import attnops
from attnops import Edges
from tests.cases.solving import (
    Results,
    attend,
    differentiate,
    heads,
    solves,
)


@solves("B16")
def _(i: Any, backend: str) -> Results:
    count, groups = len(i["logit"]), i["num_groups"]
    edges = Edges(torch.stack([torch.arange(count), i["group"]]), groups, count)
    query, key = torch.zeros(1, groups, 1, dtype=torch.float64), torch.zeros(1, count, 1, dtype=torch.float64)
    arguments: dict[str, Any] = {"pattern": edges, "bias": i["logit"], "backend": backend}
    sums = attnops.attend(query, key, torch.ones(1, count, 1, dtype=torch.float64), **arguments)[0, :, 0]
    eye = torch.eye(count, dtype=torch.float64)
    return {"weights": attnops.attend(query, key, heads(eye), **arguments)[0].sum(0), "group_sums": sums}


@solves("B18")
def _(i: Any, backend: str) -> Results:
    results: Results = {}
    inputs = [heads(i[letter]) for letter in "qkv"]
    for suffix, ends in (("", torch.stack([i["src"], i["dst"]])), ("_no_edges", i["no_edges"])):
        pattern = Edges(ends, i["num_dst"], i["num_dst"])
        run = lambda q, k, v, pattern=pattern: attend(q, k, v, backend, pattern=pattern)  # noqa: E731
        if backend == "flex":
            results[f"out{suffix}"] = run(*inputs)[0]
            continue
        out, grads = differentiate(run, inputs, heads(i["cot"]))
        results[f"out{suffix}"] = out[0]
        results |= {f"d{letter}{suffix}": grad[0] for letter, grad in zip("qkv", grads, strict=True)}
    return results


@solves("B22")
def _(i: Any, backend: str) -> Results:
    """Relations share one edge list into a node, so one softmax; a relation's prior is part of its logits."""
    count = len(i["logit"])
    edges = Edges(torch.stack([torch.arange(count), i["dst"]]), i["num_dst"], count, type=i["relation"])
    zeros = torch.zeros(1, i["num_dst"], 1, dtype=torch.float64), torch.zeros(1, count, 1, dtype=torch.float64)
    logits = i["logit"] * i["prior"][edges.data["type"]]
    out = attend(*zeros, heads(i["v_of_edge"]), backend, pattern=edges, bias=logits)[0]
    return {"out": out, "weights": out.sum(0)}


@solves("B54")
def _(i: Any, backend: str) -> Results:
    nodes, results = len(i["q"]), {}
    vectors = [heads(i[letter]) for letter in "qkv"]

    def run(source: Tensor, target: Tensor, bias: Tensor, inputs: list[Tensor]) -> Tensor:
        return attend(*inputs, backend, pattern=Edges(torch.stack([source, target]), nodes, nodes), bias=bias)[0]

    edges = i["src"], i["dst"], i["edge_bias"]
    results["out"] = run(*edges, vectors)
    results["out_edge_perm"] = run(*(x[i["edge_perm"]] for x in edges), vectors)
    names = i["node_rename"]
    moved = [torch.empty_like(x).index_copy_(1, names, x) for x in vectors]
    results["out_renamed"] = run(names[i["src"]], names[i["dst"]], i["edge_bias"], moved)
    if backend != "flex":
        runs = []
        for _ in range(i["runs"]):
            leaves = [x.clone().requires_grad_() for x in (*vectors, i["edge_bias"])]
            out = run(i["src"], i["dst"], leaves[3], leaves[:3])
            runs.append([out.detach(), *torch.autograd.grad(out.square().sum(), leaves)])
        assert all(torch.equal(x, y) for other in runs[1:] for x, y in zip(runs[0], other, strict=True))
    return results


@solves("B56")
def _(i: Any, backend: str) -> Results:
    results = {}
    edges = Edges(torch.stack([i["src"], i["dst"]]), i["num_dst"], len(i["src"]))
    for dtype in (torch.float16, torch.bfloat16):
        query, key, value = (heads(i[letter].to(dtype)) for letter in "qkv")
        for cast in (False, True):
            with torch.autocast("cpu", dtype=dtype, enabled=cast):
                out = attend(query, key, value, backend, pattern=edges, bias=i["edge_bias"])
            assert out.dtype == dtype
            results["out"] = out[0].double()
        ones = torch.ones_like(value[..., :1])
        results["weight_sum"] = attend(query, key, ones, backend, pattern=edges, bias=i["edge_bias"])[0, :, 0].double()
    return results
