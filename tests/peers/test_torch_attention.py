"""The same numbers as torch's own attention: scaled_dot_product_attention, and nn.MultiheadAttention's weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import attnops
from attnops.testing import assert_close_as_reference

BACKENDS = [name for name, reason in attnops.available_backends().items() if reason is None and name != "scatter"]


def vectors(dtype: torch.dtype, *shapes: tuple[int, ...]) -> list[Tensor]:
    random = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=random, dtype=torch.float64).to(dtype) for shape in shapes]


SHAPES = {
    "square": ((2, 4, 6, 8), (2, 4, 6, 8), (2, 4, 6, 8)),
    "more keys": ((2, 4, 3, 8), (2, 4, 7, 8), (2, 4, 7, 8)),
    "grouped": ((2, 4, 6, 8), (2, 2, 6, 8), (2, 2, 6, 8)),
    "wide values": ((2, 4, 6, 8), (2, 4, 6, 8), (2, 4, 6, 5)),
    "no batch": ((4, 6, 8), (4, 6, 8), (4, 6, 8)),
}


def variants(queries: int, keys: int, dtype: torch.dtype) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Name: (torch's arguments, ours)."""
    mask = torch.rand(queries, keys, generator=torch.Generator().manual_seed(1)) < 0.6
    mask[:, 0] = True
    bias = torch.randn(4, queries, keys, generator=torch.Generator().manual_seed(2), dtype=torch.float64).to(dtype)
    known = {
        "plain": ({}, {}),
        "scaled": ({"scale": 0.3}, {"scale": 0.3}),
        "mask": ({"attn_mask": mask}, {"pattern": mask}),
        "bias": ({"attn_mask": bias}, {"bias": bias}),
        "mask as bias": ({"attn_mask": torch.where(mask, bias, -torch.inf)}, {"pattern": mask, "bias": bias}),
    }
    if queries == keys:  # where torch's causal, which is aligned to the first key, means ours
        known["causal"] = ({"is_causal": True}, {"pattern": attnops.Causal()})
    return known


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_scaled_dot_product_attention(backend: str, shape: str, dtype: torch.dtype) -> None:
    """At least as close to the float64 answer as torch is, up to the stated factor."""
    if backend == "flex" and (shape, dtype) not in {("square", torch.float32), ("grouped", torch.float64)}:
        return  # torch traces each anew
    inputs = vectors(dtype, *SHAPES[shape])
    queries, keys = inputs[0].shape[-2], inputs[1].shape[-2]
    grouped = {"enable_gqa": True} if shape == "grouped" else {}
    for name, (theirs, ours) in variants(queries, keys, dtype).items():
        wide = {key: x.double() if isinstance(x, Tensor) and x.is_floating_point() else x for key, x in theirs.items()}
        golden = F.scaled_dot_product_attention(*(x.double() for x in inputs), **wide, **grouped)
        torchs = F.scaled_dot_product_attention(*inputs, **theirs, **grouped)
        got = attnops.attend(*inputs, backend=backend, **ours)
        assert_close_as_reference(got, golden, torchs, kind="gradient", what=f"{name} on {backend}")


def test_causal_with_fewer_queries_is_end_aligned_unlike_torchs() -> None:
    """torch's is_causal lets one query see the first of four keys alone; ours, as a cache needs it, all four."""
    query, key, value = vectors(torch.float64, (1, 1, 4), (1, 4, 4), (1, 4, 4))
    ours = attnops.attend(query, key, value, pattern=attnops.Causal())
    torch.testing.assert_close(ours, F.scaled_dot_product_attention(query, key, value))
    torch.testing.assert_close(F.scaled_dot_product_attention(query, key, value, is_causal=True), value[:, :1])


class Projected(nn.Module):
    """nn.MultiheadAttention's weights in plain projections around `attend`."""

    def __init__(self, theirs: nn.MultiheadAttention, backend: str) -> None:
        super().__init__()
        self.heads, self.backend = theirs.num_heads, backend
        width = theirs.embed_dim
        weights = (
            theirs.in_proj_weight.split(width)
            if theirs.in_proj_weight is not None
            else (theirs.q_proj_weight, theirs.k_proj_weight, theirs.v_proj_weight)
        )
        offsets = [None] * 3 if theirs.in_proj_bias is None else theirs.in_proj_bias.split(width)
        self.weights, self.offsets, self.out = weights, offsets, theirs.out_proj

    def forward(self, query: Tensor, key: Tensor, value: Tensor, **arguments: Any) -> attnops.AttentionOutput:
        projected = [
            F.linear(x, weight, offset).unflatten(-1, (self.heads, -1)).transpose(-3, -2)
            for x, weight, offset in zip((query, key, value), self.weights, self.offsets, strict=True)
        ]
        result = attnops.attend(*projected, backend=self.backend, **arguments)
        if isinstance(result, Tensor):
            result = attnops.AttentionOutput(result)
        return attnops.AttentionOutput(self.out(result.out.transpose(-3, -2).flatten(-2)), weights=result.weights)


@pytest.mark.parametrize("offset", [True, False])
@pytest.mark.parametrize("other_widths", [False, True])
@pytest.mark.parametrize("kind", ["plain", "padding", "bool mask", "float mask", "causal", "heads of a mask"])
@pytest.mark.parametrize("backend", [name for name in BACKENDS if name != "flex"])
def test_multihead_attention(backend: str, kind: str, other_widths: bool, offset: bool) -> None:
    """Output, weights, and gradients of every parameter and input; True means "may not attend" there, and may here."""
    batch, heads, width, queries, keys = 2, 4, 16, 5, 5 if kind == "causal" else 7
    widths = {"kdim": 6, "vdim": 10} if other_widths else {}
    theirs = nn.MultiheadAttention(width, heads, bias=offset, batch_first=True, dtype=torch.float64, **widths)
    if offset:
        nn.init.normal_(theirs.in_proj_bias)
        nn.init.normal_(theirs.out_proj.bias)
    shapes = (
        (batch, queries, width),
        (batch, keys, widths.get("kdim", width)),
        (batch, keys, widths.get("vdim", width)),
    )
    inputs = [x.requires_grad_() for x in vectors(torch.float64, *shapes)]
    random = torch.Generator().manual_seed(3)
    padded = torch.zeros(batch, keys, dtype=torch.bool)
    padded[0, -2:] = padded[1, -1:] = True
    forbidden = torch.rand(queries, keys, generator=random) < 0.4
    forbidden[:, 0] = False
    added = torch.randn(batch * heads, queries, keys, generator=random, dtype=torch.float64)
    arguments: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "plain": ({}, {}),
        "padding": ({"key_padding_mask": padded}, {"pattern": attnops.Padding(~padded)}),
        "bool mask": ({"attn_mask": forbidden}, {"pattern": ~forbidden}),
        "float mask": ({"attn_mask": added[0]}, {"bias": added[0]}),
        "causal": (
            {"attn_mask": torch.ones(queries, keys).triu(1).bool(), "is_causal": True}, {"pattern": attnops.Causal()},
        ),
        "heads of a mask": ({"attn_mask": added}, {"bias": added.view(batch, heads, queries, keys)}),
    }  # fmt: skip
    mine, yours = arguments[kind][1], arguments[kind][0]
    want, weights = theirs(*inputs, need_weights=True, average_attn_weights=False, **yours)
    leaves = [*inputs, *theirs.parameters()]
    cotangent = vectors(torch.float64, tuple(want.shape))[0]
    ours = Projected(theirs, backend)
    got = ours(*inputs, **mine)
    torch.testing.assert_close(got.out, want, rtol=1e-10, atol=1e-12)
    mine_grads, their_grads = (
        torch.autograd.grad(out, leaves, cotangent, retain_graph=True) for out in (got.out, want)
    )
    for got_grad, want_grad in zip(mine_grads, their_grads, strict=True):
        torch.testing.assert_close(got_grad, want_grad, rtol=1e-9, atol=1e-11)
    if backend == "reference":
        torch.testing.assert_close(ours(*inputs, return_weights=True, **mine).weights, weights, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("backend", [name for name in BACKENDS if name != "flex"])
def test_a_row_of_padding_alone_is_zeros_where_multihead_attention_gives_nan(backend: str) -> None:
    theirs = nn.MultiheadAttention(8, 2, batch_first=True, dtype=torch.float64, bias=False)
    x = vectors(torch.float64, (1, 3, 8))[0]
    padded = torch.ones(1, 3, dtype=torch.bool)
    assert torch.isnan(theirs(x, x, x, key_padding_mask=padded)[0]).all()
    assert (Projected(theirs, backend)(x, x, x, pattern=attnops.Padding(~padded)).out == 0).all()
