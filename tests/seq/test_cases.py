"""Faults that users of other libraries reported, here through a layer of attention and its caches."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attnops import ALiBi, Causal, Rotary, RotaryScaling, SlidingWindow
from attnops.seq import (
    Attention,
    Cache,
    Decoder,
    KVCache,
    LearnedPositions,
    PagedCache,
    RollingCache,
    TransformerConfig,
)
from attnops.seq.context import CAUSAL, read_context
from tests.cases.solving import Results, check

SOLUTIONS: dict[str, Callable[[Any, Callable[[], Cache]], Results]] = {}
CACHES: dict[str, Callable[[], Cache]] = {
    "full": KVCache,
    "rolling": lambda: RollingCache(100),
    "paged": lambda: PagedCache(16, 2),
}


def solves(case: str) -> Callable[[Callable[..., Results]], Callable[..., Results]]:
    def keep(solution: Callable[..., Results]) -> Callable[..., Results]:
        SOLUTIONS[case] = solution
        return solution

    return keep


def run(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cache: Cache | None = None,
    split: list[int] | None = None,
    mask: Tensor | None = None,
    segments: Tensor | None = None,
    **options: Any,
) -> Tensor:
    """A layer whose projections do nothing, on `[B, H, N, D]`, in steps of the given sizes."""
    batch, heads, length, dim = query.shape
    kv_heads = key.shape[1]
    layer = Attention((heads + 2 * kv_heads) * dim, heads, kv_heads, dim, **options).to(query.dtype).eval()
    nn.init.eye_(layer.qkv.weight)
    nn.init.eye_(layer.out.weight)
    x = torch.cat([part.transpose(1, 2).flatten(2) for part in (query, key, value)], -1)
    parts = []
    for start, end in itertools.pairwise(itertools.accumulate(split or [length], initial=0)):
        ids = torch.zeros(batch, end - start, dtype=torch.long)
        context = read_context(ids, None if mask is None else mask[:, start:end], cache, segments)
        with torch.set_grad_enabled(cache is None):
            parts.append(layer(x[:, start:end], context))
        if cache is not None:
            cache.commit()
    return torch.cat(parts, 1)[..., : heads * dim].unflatten(-1, (heads, dim)).transpose(1, 2)


def one_head(x: Tensor) -> Tensor:
    return x.view(1, 1, *x.shape)


@solves("B03")
def _(i: Any, make: Callable[[], Cache]) -> Results:
    results = [run(i["q"], i["k"], i["v"], make(), split, pattern=CAUSAL) for split in i["splits"]]
    for other in results[1:]:
        torch.testing.assert_close(other, results[0], rtol=1e-9, atol=1e-9)
    return {"out": results[-1]}


@solves("B05")
def _(i: Any, make: Callable[[], Cache]) -> Results:
    window = SlidingWindow(left=i["window"] - 1)
    outs = [run(i["q"], i["k"], i["v"], make(), split, pattern=window) for split in ([8], [1] * 8, [3, 5])]
    outs.append(run(i["q"], i["k"], i["v"], RollingCache(i["window"]), [1] * 8, pattern=CAUSAL))
    for other in outs[1:]:
        torch.testing.assert_close(other, outs[0], rtol=1e-9, atol=1e-9)
    left, right = i["left_right"]
    return {
        "out": outs[-1],
        "out_two_sided": run(i["q"], i["k"], i["v"], pattern=SlidingWindow(left, right)),
    }


@solves("B06")
def _(i: Any, make: Callable[[], Cache]) -> Results:
    results: Results = {}
    table = LearnedPositions(8, 4).double()
    table.load_state_dict({"weight": i["table"]})
    for side in ("left", "right"):
        x, mask = i[f"x_{side}"], i[f"mask_{side}"].unsqueeze(0)
        where = mask[0]
        position = read_context(torch.zeros(1, 6, dtype=torch.long), mask).position
        results["positions"] = position[mask].unsqueeze(0)
        cache = KVCache()
        read_context(torch.zeros(1, 6, dtype=torch.long), mask, cache)
        cache.commit()
        results["next_position"] = read_context(torch.zeros(1, 1, dtype=torch.long), None, cache).position[0, 0]
        h = one_head(x + table(position[0]))
        turned = {"rotary": Rotary(4)}
        slope = ALiBi(1)
        slope.slopes = lambda head, dtype: torch.full_like(head, i["slope"], dtype=dtype)  # type: ignore[method-assign]
        outs = {
            "out_absolute": run(h, h, h, make(), [6], mask, pattern=CAUSAL),
            "out_rope": run(one_head(x), one_head(x), one_head(x), make(), [2, 1, 3], mask, pattern=CAUSAL, **turned),
            "out_alibi": run(one_head(x), one_head(x), one_head(x), make(), [4, 2], mask, pattern=CAUSAL, bias=slope),
        }
        results.update({name: out[0, 0][where] for name, out in outs.items()})
    return results


@solves("B09")
def _(i: Any, make: Callable[[], Cache]) -> Results:
    laws = {
        "dynamic_ntk": RotaryScaling.dynamic_ntk(i["factor"], i["original_length"]),
        "longrope": RotaryScaling.longrope(
            i["short_factor"], i["long_factor"], i["original_length"], factor=i["factor"], attention_factor=1.0
        ),
    }
    q, k, v = (one_head(i[name]) for name in "qkv")
    results = {}
    for name, law in laws.items():
        rotary = Rotary(i["dim"], i["base"], law)
        results[f"step_{name}"] = run(q, k, v, make(), [1] * 8, pattern=CAUSAL, rotary=rotary)[0, 0]
    return results


@solves("B14")
def _(i: Any, make: Callable[[], Cache]) -> Results:
    out = run(i["q"][None], i["k"][None], i["v"][None], make(), i["steps"], pattern=CAUSAL, bias=ALiBi(i["heads"]))[0]
    last = run(
        i["q"][None], i["k"][None], i["v"][None], make(), [3, i["tail"]], pattern=CAUSAL, bias=ALiBi(i["heads"])
    )[0]
    return {"out": out, "out_last_2": last[:, -i["tail"] :]}


@solves("B39")
def _(i: Any, make: Callable[[], Cache]) -> Results:
    first, second = i["lengths"]
    segments = torch.tensor([[0] * first + [1] * second])
    q, k, v = (one_head(i[name]) for name in "qkv")
    k = k.clone().requires_grad_()
    out = run(q, k, v, segments=segments, pattern=CAUSAL, rotary=Rotary(4))
    (gradient,) = torch.autograd.grad(out[0, 0, first:].sum(), k, retain_graph=True)
    return {"out": out[0, 0].detach(), "grad_of_doc2_wrt_doc1_keys": gradient[0, 0, :first]}


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("case", SOLUTIONS)
def test_case(cases: ModuleType, case: str, cache: str) -> None:
    inputs, _ = cases.CASES[case]()
    check(cases, case, SOLUTIONS[case](inputs, CACHES[cache]))


@pytest.mark.parametrize("case", SOLUTIONS)
def test_the_reported_fault_fails_the_same_comparison(cases: ModuleType, case: str) -> None:
    inputs, _ = cases.CASES[case]()
    with pytest.raises(AssertionError):
        check(cases, case, cases.FAULTY[case](inputs))


def test_a_layer_alone_says_its_pattern() -> None:
    x = torch.randn(1, 2, 5, 4, dtype=torch.float64)
    torch.testing.assert_close(run(x, x, x, pattern=Causal()), run(x, x, x, KVCache(), [1] * 5, pattern=CAUSAL))


@pytest.mark.parametrize(
    "make", [KVCache, lambda: RollingCache(8), lambda: PagedCache(8, 4)], ids=["kv", "rolling", "paged"]
)
def test_a_deeper_model_than_the_one_that_filled_the_cache_is_an_error(make: Callable[[], Cache]) -> None:
    shallow, deep = (
        Decoder(TransformerConfig(vocab_size=20, dim=16, layers=layers, heads=2)).eval() for layers in (1, 2)
    )
    cache, ids = make(), torch.arange(4).view(1, 4)
    with torch.no_grad():
        shallow(ids, cache=cache)
        with pytest.raises(ValueError, match="another model"):
            deep(ids[:, :1], cache=cache)


def test_a_window_for_each_layer_names_them_all() -> None:
    model = Decoder(TransformerConfig(vocab_size=20, dim=16, layers=3, heads=2)).eval()
    with torch.no_grad(), pytest.raises(ValueError, match="window names 2 layers"):
        model(torch.arange(4).view(1, 4), cache=RollingCache([3, None]))


@pytest.mark.parametrize("tokens", [[1.5], "abc", [True]])
def test_a_promised_text_is_of_integers(tokens: Any) -> None:
    with pytest.raises(TypeError, match="must be an integer"):
        PagedCache(8, 4).add(tokens)


@pytest.mark.parametrize("position", ["rotary", "alibi", "learned"])
@pytest.mark.parametrize("shape", [(1, 0), (0, 4)], ids=["no token", "no row"])
def test_nothing_in_nothing_out(position: Any, shape: tuple[int, int]) -> None:
    model = Decoder(TransformerConfig(vocab_size=20, dim=16, layers=2, heads=2, position=position)).eval()
    assert model(torch.zeros(shape, dtype=torch.long)).shape == (*shape, 20)
