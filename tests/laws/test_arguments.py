"""Law 9: a bad argument raises ValueError or TypeError that names it, what it was and what it must be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import attnops
from attnops import Coords, Edges

NAN = float("nan")


def vectors(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype)


Q, K = vectors(2, 4, 3, 8), vectors(2, 2, 5, 8)
LIST = torch.tensor([[0, 4, 2], [2, 0, 0]])


def run(query: Any = Q, key: Any = K, value: Any = None, **arguments: Any) -> Any:
    return attnops.attend(query, key, key if value is None else value, **arguments)


def edges(**data: torch.Tensor) -> Edges:
    return Edges(LIST, 3, 5, **data)


def freed(which: int, **arguments: Any) -> Any:
    """A call with vectors of which one's memory was given back, twice: the second may take a shorter way."""
    tensors = [vectors(3, 4, 5, 8)[1:] for _ in range(3)]
    attnops.attend(*tensors, **arguments)
    tensors[which].untyped_storage().resize_(0)
    return attnops.attend(*tensors, **arguments)


# name: what is called, the exception, what its message must hold
BAD: dict[str, tuple[Callable[[], Any], type[Exception], list[str]]] = {
    "query no tensor": (lambda: run([1.0]), TypeError, ["query", "list", "tensor"]),
    "key no tensor": (lambda: attnops.attend(Q, None, K), TypeError, ["key", "NoneType", "tensor"]),
    "query freed": (lambda: freed(0), ValueError, ["query", "no memory", "hold"]),
    "key freed": (lambda: freed(1, pattern=attnops.Causal()), ValueError, ["key", "no memory"]),
    "value freed": (lambda: freed(2, pattern=Edges(LIST, 5, 5)), ValueError, ["value", "no memory"]),
    "two axes": (lambda: run(vectors(3, 8)), ValueError, ["query", "[3, 8]", "[*B, H, N, D]"]),
    "integers": (lambda: run(Q.long()), TypeError, ["query", "int64", "floating"]),
    "complex": (lambda: run(Q.to(torch.complex64)), TypeError, ["query", "complex64"]),
    "sparse": (lambda: run(Q.to_sparse()), TypeError, ["query", "sparse", "strided"]),
    "another dtype": (lambda: run(Q, K.double()), TypeError, ["key", "float64", "float32"]),
    "value of another dtype": (lambda: run(Q, K, K.half()), TypeError, ["value", "float16", "float32"]),
    "another device": (lambda: run(Q, K.to("meta")), ValueError, ["key", "meta", "cpu"]),
    "another D": (lambda: run(Q, vectors(2, 2, 5, 4)), ValueError, ["key", "4", "8"]),
    "another batch": (lambda: run(Q, vectors(3, 2, 5, 8)), ValueError, ["key", "[3]", "[2]"]),
    "no batch": (lambda: run(Q, vectors(2, 5, 8)), ValueError, ["key", "[]", "[2]"]),
    "value of other keys": (lambda: run(Q, K, vectors(2, 2, 6, 8)), ValueError, ["value", "6", "5"]),
    "value of other heads": (lambda: run(Q, K, vectors(2, 4, 5, 8)), ValueError, ["value", "4", "2"]),
    "heads that do not divide": (lambda: run(Q, vectors(2, 3, 5, 8)), ValueError, ["3", "4", "heads"]),
    "no key heads": (lambda: run(Q, vectors(2, 0, 5, 8)), ValueError, ["0 heads", "4"]),
    "pattern of another kind": (lambda: run(pattern="causal"), TypeError, ["pattern", "str", "Pattern"]),
    "float mask": (lambda: run(pattern=torch.zeros(3, 5)), TypeError, ["mask", "float32", "bool"]),
    "mask that does not broadcast": (
        lambda: run(pattern=torch.ones(4, 5).bool()),
        ValueError,
        ["mask", "[4, 5]", "[2, 4, 3, 5]"],
    ),
    "mask of too many axes": (
        lambda: run(pattern=torch.ones(1, 2, 4, 3, 5).bool()),
        ValueError,
        ["mask", "[1, 2, 4, 3, 5]"],
    ),
    "bias of another kind": (lambda: run(bias=0.5), TypeError, ["bias", "float", "Bias"]),
    "integer bias": (lambda: run(bias=torch.zeros(3, 5).long()), TypeError, ["bias", "int64"]),
    "bool bias": (lambda: run(bias=torch.ones(3, 5).bool()), TypeError, ["bias", "bool", "pattern"]),
    "bias that does not broadcast": (
        lambda: run(bias=torch.zeros(3, 4)),
        ValueError,
        ["bias", "[3, 4]", "[2, 4, 3, 5]"],
    ),
    "bias not over edges": (lambda: run(pattern=edges(), bias=torch.zeros(3, 5)), ValueError, ["bias", "[3, 5]", "E"]),
    "bias on another device": (lambda: run(bias=torch.zeros(3, 5, device="meta")), ValueError, ["bias", "meta", "cpu"]),
    "bias of other heads": (lambda: run(bias=attnops.ALiBi(3)), ValueError, ["bias", "ALiBi", "3", "4"]),
    "bias of another dim": (lambda: run(bias=attnops.RelativeKeys(4, 6, 2)), ValueError, ["6", "8"]),
    "rotary of a larger dim": (lambda: run(bias=attnops.Rotary(16)), ValueError, ["16", "8"]),
    "score of another kind": (lambda: run(score="dot"), TypeError, ["score", "str", "Score"]),
    "score of other heads": (lambda: run(score=attnops.Additive(3, 8)), ValueError, ["score", "3", "4"]),
    "score of another dim": (lambda: run(score=attnops.Additive(4, 6)), ValueError, ["score", "6", "8"]),
    "scale with an additive score": (
        lambda: run(score=attnops.Additive(4, 8), scale=1.0),
        ValueError,
        ["scale", "1.0", "dot"],
    ),
    "softcap 0": (lambda: attnops.DotProduct(softcap=0.0), ValueError, ["softcap", "0.0", "positive"]),
    "unknown activation": (
        lambda: attnops.Additive(2, 4, activation="relu"),
        ValueError,
        ["activation", "relu", "tanh"],
    ),
    "dropout of 1": (lambda: run(dropout=1.0), ValueError, ["dropout", "1.0"]),
    "negative dropout": (lambda: run(dropout=-0.1), ValueError, ["dropout", "-0.1"]),
    "unknown backend": (lambda: run(backend="cuda"), ValueError, ["backend", "'cuda'", "reference"]),
    "backend of another kind": (lambda: run(backend=None), TypeError, ["backend", "NoneType", "Plan"]),
    "coords of another kind": (
        lambda: run(coords={"position": torch.arange(5)}),
        TypeError,
        ["coords", "dict", "Coords"],
    ),
    "one coords for two lengths": (
        lambda: run(coords=Coords(time=torch.arange(5))),
        ValueError,
        ["coords", "3", "5", "pair"],
    ),
    "coords of another length": (
        lambda: run(coords=(Coords(), Coords(time=torch.arange(4)))),
        ValueError,
        ["coords.time", "4", "5"],
    ),
    "coords of another batch": (
        lambda: run(coords=(Coords(), Coords(time=torch.zeros(3, 5)))),
        ValueError,
        ["coords.time", "[3]", "[2]"],
    ),
    "coords on another device": (
        lambda: run(coords=(Coords(), Coords(time=torch.zeros(5, device="meta")))),
        ValueError,
        ["coords.time", "meta", "cpu"],
    ),
    "lengths that differ inside coords": (
        lambda: Coords(a=torch.zeros(3), b=torch.zeros(4)),
        ValueError,
        ["coords.b", "4", "3"],
    ),
    "a NaN position": (lambda: Coords(position=torch.tensor([0.0, NAN])), ValueError, ["coords.position", "NaN"]),
    "a coord named index": (lambda: Coords(index=torch.arange(3)), ValueError, ["coords.index"]),
    "a coord that is a list": (lambda: Coords(time=[1, 2]), TypeError, ["coords.time", "list", "tensor"]),
    "a scalar coord": (lambda: Coords(time=torch.tensor(1.0)), ValueError, ["coords.time", "scalar"]),
    "a complex coord": (
        lambda: Coords(time=torch.zeros(2, dtype=torch.complex64)),
        TypeError,
        ["coords.time", "complex64"],
    ),
    "a coord that is missing": (lambda: run(bias=attnops.TimeGap(4)), ValueError, ["time"]),
    "segments that are missing": (lambda: run(pattern=attnops.SameSegment()), ValueError, ["segment"]),
    "edge data that are missing": (lambda: run(bias=attnops.EdgeBias(2, 4), pattern=edges()), ValueError, ["attr"]),
    "edge data without edges": (lambda: run(bias=attnops.LogPrior()), ValueError, ["prior"]),
    "edge data under a union": (
        lambda: run(bias=attnops.EdgeBias(2, 4), pattern=edges(attr=torch.zeros(3, 2)) | attnops.Causal()),
        ValueError,
        ["attr"],
    ),
    "float edge ends": (lambda: Edges(LIST.float(), 3, 5), TypeError, ["edge_index", "float32", "int64"]),
    "int16 edge ends": (lambda: Edges(LIST.to(torch.int16), 3, 5), TypeError, ["edge_index", "int16"]),
    "edge ends in three rows": (
        lambda: Edges(torch.zeros(3, 4).long(), 3, 5),
        ValueError,
        ["edge_index", "[3, 4]", "[2, E]"],
    ),
    "an end too large": (lambda: Edges(LIST, 3, 4), ValueError, ["edge_index", "4", "3"]),
    "a target too large": (lambda: Edges(LIST, 2, 5), ValueError, ["edge_index", "2", "1"]),
    "a negative end": (lambda: Edges(LIST - 1, 3, 5), ValueError, ["edge_index", "-1", "0"]),
    "a negative size": (lambda: Edges(LIST, -1, 5), ValueError, ["num_queries", "-1"]),
    "edge data of another length": (lambda: edges(attr=torch.zeros(4, 2)), ValueError, ["attr", "4", "3"]),
    "edge data that are a list": (lambda: edges(attr=[1, 2, 3]), TypeError, ["attr", "list", "tensor"]),
    "edges of other sizes": (lambda: run(pattern=Edges(LIST, 4, 5)), ValueError, ["Edges", "4", "3"]),
    "loops between two node sets": (lambda: edges().with_self_loops(), ValueError, ["self-loops", "3", "5"]),
    "loops without data": (
        lambda: Edges(LIST, 5, 5, prior=torch.ones(3)).with_self_loops(),
        ValueError,
        ["prior"],
    ),
    "no list to join": (lambda: Edges.cat([]), ValueError, ["lists", "empty"]),
    "a type out of range": (
        lambda: run(bias=attnops.EdgeTypePrior(2, 4), pattern=edges(type=torch.tensor([0, 1, 2]))),
        ValueError,
        ["type", "2"],
    ),
    "a negative type": (
        lambda: run(bias=attnops.EdgeTypePrior(2, 4), pattern=edges(type=torch.tensor([0, -1, 1]))),
        ValueError,
        ["type", "-1"],
    ),
    "a node type out of range": (
        lambda: run(
            bias=attnops.TypePrior(2, 3, 4),
            coords=(Coords(type=torch.tensor([0, 2, 1])), Coords(type=torch.arange(5) % 3)),
        ),
        ValueError,
        ["type", "2"],
    ),
    "types that are real": (
        lambda: run(bias=attnops.EdgeTypePrior(2, 4), pattern=edges(type=torch.zeros(3))),
        TypeError,
        ["type", "float32"],
    ),
    "a negative prior": (
        lambda: run(bias=attnops.LogPrior(), pattern=edges(prior=torch.tensor([1.0, -1, 0]))),
        ValueError,
        ["prior", "-1"],
    ),
    "a NaN prior": (
        lambda: run(bias=attnops.LogPrior(), pattern=edges(prior=torch.tensor([1.0, NAN, 0]))),
        ValueError,
        ["prior", "nan"],
    ),
    "a distance below -1": (
        lambda: run(bias=attnops.Distance(4, 3), pattern=edges(distance=torch.tensor([0, -2, 1]))),
        ValueError,
        ["distance", "-2"],
    ),
    "padding past the keys": (
        lambda: run(pattern=attnops.Padding(torch.tensor([5, 6]))),
        ValueError,
        ["key_lengths", "6", "5"],
    ),
    "negative padding": (lambda: attnops.Padding(torch.tensor([-1])), ValueError, ["key_lengths", "-1"]),
    "padding of another batch": (
        lambda: run(pattern=attnops.Padding(torch.tensor([1, 2, 3]))),
        ValueError,
        ["Padding", "[3]", "[2]"],
    ),
    "bool padding of another length": (
        lambda: run(pattern=attnops.Padding(torch.ones(2, 4).bool())),
        ValueError,
        ["Padding", "4", "5"],
    ),
    "real padding": (lambda: attnops.Padding(torch.tensor([1.0])), TypeError, ["key_lengths", "float32"]),
    "a negative window": (lambda: attnops.SlidingWindow(-1), ValueError, ["left", "-1"]),
    "a step of 0": (lambda: attnops.Dilated(0), ValueError, ["step", "0"]),
    "a chunk of 0": (lambda: attnops.Chunked(0), ValueError, ["size", "0"]),
    "a negative prefix": (lambda: attnops.PrefixLM(-1), ValueError, ["length", "-1"]),
    "a block mask of another length": (
        lambda: run(pattern=attnops.BlockMask(torch.ones(2, 2).bool(), 2)),
        ValueError,
        ["BlockMask", "[2, 2]", "[2, 3]"],
    ),
    "blocks that are not bool": (
        lambda: attnops.BlockMask(torch.ones(2, 2), 2),
        TypeError,
        ["blocks", "float32", "bool"],
    ),
    "a block size of 0": (lambda: attnops.BlockMask(torch.ones(2, 2).bool(), 0), ValueError, ["block_size", "0"]),
    "a global token out of range": (lambda: run(pattern=attnops.GlobalTokens([5])), ValueError, ["GlobalTokens", "5"]),
    "a negative global token": (lambda: attnops.GlobalTokens([-1]), ValueError, ["index", "-1"]),
    "real global tokens": (lambda: attnops.GlobalTokens(torch.tensor([0.0])), TypeError, ["index", "float32"]),
    "an odd rotary dim": (lambda: attnops.Rotary(7), ValueError, ["dim", "7", "even"]),
    "no heads": (lambda: attnops.ALiBi(0), ValueError, ["heads", "0"]),
    "merge of nothing": (lambda: attnops.merge([]), ValueError, ["parts", "empty"]),
    "merge without lse": (lambda: attnops.merge([attnops.AttentionOutput(Q)]), ValueError, ["lse"]),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments_are_named(name: str) -> None:
    call, kind, words = BAD[name]
    with pytest.raises(kind) as raised:
        call()
    assert type(raised.value) is kind  # not a subclass from deep inside
    for word in words:
        assert word in str(raised.value), f"{raised.value} does not say {word!r}"


def test_good_arguments_are_taken() -> None:
    """What the table spoils is right before it is spoilt."""
    assert run().shape == (2, 4, 3, 8)
    assert run(pattern=edges(), bias=torch.zeros(3)).shape == (2, 4, 3, 8)
    assert run(pattern=torch.ones(3, 5).bool(), bias=torch.zeros(4, 1, 5)).shape == (2, 4, 3, 8)
    assert run(score=attnops.Additive(4, 8), coords=(Coords(), Coords(time=torch.zeros(2, 5)))).shape == (2, 4, 3, 8)


@pytest.mark.parametrize("backend", [name for name, reason in attnops.available_backends().items() if reason is None])
def test_an_index_out_of_range_in_a_traced_call_reads_nothing_outside(backend: str) -> None:
    """Values cannot be checked there; a table row is clamped, so memory outside is never read."""
    bias = attnops.EdgeTypePrior(2, 2).requires_grad_(False)
    with torch.no_grad():
        bias.weight.copy_(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    x, ends = torch.randn(2, 3, 4), torch.tensor([[0, 1, 2], [0, 1, 0]])

    def step(kinds: torch.Tensor) -> torch.Tensor:
        return attnops.attend(x, x, x, pattern=Edges(ends, 3, 3, type=kinds), bias=bias, backend=backend)

    try:
        wild = torch.compile(step, fullgraph=True, backend="eager")(torch.tensor([7, -3, 1]))
    except Exception as error:
        assert "refuses" in str(error), error
        return
    assert torch.isfinite(wild).all()


@pytest.mark.parametrize(
    "build",
    [
        lambda: attnops.SlidingWindow("x"),
        lambda: attnops.SlidingWindow(1, None),
        lambda: attnops.SlidingWindow(10**30),
        lambda: attnops.Dilated(torch.tensor([True])),
        lambda: attnops.Dilated(float("inf")),
        lambda: attnops.Dilated(10**30),
        lambda: attnops.Chunked("x"),
        lambda: attnops.PrefixLM(None),
        lambda: attnops.GlobalTokens(3),
        lambda: attnops.GlobalTokens("x"),
        lambda: attnops.GlobalTokens([0.5]),
        lambda: attnops.BlockMask(torch.ones(2, 2).bool(), 3.5),
        lambda: attnops.BlockMask(torch.ones(2, 2).bool(), True),
        lambda: attnops.DotProduct("x"),
        lambda: attnops.DotProduct(torch.tensor([1.0])),
        lambda: attnops.Additive(-1, 4),
        lambda: attnops.Additive(2, None),
        lambda: attnops.SeparableAdditive(2, 4, negative_slope="x"),
        lambda: attnops.SeparableAdditive(2, 4, negative_slope=float("nan")),
        lambda: attnops.RelativeBias(2, bidirectional="x"),
        lambda: attnops.Rotary(4, interleaved="x"),
        lambda: attnops.Rotary.from_hf("x", 4),
        lambda: attnops.Rotary.from_hf({}, dim=float("nan")),
        lambda: attnops.RotaryScaling.from_hf([1]),
        lambda: attnops.RotaryScaling.longrope(None, [1.0], 4),
        lambda: attnops.Coords(position=torch.ones(3, dtype=torch.bool)),
        lambda: attnops.Coords(position=torch.ones(3).to_sparse()),
        lambda: attnops.Coords(time=torch.ones(3).to(torch.float8_e4m3fn)),
    ],
)
def test_constructors_name_what_they_refuse(build) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises((TypeError, ValueError), match=r"\bis\b.*must"):
        build()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("scale", "x"),
        ("scale", float("nan")),
        ("scale", float("inf")),
        ("scale", True),
        ("scale", torch.tensor(1.0)),
        ("dropout", "x"),
        ("dropout", torch.ones(2)),
        ("return_lse", [1]),
        ("return_weights", 1),
    ],
)
def test_numbers_and_flags_are_checked(name: str, value: object) -> None:
    x = torch.randn(2, 4, 8)
    with pytest.raises((TypeError, ValueError), match=f"{name} is .*must be"):
        attnops.attend(x, x, x, **{name: value})
