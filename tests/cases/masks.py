"""Reported faults of masks, causal cuts and windows."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor

import attnops
from attnops import Coords
from tests.cases.solving import (
    Results,
    attend,
    differentiate,
    heads,
    solves,
)


@solves("B01")
def _(i: Any, backend: str) -> Results:
    results: Results = {}
    for cotangent in (i["cot"], i["cot_masked"]):
        if backend == "flex":
            results["out"] = attend(i["q"], i["k"], i["v"], backend, pattern=i["allow"])
            continue
        run = lambda q, k, v: attend(q, k, v, backend, pattern=i["allow"])  # noqa: E731
        results["out"], (results["dq"], results["dk"], results["dv"]) = differentiate(
            run, [i["q"], i["k"], i["v"]], cotangent
        )
    if backend != "flex":
        results["lse"] = attend(i["q"], i["k"], i["v"], backend, pattern=i["allow"], return_lse=True).lse
    return results


@solves("B03")
def _(i: Any, backend: str) -> Results:
    results = []
    for split in i["splits"]:
        ends = [0, *itertools.accumulate(split)]
        steps = [
            attend(i["q"][..., a:b, :], i["k"][..., :b, :], i["v"][..., :b, :], backend, pattern=attnops.Causal())
            for a, b in itertools.pairwise(ends)
        ]
        results.append(torch.cat(steps, -2))
    for other in results[1:]:
        torch.testing.assert_close(other, results[0], rtol=1e-9, atol=1e-9)
    return {"out": results[-1]}


@solves("B04")
def _(i: Any, backend: str) -> Results:
    results: Results = {}
    for name in ("2x5", "5x2", "1x5", "flat"):
        query, key, value = (i[f"{letter}_{name}"] for letter in "qkv")
        results[f"bottom_right_{name}"] = attend(query, key, value, backend, pattern=attnops.Causal())
        sides = tuple(Coords(position=torch.arange(x.shape[-2])) for x in (query, key))
        results[f"top_left_{name}"] = attend(query, key, value, backend, pattern=attnops.Causal(), coords=sides)
    return results


@solves("B05")
def _(i: Any, backend: str) -> Results:
    window = attnops.SlidingWindow(left=i["window"] - 1)
    left, right = i["left_right"]
    two = attnops.SlidingWindow(left, right)
    eye = torch.eye(8, dtype=torch.float64).view(1, 1, 8, 8)
    reach = {
        name: attend(i["q"], i["k"], eye, backend, pattern=p)[0, 0] > 0
        for name, p in (("", window), ("_two_sided", two))
    }
    return {
        "allow": reach[""],
        "counts": reach[""].sum(-1),
        "counts_two_sided": reach["_two_sided"].sum(-1),
        "out": attend(i["q"], i["k"], i["v"], backend, pattern=window),
        "out_two_sided": attend(i["q"], i["k"], i["v"], backend, pattern=two),
    }


@solves("B27")
def _(i: Any, backend: str) -> Results:
    vectors, causal, results = (i["q"], i["k"], i["v"]), attnops.Causal(), []
    real = i["allow_bool"][:, 0, 0]
    hard = i["additive"], i["additive_soft"]
    encodings: list[dict[str, Any]] = [
        {"pattern": i["allow_bool"]},
        {"pattern": attnops.Padding(~i["ignore_bool"])},
        {"pattern": attnops.Padding(real.sum(-1))},
        {"bias": hard[0]},
    ]
    for encoding in encodings:
        pattern = encoding.get("pattern", attnops.Full())
        masked = attnops.Mask(pattern) if isinstance(pattern, Tensor) else pattern
        results.append(
            {
                "out": attend(*vectors, backend, **encoding),
                "out_causal": attend(*vectors, backend, **{**encoding, "pattern": masked & causal}),
                "out_soft": attend(*vectors, backend, bias=hard[1]),
                "out_soft_causal": attend(*vectors, backend, bias=hard[1], pattern=causal),
            }
        )
    for other in results[1:]:
        for name, tensor in other.items():
            torch.testing.assert_close(tensor, results[0][name], rtol=1e-9, atol=1e-9)
    return results[0]


@solves("B39")
def _(i: Any, backend: str) -> Results:
    segment = torch.repeat_interleave(torch.arange(2), torch.tensor(i["lengths"]))
    arguments = {
        "pattern": attnops.SameSegment() & attnops.Causal(),
        "coords": Coords(position=i["positions"], segment=segment),
        "bias": attnops.Rotary(4),
    }
    vectors = [heads(i[letter]) for letter in "qkv"]
    results = {"out": attend(*vectors, backend, **arguments)[0]}
    if backend != "flex":
        key = vectors[1].clone().requires_grad_()
        (leak,) = torch.autograd.grad(attend(vectors[0], key, vectors[2], backend, **arguments)[0, 3:].sum(), key)
        results["grad_of_doc2_wrt_doc1_keys"] = leak[0, :3]
    return results
