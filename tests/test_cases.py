"""Faults that users of other libraries reported: the right answer on every backend, and each fault made to fail."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

import attnops
from attnops import Coords, Edges

BACKENDS = [name for name, reason in attnops.available_backends().items() if reason is None]
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


# -------------------------------------------------------------------------------------------------- masks and dead rows
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


# ------------------------------------------------------------------------------------------------------------ positions
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


# ----------------------------------------------------------------------------------------------------------- graph side
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


# ------------------------------------------------------------------------------------------------------- mask encodings
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


@solves("B29")
def _(i: Any, backend: str) -> Results:
    out = attend(i["q"], i["k"], i["v"], backend)
    eye = torch.eye(5, dtype=torch.float64).view(1, 1, 5, 5)
    plain, dropped = (attend(i["q"], i["k"], eye, backend, dropout=rate) for rate in (0.0, i["p"]))
    kept = dropped != 0
    torch.testing.assert_close(dropped[kept], plain[kept] / i["p"], rtol=1e-9, atol=1e-9)  # inverted scaling
    assert not kept.all()
    return {"out_eval": out}


# ----------------------------------------------------------------------------------------------------- operator details
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


# --------------------------------------------------------------------------------------------------- linear attention
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


# --------------------------------------------------------------------------------------------------------- whole system
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


# ------------------------------------------------------------------------------------------------------------ the tests
ALONE = ("B49",)  # no backend has a part in it


@pytest.mark.parametrize(
    ("case", "backend"),
    [
        pytest.param(case, name, id=f"{case}-{name}")
        for case in SOLUTIONS
        for name in (BACKENDS if case not in ALONE else [""])
    ],
)
def test_case(cases: ModuleType, case: str, backend: str) -> None:
    inputs, _ = cases.CASES[case]()
    try:
        got = SOLUTIONS[case](inputs, backend)
    except attnops.UnsupportedError as refusal:
        assert repr(backend) in str(refusal) and "best alternative" in str(refusal)
        assert backend in REFUSING.get(case, ()), f"{backend} refuses {case}: {refusal}"
        return
    assert backend not in REFUSING.get(case, ()), f"{backend} no longer refuses {case}: take it off the list"
    check(cases, case, got)


@pytest.mark.parametrize("case", SOLUTIONS)
def test_the_reported_fault_fails_the_same_comparison(cases: ModuleType, case: str) -> None:
    inputs, _ = cases.CASES[case]()
    with pytest.raises(AssertionError):
        check(cases, case, cases.FAULTY[case](inputs))


# Who refuses what, for the reasons that it states.
REFUSING: dict[str, tuple[str, ...]] = {
    "B07": ("flex",),  # it reads the lse
    "B29": ("flex",),  # it has no dropout
    "B54": ("sdpa", "blockwise", "flex"),  # its edges repeat
}
