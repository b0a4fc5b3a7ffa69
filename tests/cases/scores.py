"""Reported faults of dropout, scores, heads, lengths and learned biases, and of linear attention."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import attnops
from tests.cases.solving import (
    Results,
    attend,
    differentiate,
    heads,
    solves,
)


@solves("B29")
def _(i: Any, backend: str) -> Results:
    out = attend(i["q"], i["k"], i["v"], backend)
    eye = torch.eye(5, dtype=torch.float64).view(1, 1, 5, 5)
    plain, dropped = (attend(i["q"], i["k"], eye, backend, dropout=rate) for rate in (0.0, i["p"]))
    kept = dropped != 0
    torch.testing.assert_close(dropped[kept], plain[kept] / i["p"], rtol=1e-9, atol=1e-9)  # inverted scaling
    assert not kept.all()
    return {"out_eval": out}


@solves("B31")
def _(i: Any, backend: str) -> Results:
    vectors, arguments = (i["q"], i["k"], i["v"]), {"bias": i["bias"], "scale": i["scale"], "pattern": i["allow"]}
    results = {"out_no_cap": attend(*vectors, backend, **arguments)}
    capped = attnops.DotProduct(softcap=i["softcap"])
    try:
        results["out"] = attend(*vectors, backend, score=capped, **arguments)
        eye = torch.eye(4, dtype=torch.float64).view(1, 1, 4, 4)
        results["weights"] = attend(i["q"], i["k"], eye, backend, score=capped, **arguments)
    except attnops.UnsupportedError as refusal:
        assert backend == "sdpa" and "softcap" in str(refusal)
    return results


@solves("B33")
def _(i: Any, backend: str) -> Results:
    with pytest.raises(ValueError, match="4 heads; they must divide the 6 heads"):
        attnops.attend(i["q"], i["k"].repeat(1, 2, 1, 1), i["v"].repeat(1, 2, 1, 1))
    results: Results = {}
    marks = torch.tensor([0.0, 1.0], dtype=torch.float64).view(1, 2, 1, 1).expand(1, 2, 3, 4)
    results["kv_head_of_q_head"] = attend(i["q"], i["k"], marks, backend)[0, :, 0, 0].round()
    if backend == "flex":
        return results | {"out": attend(i["q"], i["k"], i["v"], backend)}
    run = lambda q, k, v: attend(q, k, v, backend)  # noqa: E731
    results["out"], (results["dq"], results["dk"], results["dv"]) = differentiate(
        run, [i["q"], i["k"], i["v"]], i["cot"]
    )
    return results


@solves("B35")
def _(i: Any, backend: str) -> Results:
    with pytest.raises(ValueError, match="BlockMask has"):
        mask = attnops.BlockMask(torch.ones(1, 2, dtype=torch.bool), 128)  # made for 129 keys
        attnops.attend(i[65]["q"], i[65]["k"], i[65]["v"], pattern=mask)
    lengths = (33, 129) if backend == "flex" else i["lengths"]
    return {f"out_{n}": attend(*(i[n][letter] for letter in "qkv"), backend, pattern=i[n]["allow"]) for n in lengths}


class Named(attnops.Bias):
    """A table over distances, one number for all, and a slope a head: only the bias learns."""

    def __init__(self, table: Tensor, scalar: Tensor, slopes: Tensor) -> None:
        super().__init__()
        self.table, self.scalar, self.slopes = (torch.nn.Parameter(x.clone()) for x in (table, scalar, slopes))

    def forward(self, pairs: attnops.Pairs) -> Tensor:
        gap = pairs.query.position - pairs.key.position
        return self.table[gap + 3, pairs.head] + self.scalar - self.slopes[pairs.head] * gap


@solves("B37")
def _(i: Any, backend: str) -> Results:
    bias, temperature = Named(i["table"], i["scalar"], i["slopes"]), i["temperature"].clone()
    if backend == "flex":  # no backward on a CPU
        out = attend(temperature * i["q"], i["k"], i["v"], "reference", bias=bias, pattern=attnops.Causal())
        with torch.no_grad():
            return {"out": attend(temperature * i["q"], i["k"], i["v"], backend, bias=bias, pattern=attnops.Causal())}
    alone = attend(temperature * i["q"], i["k"], i["v"], backend, bias=bias, pattern=attnops.Causal())
    leaves = [bias.table, bias.scalar, bias.slopes]
    table, scalar, slopes = torch.autograd.grad(alone, leaves, i["cot"])
    temperature.requires_grad_()
    out = attend(temperature * i["q"], i["k"], i["v"], backend, bias=bias, pattern=attnops.Causal())
    (warmth,) = torch.autograd.grad(out, temperature, i["cot"])
    return {"out": out.detach(), "dtable": table, "dscalar": scalar, "dslopes": slopes, "dtemperature": warmth}


@solves("B49")
def _(i: Any, backend: str) -> Results:
    results: list[Results] = []
    length = len(i["q"])
    for chunks in i["chunkings"]:
        for real in (torch.ones(length, dtype=torch.bool), i["real"]):
            state, parts, at = None, [], 0
            for count in chunks:
                rows = slice(at, at + count)
                vectors = [heads(i[letter][rows]) for letter in "qkv"]
                gate: dict[str, Any] = {"decay": i["decay"][rows].unsqueeze(0), "key_mask": real[rows], "state": state}
                out, state = attnops.linear_attend(
                    *vectors, feature_map="identity", causal=True, return_state=True, **gate
                )
                parts.append(out[0])
                at += count
            assert state is not None
            whole, summed = torch.cat(parts), state.matrix[0]
            if real.all():
                results.append({"out": whole, "state": summed})
            else:
                results.append({"out_padded_at_real": whole[real], "state_padded": summed})
    for one in results:
        for name, tensor in one.items():
            torch.testing.assert_close(tensor, results[0 if name in results[0] else 1][name], rtol=1e-9, atol=1e-9)
    return results[0] | results[1]
