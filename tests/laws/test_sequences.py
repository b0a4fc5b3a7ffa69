"""Laws of sequences: grouped heads, caches, packing, merging, and the order of operations."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import attnops
from attnops import Coords
from tests.laws.problems import BACKENDS, EDGES_ALONE, TRAINING, Problem, hold
from tests.laws.test_forbidden import close

pytestmark = pytest.mark.usefixtures("poison")
DENSE = [name for name in BACKENDS if name not in EDGES_ALONE]


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("backend", BACKENDS)
def test_grouped_heads_equal_repeated_ones(backend: str) -> None:
    """Query head h reads key head h // (H // Hkv); a shared key's gradient is the sum over its heads."""
    training = backend in TRAINING

    def law(problem: Problem) -> None:
        built = problem.build(grad=training)
        grouped = built.attend(backend)
        grads = built.gradients(grouped) if training else {}
        built = problem.build(grad=training)
        key, value = built.key, built.value
        built.key, built.value = (x.repeat_interleave(problem.group, -3) for x in (key, value))
        repeated = built.attend("reference")
        close(grouped.out, repeated.out, "out")
        for name, grad in (built.gradients(repeated) if training else {}).items():
            close(grads[name], grad, f"gradient of {name}", least=10.0)

    hold(backend, law, group=3, kv_heads=2, dtype=torch.float64)


@pytest.mark.parametrize("backend", BACKENDS)
def test_strides_change_nothing(backend: str) -> None:
    def law(problem: Problem) -> None:
        plain, strided = problem.with_(strided=False).build(), problem.with_(strided=True).build()
        assert torch.equal(plain.query, strided.query)
        close(strided.attend(backend).out, plain.attend(backend).out, "out")

    hold(backend, law, dtype=torch.float64)


@pytest.mark.parametrize("backend", BACKENDS)
def test_batch_rows_do_not_meet(backend: str) -> None:
    """One call over a batch equals a call for each row of it."""

    def law(problem: Problem) -> None:
        built = problem.build()
        together = built.attend(backend).out
        for row in itertools.product(*map(range, problem.batch)):
            alone = problem.build()
            alone.query, alone.key, alone.value = (x[row] for x in (alone.query, alone.key, alone.value))
            alone.coords = tuple(
                Coords(**{name: t[row] if t.ndim > 1 else t for name, t in side.data.items()}) for side in alone.coords
            )
            if isinstance(alone.bias, Tensor):
                full = (*problem.batch, problem.heads, *alone.bias.shape[-1 if alone.edges is not None else -2 :])
                alone.bias = alone.bias.expand(full)[row]
            close(together[row], alone.attend("reference").out, "out")

    patterns = ["causal", "window", "segment", ("&", "causal", "segment"), ("~", "window"), None]
    for pattern in patterns if backend != "flex" else patterns[:2]:
        hold(backend, law, batch=(2, 2), pattern=pattern, dtype=torch.float64)


# --------------------------------------------------------------------------------------------------- caches and packing
def rules() -> list[dict[str, Any]]:
    return [
        {"pattern": attnops.Causal()},
        {"pattern": attnops.Causal() & attnops.SlidingWindow(2), "bias": attnops.ALiBi(2)},
        {"pattern": attnops.Chunked(3) & attnops.Causal(), "bias": attnops.RelativeBias(2, 8, 6).double()},
        {"pattern": attnops.Causal(), "bias": attnops.Rotary(4)},
        {"pattern": attnops.Causal() & attnops.Dilated(2), "bias": attnops.RelativeKeys(2, 4, 2).double()},
        {"pattern": attnops.Causal(), "bias": attnops.Sink(2).double()},
    ]


@pytest.mark.parametrize("rule", range(6))
@pytest.mark.parametrize("backend", DENSE)
def test_decoding_with_a_cache_equals_the_whole_pass_at_every_split(backend: str, rule: int) -> None:
    """Positions are end-aligned, so nothing needs to be said."""
    n = 6
    query, key, value = normal(2, n, 4, seed=1), normal(2, n, 4, seed=2), normal(2, n, 4, seed=3)
    arguments = rules()[rule]
    if backend == "flex" and rule == 5:
        with pytest.raises(attnops.UnsupportedError, match="lse"):
            attnops.attend(query, key, value, backend=backend, **arguments)
        return
    for parameter in getattr(arguments.get("bias"), "parameters", list)():
        parameter.data.normal_()
    with torch.no_grad():
        whole = attnops.attend(query, key, value, backend="reference", **arguments)
        cuts = [cut for count in range(4) for cut in itertools.combinations(range(1, n), count)]
        for cut in [(3,)] if backend == "flex" else cuts:
            ends = [0, *cut, n]
            steps = [
                attnops.attend(query[:, a:b], key[:, :b], value[:, :b], backend=backend, **arguments)
                for a, b in itertools.pairwise(ends)
            ]
            close(torch.cat(steps, 1), whole, f"decoded in parts that end at {ends[1:]}")


@pytest.mark.parametrize("backend", BACKENDS)
def test_packed_documents_equal_separate_ones(backend: str) -> None:
    lengths = [3, 1, 4]
    total = sum(lengths)
    position = torch.cat([torch.arange(length) for length in lengths])
    segment = torch.repeat_interleave(torch.arange(3), torch.tensor(lengths))
    query, key, value = normal(2, total, 4, seed=1), normal(1, total, 4, seed=2), normal(1, total, 4, seed=3)
    bias = attnops.ALiBi(2) + attnops.Rotary(4)
    rule: attnops.Pattern = attnops.Causal()
    packed_rule: attnops.Pattern = attnops.SameSegment() & rule
    if backend in EDGES_ALONE:
        every = attnops.Edges(torch.cartesian_prod(torch.arange(total), torch.arange(total)).t(), total, total)
        packed_rule = every & packed_rule
    packed = attnops.attend(
        query,
        key,
        value,
        pattern=packed_rule,
        bias=bias,
        coords=Coords(position=position, segment=segment),
        backend=backend,
    )
    parts = zip(*(x.split(lengths, 1) for x in (query, key, value)), strict=True)
    separate = [attnops.attend(*part, pattern=rule, bias=bias, backend="reference") for part in parts]
    close(packed, torch.cat(separate, 1), "packed")


# ----------------------------------------------------------------------------------------------------------- merging
MERGING = [name for name in BACKENDS if name in ("reference", "blockwise", "scatter")]


@pytest.mark.parametrize("backend", MERGING)
@given(data=st.data())
def test_parts_of_the_keys_merge_to_the_whole(backend: str, data: st.DataObject) -> None:
    """Any split of the keys, empty parts included; forward and backward. A sink goes to one part."""
    n = data.draw(st.integers(1, 7))
    owner = torch.tensor(data.draw(st.lists(st.integers(0, 2), min_size=n, max_size=n)))
    sink = attnops.Sink(2).double()
    sink.weight.data.normal_()
    pattern = attnops.Causal() if data.draw(st.booleans()) else ~attnops.SlidingWindow(1, 1)
    inputs = [normal(2, 4, 3, seed=1), normal(2, n, 3, seed=2), normal(2, n, 3, seed=3)]
    query, key, value = (x.requires_grad_() for x in inputs)
    positions = torch.arange(n)
    ends = torch.arange(n - 4, n)

    def run(rows: Tensor, with_sink: bool) -> attnops.AttentionOutput:
        coords = (Coords(position=ends), Coords(position=positions[rows]))
        rule: attnops.Pattern = pattern
        if backend in EDGES_ALONE:
            grid = torch.cartesian_prod(torch.arange(len(rows)), torch.arange(4)).t()
            rule = attnops.Edges(grid, 4, len(rows)) & pattern
        result = attnops.attend(
            query, key[:, rows], value[:, rows], pattern=rule, bias=sink if with_sink else None, coords=coords,
            return_lse=True, backend=backend,
        )  # fmt: skip
        assert isinstance(result, attnops.AttentionOutput)
        return result

    whole = run(torch.arange(n), True)
    parts = [run((owner == part).nonzero().flatten(), part == 0) for part in range(3)]
    merged = attnops.merge(parts)
    if bool((owner == 0).any()) and _heard_in_every_row(run(torch.arange(n), False), parts[0]):
        close(merged.out, whole.out, "out")
        close(merged.lse, whole.lse, "lse")
        leaves = [query, key, value, sink.weight]
        one, other = (torch.autograd.grad(_loss(each), leaves, allow_unused=True) for each in (merged, whole))
        for got, want in zip(one, other, strict=True):
            close(got, want, "gradient")
    plain = attnops.merge([run((owner == part).nonzero().flatten(), False) for part in range(3)])
    close(plain.out, run(torch.arange(n), False).out, "out without a sink")


def _heard_in_every_row(whole: attnops.AttentionOutput, part: attnops.AttentionOutput) -> bool:
    """A row's lse counts the sink where the row has an allowed key: the part that carries it must have one, too."""
    return bool(((part.lse != float("-inf")) | (whole.lse == float("-inf"))).all())


def _loss(result: attnops.AttentionOutput) -> Tensor:
    lse = torch.where(torch.isfinite(result.lse), result.lse, 0)
    return (result.out * normal(*result.out.shape, seed=7)).sum() + (lse * normal(*lse.shape, seed=8)).sum()


# ------------------------------------------------------------------------------------------------ order of operations
@pytest.mark.parametrize("backend", BACKENDS)
def test_dot_scale_softcap_bias_pattern_softmax_sum_in_this_order(backend: str) -> None:
    """Against the formula, written out in float64."""
    refused = 0
    for softcap, scale in itertools.product([None, 0.7], [None, 2.0]):
        query, key, value = 3 * normal(2, 4, 3, seed=1), 3 * normal(2, 5, 3, seed=2), normal(2, 5, 3, seed=3)
        bias = normal(2, 4, 5, seed=4)
        allow = torch.rand(4, 5, generator=torch.Generator().manual_seed(5)) < 0.7
        logits = query @ key.transpose(-1, -2) * (3**-0.5 if scale is None else scale)
        logits = logits if softcap is None else softcap * torch.tanh(logits / softcap)
        logits = (logits + bias).masked_fill(~allow, float("-inf"))
        want = torch.softmax(logits, -1).nan_to_num(0.0) @ value
        pattern: attnops.Pattern = attnops.Mask(allow)
        if backend in EDGES_ALONE:
            row, column = torch.cartesian_prod(torch.arange(4), torch.arange(5)).t()
            pattern, bias = attnops.Edges(torch.stack([column, row]), 4, 5) & pattern, bias[:, row, column]
        score = None if softcap is None else attnops.DotProduct(softcap)
        try:
            got = attnops.attend(
                query, key, value, pattern=pattern, bias=bias, score=score, scale=scale, backend=backend
            )
        except attnops.UnsupportedError:
            refused += 1
            continue
        close(got, want, f"out with softcap {softcap}, scale {scale}")
    assert refused <= 2


DROPPING = [name for name in BACKENDS if name not in ("flex",)]


@pytest.mark.parametrize("backend", DROPPING)
def test_dropout_keeps_the_mean_and_follows_the_seed(backend: str) -> None:
    n, rate = 40, 0.25
    query, key = torch.zeros(1, n, 2), torch.zeros(1, n, 2)
    value = torch.eye(n).unsqueeze(0)
    pattern = None
    if backend in EDGES_ALONE:
        pattern = attnops.Edges(torch.cartesian_prod(torch.arange(n), torch.arange(n)).t(), n, n)

    def run(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return attnops.attend(query, key, value, pattern=pattern, dropout=rate, backend=backend)[0]

    weights = run(0)
    kept = weights > 0
    assert torch.allclose(weights[kept], torch.tensor(1 / n / (1 - rate)))
    assert abs(float(kept.float().mean()) - (1 - rate)) < 0.05  # five standard deviations of 1600 draws
    assert torch.equal(run(0), weights) and not torch.equal(run(1), weights)


@pytest.mark.parametrize("backend", [name for name in TRAINING if name != "sdpa"] + ["sdpa"])
def test_dropout_is_the_same_in_the_backward(backend: str) -> None:
    """The value's gradient is the transpose of the very weights that made the output."""
    n = 12
    query, key = normal(1, n, 4, seed=1), normal(1, n, 4, seed=2)
    value = torch.eye(n, dtype=torch.float64).unsqueeze(0).requires_grad_()
    pattern = attnops.Causal()
    if backend in EDGES_ALONE:
        pattern = attnops.Edges(torch.cartesian_prod(torch.arange(n), torch.arange(n)).t(), n, n) & pattern
    out = attnops.attend(query, key, value, pattern=pattern, dropout=0.5, backend=backend)
    (grad,) = torch.autograd.grad(out, value, torch.eye(n, dtype=torch.float64).unsqueeze(0))
    close(grad.transpose(-1, -2), out.detach(), "weights")
