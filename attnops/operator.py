"""The operator: check the arguments, plan, run."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attnops.arguments import Arguments, read_arguments
from attnops.backends import BACKENDS
from attnops.biases.base import Bias
from attnops.checks import has_memory, require_positive
from attnops.coords import Coords, is_traced, is_transformed
from attnops.patterns.base import Pattern
from attnops.patterns.intervals import Causal
from attnops.planner import DEFAULT_BUDGET, Candidate, Plan, alternative, choose, collector, rank
from attnops.problem import Call, NotFiniteError, Problem, Result, UnsupportedError
from attnops.scores.base import Score
from attnops.states import AttentionOutput

_ranked: dict[Problem, tuple[Candidate, ...]] = {}
_met: dict[tuple[object, ...], tuple[tuple[Any, ...], str, tuple[Candidate, ...]]] = {}  # what _signature determines


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    pattern: Pattern | Tensor | None = None,
    bias: Bias | Pattern | Tensor | None = None,
    score: Score | None = None,
    scale: float | None = None,
    coords: Coords | tuple[Coords, Coords] | None = None,
    dropout: float = 0.0,
    return_lse: bool = False,
    return_weights: bool = False,
    backend: str | Plan = "auto",
) -> Tensor | AttentionOutput:
    """Attention over the pairs that a pattern allows, with a prior on each.

        logits_ij = score(q_i, k_j) + b_ij          (i, j) allowed by the pattern
        out_i     = Σ_j softmax_j(logits_ij) v_j

    In order: dot, scale, softcap, bias, pattern, softmax, dropout, weighted sum. A query that no key is allowed for
    gives zeros, weights 0, lse -inf and exactly zero gradient.

    Args:
        query: `[*B, H, Nq, D]`, any strides, no batch allowed.
        key: `[*B, Hkv, Nk, D]`; query head h reads key head `h // (H // Hkv)`.
        value: `[*B, Hkv, Nk, Dv]`.
        pattern: who may attend whom; None for every pair; a bool tensor is a mask, True = may attend.
        bias: what is preferred; a tensor `[*B, H, Nq, Nk]` (over `Edges`: `[*B, H, E]`), broadcastable, is added to the
            logits.
        score: how similarity is computed; None for the dot product.
        scale: of the dot product alone; None for 1/√D.
        coords: data that tokens carry; one for both sides, or a pair (queries, keys).
        dropout: rate on the weights; pass 0 in evaluation.
        return_lse, return_weights: ask for an `AttentionOutput` with them. `lse [*B, H, Nq]` is float32 at least;
            `weights` (after dropout) are `[*B, H, Nq, Nk]`, or `[*B, H, E]` in the caller's order over `Edges`.
        backend: "auto", a backend's name, which then runs or raises, or a `Plan`.

    Returns:
        `[*B, H, Nq, Dv]` in the query's dtype, or an `AttentionOutput`.

    Raises:
        ValueError, TypeError: a bad argument, by name.
        UnsupportedError: the named backend refuses, with its reasons and the best alternative.

    Source: Vaswani et al. 2017, arXiv:1706.03762.

    Example:
        >>> import torch, attnops
        >>> q, k, v = torch.randn(3, 2, 8, 16, 64)                     # [B, H, N, D]
        >>> attnops.attend(q, k, v, pattern=attnops.Causal(), bias=attnops.ALiBi(8)).shape
        torch.Size([2, 8, 16, 64])
    """
    if not isinstance(backend, str | Plan):
        raise TypeError(f"backend is {type(backend).__name__}; it must be a name or a Plan")
    signature = None
    asks_nothing = type(dropout) is float and dropout == 0.0 and return_lse is False and return_weights is False
    if bias is None and score is None and coords is None and asks_nothing and backend == "auto":
        signature = _signature(query, key, value, pattern, scale)
        if signature in _met:
            read, name, candidates = _met[signature]
            arguments = Arguments(query, key, value, *read)
            return _deliver(arguments, _run_first(_prepare(arguments, 0.0), name, candidates, True), False, False)
    arguments = read_arguments(
        query,
        key,
        value,
        pattern,
        bias,
        score,
        scale,
        coords,
        dropout,
        return_lse,
        return_weights,
        DEFAULT_BUDGET,
        _asks_for_duplicates(backend),
    )
    problem = arguments.problem
    if isinstance(backend, Plan):
        if backend.problem != problem._replace(budget=backend.problem.budget):
            raise ValueError(f"backend is a plan for another problem: {_difference(backend.problem, problem)}")
        problem = arguments.problem = backend.problem
        name, candidates = backend.backend, backend.candidates
    else:
        name, candidates = choose(problem, _candidates(problem), backend)
    if signature is not None:
        if len(_met) >= 4096:
            _met.clear()
        a = arguments
        read = (a.pattern, None, (), a.score, a.scale, a.coords, a.batch_shape, a.dtype, problem)
        _met[signature] = read, name, candidates
    plans = None if problem.compiling else collector()
    if plans is not None:
        plans.append(_plan(arguments, name, candidates))
    result = _run(arguments, name, candidates, dropout, auto=backend == "auto")
    return _deliver(arguments, result, return_lse, return_weights)


def plan(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    pattern: Pattern | Tensor | None = None,
    bias: Bias | Pattern | Tensor | None = None,
    score: Score | None = None,
    scale: float | None = None,
    coords: Coords | tuple[Coords, Coords] | None = None,
    dropout: float = 0.0,
    return_lse: bool = False,
    return_weights: bool = False,
    backend: str | Plan = "auto",
    budget: int = DEFAULT_BUDGET,
) -> Plan:
    """The plan that `attend` would follow with these arguments, without running; `str(plan)` is a table to read.

    Args:
        budget: bytes that `auto` lets a backend allocate above inputs and output.

    Raises:
        UnsupportedError: the named backend refuses, or every backend does.

    Example:
        >>> import torch, attnops
        >>> x = torch.randn(8, 128, 64)
        >>> plan = attnops.plan(x, x, x, pattern=attnops.SlidingWindow(16))
        >>> [candidate.name for candidate in plan.candidates if "edge list" in " ".join(candidate.refusals)]
        ['scatter']
    """
    require_positive(budget=budget)
    if isinstance(backend, Plan):
        backend = backend.backend
    arguments = read_arguments(
        query,
        key,
        value,
        pattern,
        bias,
        score,
        scale,
        coords,
        dropout,
        return_lse,
        return_weights,
        budget,
        _asks_for_duplicates(backend),
    )
    name, candidates = choose(arguments.problem, rank(arguments.problem, BACKENDS), backend)
    return _plan(arguments, name, candidates)


def available_backends() -> dict[str, str | None]:
    """Each backend's name, with None where it can run on this machine, or the reason in words why it cannot.

    Example:
        >>> import attnops
        >>> attnops.available_backends()["reference"] is None
        True
    """
    return {backend.name: backend.unavailable() for backend in BACKENDS}


# ----------------------------------------------------------------------------------------------- planning and running


def _signature(
    query: Tensor, key: Tensor, value: Tensor, pattern: Pattern | Tensor | None, scale: float | None
) -> tuple[object, ...] | None:
    """What alone decides the checks and the plan of a plain call, as in decoding; None where anything else could.

    Plain: tensors and nothing that stands for them, no gradient, autocast, tracer, transform or collector of plans.
    """
    if is_traced() or not type(query) is type(key) is type(value) is Tensor:
        return None
    if (pattern is not None and type(pattern) is not Causal) or (scale is not None and type(scale) is not float):
        return None
    device = query.device
    if torch.is_grad_enabled() or device.type == "meta" or is_transformed(device.type) or collector() is not None:
        return None
    if any(x.layout != torch.strided or not has_memory(x) for x in (query, key, value)):
        return None
    return (
        (query.shape, query.dtype, device, query.layout),
        (key.shape, key.dtype, key.device, key.layout),
        (value.shape, value.dtype, value.device, value.layout),
        pattern is None,
        scale,
    )


def _candidates(problem: Problem) -> tuple[Candidate, ...]:
    if problem.compiling:
        return rank(problem, BACKENDS)
    candidates = _ranked.get(problem)
    if candidates is None:
        if len(_ranked) >= 4096:
            _ranked.clear()
        candidates = _ranked[problem] = rank(problem, BACKENDS)
    return candidates


def _asks_for_duplicates(backend: str | Plan) -> bool:
    """Whether to look for duplicate edges: not unless a backend is named that cannot take them."""
    if isinstance(backend, Plan):
        return backend.problem.unique_edges is not None
    return backend not in ("auto", "native", "scatter", "reference")


def _plan(arguments: Arguments, name: str, candidates: tuple[Candidate, ...]) -> Plan:
    a = arguments
    terms = [str(term) for term in a.bias.terms] if a.bias is not None else []
    bias = " + ".join(terms + ["Sink"] * len(a.sinks)) or "none"
    description = f"pattern    {a.pattern}\nbias       {bias}\nscore      {a.score}"
    return Plan(a.problem, name, candidates, description, a.pattern, a.coords, a.batch_shape, a.query.device)


def _run(arguments: Arguments, name: str, candidates: tuple[Candidate, ...], dropout: float, auto: bool) -> Result:
    """Run without autocast: the vectors are already in its dtype, and positions and priors must stay in theirs."""
    device = arguments.query.device.type
    if device == "meta" or not torch.is_autocast_enabled(device):
        return _run_first(_prepare(arguments, dropout), name, candidates, auto)
    with torch.autocast(device, enabled=False):
        return _run_first(_prepare(arguments, dropout), name, candidates, auto)


def _prepare(arguments: Arguments, dropout: float) -> Call:
    """The call as backends see it: flat batch, the bias bound, the vectors rotated."""
    a, p = arguments, arguments.problem
    query, key, value = a.query, a.key, a.value
    if len(a.batch_shape) != 1:
        query, key, value = (x.reshape(p.batch, *x.shape[-3:]) for x in (query, key, value))
    bias = a.bias
    if bias is not None and bias.binds:
        bias = bias.bind(query, key)
    if bias is not None and bias.rotates:
        sides = (
            a.coords[0].with_position(p.num_queries, query.device),
            a.coords[1].with_position(p.num_keys, query.device),
        )
        query, key = bias.rotate(query, key, sides)
    bias = bias if bias is not None and bias.adds else None
    return Call(query, key, value, a.pattern, bias, a.score, a.scale, a.coords, dropout, a.batch_shape, p)


def _run_first(call: Call, name: str, candidates: tuple[Candidate, ...], auto: bool) -> Result:
    """The planned backend; under `auto`, the next candidate where it meets garbage that it cannot keep apart."""
    if call.problem.pairs == 0 or call.problem.num_edges == 0:
        return _nothing(call)
    others = [c.name for c in candidates if c.name != name and not c.refusals]
    for each in [name, *others] if auto else [name]:
        backend = next(backend for backend in BACKENDS if backend.name == each)
        if call.problem.compiling:
            return backend.run(call)
        try:
            return backend.run(call)
        except NotFiniteError as error:
            refusal = error
    safe = [c.name for c in candidates if c.name in others and not c.condition]
    raise UnsupportedError(f"{refusal}; {alternative(safe[0] if safe else None)}")


def _nothing(call: Call) -> Result:
    """No pair at all: zeros that gradients flow through, as zeros."""
    query, key, value = call.query, call.key, call.value
    zero = query[..., :0].sum() + key[..., :0].sum() + value[..., :0].sum()
    shape = query.shape[:-1]
    edges = call.pattern.edges
    columns = key.shape[2] if edges is None else None
    weights = query.new_zeros(*shape, columns) if columns is not None else query.new_zeros(*shape[:2], edges.num_edges)  # type: ignore[union-attr]
    lse = torch.full(shape, float("-inf"), dtype=call.compute_dtype, device=query.device)
    return Result(query.new_zeros(*shape, value.shape[-1]) + zero, lse, weights.to(call.compute_dtype))


def _deliver(arguments: Arguments, result: Result, return_lse: bool, return_weights: bool) -> Tensor | AttentionOutput:
    out, lse, weights = result
    for sink in arguments.sinks:
        assert lse is not None
        edges = arguments.pattern.edges
        out, lse, weights = _with_sink(out, lse, weights, sink, None if edges is None else edges.target)
    shape = arguments.batch_shape
    out = (out if len(shape) == 1 else out.reshape(*shape, *out.shape[1:])).to(arguments.dtype)
    if not (return_lse or return_weights):
        return out
    return AttentionOutput(
        out,
        lse.reshape(*shape, *lse.shape[1:]) if return_lse and lse is not None else None,
        weights.reshape(*shape, *weights.shape[1:]).to(arguments.dtype)
        if return_weights and weights is not None
        else None,
    )


def _with_sink(
    out: Tensor, lse: Tensor, weights: Tensor | None, sink: Tensor, target: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """One more logit in the denominator, with no value, in the rows that may attend some key."""
    alive = torch.isfinite(lse)  # not a row that hears nobody, nor one that hears a NaN
    safe = torch.where(alive, lse, 0)
    logit = sink.to(lse.dtype).view(1, -1, 1)
    share = torch.sigmoid(safe - logit)
    out = (out * share.unsqueeze(-1)).to(out.dtype)
    if weights is not None:
        weights = weights * (share.unsqueeze(-1) if target is None else share[:, :, target])
    return out, torch.where(alive, torch.logaddexp(safe, logit.expand_as(safe)), lse), weights


def _difference(planned: Problem, given: Problem) -> str:
    parts = [
        f"{name} was {old} when planned and is {new} now"
        for name, old, new in zip(Problem._fields, planned, given, strict=True)
        if old != new and name != "budget"
    ]
    return "; ".join(parts)
