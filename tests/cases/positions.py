"""Reported faults of positions: padding, rotary laws, ALiBi."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import attnops
from attnops import Coords
from tests.cases.solving import (
    Results,
    attend,
    heads,
    solves,
)


class Slope(attnops.Bias):
    """-slope · (p_i - p_j)"""

    def __init__(self, slope: float) -> None:
        super().__init__()
        self.slope = slope

    def forward(self, pairs: attnops.Pairs) -> Tensor:
        return -self.slope * (pairs.query.position - pairs.key.position)


@solves("B06")
def _(i: Any, backend: str) -> Results:
    results: list[Results] = []
    for side in ("left", "right"):
        x, real = i[f"x_{side}"], i[f"mask_{side}"]
        position = (real.long().cumsum(0) - 1).clamp(min=0)
        arguments: dict[str, Any] = {
            "pattern": attnops.Causal() & attnops.Padding(real), "coords": Coords(position=position),
        }  # fmt: skip
        placed = x + i["table"][position]
        runs = {
            "absolute": (placed, placed, {}),
            "rope": (x, x, {"bias": attnops.Rotary(4)}),
            "alibi": (x, x, {"bias": Slope(i["slope"])}),
        }
        got = {
            f"out_{name}": attend(heads(tokens), heads(tokens), heads(values), backend, **arguments, **more)[0][real]
            for name, (tokens, values, more) in runs.items()
        }
        results.append(got | {"positions": position[real].unsqueeze(0), "next_position": position[real].max() + 1})
    for name, tensor in results[0].items():
        torch.testing.assert_close(tensor, results[1][name], rtol=1e-9, atol=1e-9)
    return results[0]


@solves("B07")
def _(i: Any, backend: str) -> Results:
    magnitudes = []
    for factor, attention_factor, mscale, mscale_all_dim in i["rows"]:
        scaling = {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": 2048}
        extra = {"attention_factor": attention_factor, "mscale": mscale, "mscale_all_dim": mscale_all_dim}
        scaling |= {name: value for name, value in extra.items() if value is not None}
        rotary = attnops.Rotary(16, scaling=attnops.RotaryScaling.from_hf(scaling))
        cos, _ = rotary.waves(torch.zeros(1, 1, dtype=torch.long), dtype=torch.float64)
        magnitudes.append(float(cos[0, 0, 0]))
    scaling = attnops.RotaryScaling.yarn(i["factor"], i["original_length"], i["beta_fast"], i["beta_slow"])
    rotary = attnops.Rotary(i["dim"], i["base"], scaling)
    value = torch.zeros(1, 1, 16, dtype=torch.float64)
    columns = []
    for j in range(3):  # one key at a time: the lse is its logit
        key, sides = (
            i["k"][j : j + 1],
            tuple(Coords(position=i["positions"][at]) for at in (slice(0, 3), slice(j, j + 1))),
        )
        arguments: dict[str, Any] = {"bias": rotary, "scale": 1.0, "coords": sides, "return_lse": True}
        columns.append(attend(heads(i["q"]), heads(key), value, backend, **arguments).lse[0])
    return {
        "magnitude": torch.tensor(magnitudes, dtype=torch.float64),
        "inv_freq": rotary.inv_freq(dtype=torch.float64),
        "dots": torch.stack(columns, -1),
    }


@solves("B09")
def _(i: Any, backend: str) -> Results:
    dim, base = i["dim"], i["base"]
    laws = {
        "dynamic_ntk": attnops.RotaryScaling.dynamic_ntk(i["factor"], i["original_length"]),
        "longrope": attnops.RotaryScaling.longrope(
            i["short_factor"], i["long_factor"], i["original_length"], factor=i["factor"], attention_factor=1.0
        ),
    }
    results = {}
    for name, law in laws.items():
        rotary = attnops.Rotary(dim, base, law)
        steps = [  # the cache holds keys unrotated
            attend(heads(i["q"][t : t + 1]), heads(i["k"][: t + 1]), heads(i["v"][: t + 1]), backend, bias=rotary)[0]
            for t in range(len(i["q"]))
        ]
        results[f"step_{name}"] = torch.cat(steps)
    return results


def turned(rotary: attnops.Rotary, x: Tensor, position: Tensor) -> Tensor:
    return rotary.turn(x.view(1, 1, *x.shape), position.unsqueeze(0))[0, 0]


@solves("B11")
def _(i: Any, backend: str) -> Results:
    query, key, at = i["q"], i["k"], i["positions"]
    half, pairs = attnops.Rotary(8), attnops.Rotary(8, interleaved=True)
    torch.testing.assert_close(turned(half, query[:, i["perm"]], at), turned(pairs, query, at)[:, i["perm"]])
    with pytest.raises(ValueError, match="dim is 7"):
        attnops.Rotary(i["odd_dim_must_be_rejected"])
    results = {
        "half": turned(half, query, at),
        "interleaved": turned(pairs, query, at),
        "partial": turned(attnops.Rotary(i["rotary_dim"]), query, at),
    }
    for name, rotary in (("dots_half", half), ("dots_interleaved", pairs)):
        for shift in (0, i["shift"]):
            sides = Coords(position=at + shift)
            out = attend(
                heads(query),
                heads(key),
                heads(torch.eye(4, dtype=torch.float64)),
                backend,
                bias=rotary,
                coords=sides,
                scale=1.0,
            )
            dots = out[0].log()
            want = turned(rotary, query, at) @ turned(rotary, key, at).T
            torch.testing.assert_close(dots - dots[:, :1], want - want[:, :1], rtol=1e-9, atol=1e-9)
        results[name] = want
    return results


@solves("B12")
def _(i: Any, backend: str) -> Results:
    """The waves that turn a unit vector held in the model's dtype."""
    rotary = attnops.Rotary(8).to(torch.bfloat16)
    cos, sin = rotary.waves(i["positions"].unsqueeze(0))
    got = {"cos": cos[0], "sin": sin[0]}
    ones = torch.zeros(1, 1, len(i["positions"]), 8, dtype=torch.bfloat16)
    ones[..., :4] = 1.0
    with torch.autocast("cpu", dtype=torch.bfloat16):
        vectors = rotary.turn(ones, i["positions"].unsqueeze(0))[0, 0].double()
    torch.testing.assert_close(vectors[:, :4], cos[0].bfloat16().double(), rtol=0, atol=0)
    return got


@solves("B14")
def _(i: Any, backend: str) -> Results:
    bias, causal = attnops.ALiBi(i["heads"]), attnops.Causal()
    at, steps = 0, []
    for count in i["steps"]:
        at += count
        steps.append(
            attend(i["q"][:, at - count : at], i["k"][:, :at], i["v"][:, :at], backend, bias=bias, pattern=causal)
        )
    results = {"out": torch.cat(steps, 1)}
    results["out_last_2"] = attend(i["q"][:, -i["tail"] :], i["k"], i["v"], backend, bias=bias, pattern=causal)
    for count in i["head_counts"]:
        results[f"slopes_{count}"] = attnops.ALiBi(count).slopes(torch.arange(count), torch.float64)
    zeros, eye = torch.zeros(4, 1, 4, dtype=torch.float64), torch.eye(5, dtype=torch.float64).expand(4, 5, 5)
    logs = attend(zeros, torch.zeros(4, 5, 4, dtype=torch.float64), eye, backend, bias=bias, pattern=causal)[:, 0].log()
    results["last_row_bias"] = logs - logs[:, -1:]
    return results
