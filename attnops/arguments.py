"""The arguments of a call, checked and brought to one form."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd import forward_ad

from attnops.biases.base import Bias, BiasSum, TensorBias
from attnops.biases.sink import Sink
from attnops.checks import has_memory, require_flag, require_number
from attnops.coords import Coords, is_concrete, is_traced, resolve_coords
from attnops.patterns.base import Full, Pattern
from attnops.patterns.blocks import Mask
from attnops.patterns.intervals import Causal
from attnops.problem import Problem
from attnops.scores.base import Score
from attnops.scores.dot import DotProduct

_DOT = DotProduct()
_FULL = Full()


@dataclass
class Arguments:
    """The arguments of a call, checked and brought to one form: flat batch, patterns and biases apart."""

    query: Tensor
    key: Tensor
    value: Tensor
    pattern: Pattern
    bias: Bias | None
    sinks: tuple[Tensor, ...]
    score: Score
    scale: float
    coords: tuple[Coords, Coords]
    batch_shape: tuple[int, ...]
    dtype: torch.dtype  # of the output
    problem: Problem


def read_arguments(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    pattern: Pattern | Tensor | None,
    bias: Bias | Pattern | Tensor | None,
    score: Score | None,
    scale: float | None,
    coords: Coords | tuple[Coords, Coords] | None,
    dropout: float,
    return_lse: bool,
    return_weights: bool,
    budget: int,
    look_for_duplicates: bool,
) -> Arguments:
    """Check every argument of `attend`, and describe the problem.

    Args:
        look_for_duplicates: whether to sort an edge list to learn if it lists a pair twice, which dense backends ask.

    Raises:
        ValueError, TypeError: naming the argument, what it was and what it must be.
    """
    dtype = query.dtype if isinstance(query, Tensor) else None
    query, key, value = _check_vectors(query, key, value)
    assert dtype is not None
    batch_shape = tuple(query.shape[:-3])
    heads, num_queries, dim = query.shape[-3:]
    num_keys = key.shape[-2]
    require_number(dropout=dropout)
    if not 0.0 <= dropout < 1.0:
        raise ValueError(f"dropout is {dropout}; it must be at least 0 and below 1")
    require_flag(return_lse=return_lse, return_weights=return_weights)
    if score is None:
        score = _DOT
    elif not isinstance(score, Score):
        raise TypeError(f"score is {type(score).__name__}; it must be a Score or None")
    _require_initialised("score", score)
    dot = isinstance(score, DotProduct)
    if scale is not None and not dot:
        raise ValueError(f"scale is {scale}, but it scales the dot product alone; with {score} it must be None")
    if scale is not None:
        require_number(scale=scale)
    if not dot:
        score.check(dim)
        _check_heads("score", score, heads)
    pattern, bias, sinks, coords_pair = _read_priors(
        pattern, bias, coords, batch_shape, heads, num_queries, num_keys, query.device
    )
    compiling = torch.compiler.is_compiling()
    vmapped, differentiated = _transforms(compiling)
    edges = pattern.edges
    adds = bias is not None and bias.adds
    terms = bias.terms if bias is not None and adds else ()
    aligned = "position" not in coords_pair[0] and "position" not in coords_pair[1]
    problem = Problem(
        batch=math.prod(batch_shape),
        heads=heads,
        kv_heads=key.shape[-3],
        num_queries=num_queries,
        num_keys=num_keys,
        dim=dim,
        value_dim=value.shape[-1],
        dtype=query.dtype,
        device=query.device.type,
        forbids=adds or type(pattern) is not Full,
        causal=aligned and type(pattern) is Causal and not adds,
        blocks_known=_blocks_known(pattern),
        most_pairs=pattern.most_pairs(num_queries, num_keys, aligned),
        num_edges=None if edges is None else edges.num_edges,
        unique_edges=edges.unique if edges is not None and look_for_duplicates else None,
        biased=adds,
        bias_grad=torch.is_grad_enabled() and _learns(terms, score, coords_pair, pattern, query, key),
        coords_grad=torch.is_grad_enabled()
        and any(x.requires_grad for side in coords_pair for x in side.data.values()),
        own_bias=all(type(term).__module__.startswith("attnops.") for term in terms),
        score=_kind_of_score(score),
        fused_score=score.kernel is not None,
        sinks=bool(sinks),
        grad=torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad),
        dropout=dropout > 0,
        lse=return_lse or bool(sinks),
        weights=return_weights,
        compiling=compiling,
        traced=compiling or is_traced() or type(query) not in (Tensor, torch.nn.Parameter),
        vmapped=vmapped,
        differentiated=differentiated or (not compiling and _has_tangent(query, key, value)),
        budget=budget,
    )
    if scale is None:
        scale = 1 / math.sqrt(dim) if dim else 1.0
    return Arguments(query, key, value, pattern, bias, sinks, score, scale, coords_pair, batch_shape, dtype, problem)


def _check_vectors(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    vectors = {"query": query, "key": key, "value": value}
    for name, tensor in vectors.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name} is a {type(tensor).__name__}; it must be a tensor [*B, H, N, D]")
        if tensor.layout != torch.strided:
            raise TypeError(f"{name} is {tensor.layout}; it must be a strided tensor [*B, H, N, D]")
        if tensor.ndim < 3:
            raise ValueError(f"{name} has shape {list(tensor.shape)}; it must be [*B, H, N, D]")
        if not tensor.is_floating_point():
            raise TypeError(f"{name} is {tensor.dtype}; it must be a real floating dtype")
        if tensor.device != query.device:
            raise ValueError(f"{name} lies on {tensor.device}; it must lie on {query.device}, as query does")
        if tensor.numel() and is_concrete(tensor) and not has_memory(tensor):
            raise ValueError(f"{name} has no memory (its storage was resized to 0); it must hold its numbers")
    if query.device.type != "meta" and torch.is_autocast_enabled(query.device.type):
        lower = torch.get_autocast_dtype(query.device.type)
        query, key, value = (x if x.dtype == torch.float64 else x.to(lower) for x in (query, key, value))
    for name, tensor in (("key", key), ("value", value)):
        if tensor.dtype != query.dtype:
            raise TypeError(f"{name} is {tensor.dtype}; it must be {query.dtype}, as query is")
        if tensor.shape[:-3] != query.shape[:-3]:
            raise ValueError(
                f"{name} has batch shape {list(tensor.shape[:-3])}; it must be {list(query.shape[:-3])}, as query's"
            )
    if key.shape[-1] != query.shape[-1]:
        raise ValueError(f"key has D = {key.shape[-1]}; it must be {query.shape[-1]}, as query's")
    if value.shape[-3:-1] != key.shape[-3:-1]:
        raise ValueError(
            f"value has heads and keys {list(value.shape[-3:-1])}; they must be {list(key.shape[-3:-1])}, as key's"
        )
    heads, kv_heads = query.shape[-3], key.shape[-3]
    if heads != kv_heads and (kv_heads == 0 or heads % kv_heads != 0):
        raise ValueError(f"key has {kv_heads} heads; they must divide the {heads} heads of query")
    return query, key, value


def _read_priors(
    pattern: Pattern | Tensor | None,
    bias: Bias | Pattern | Tensor | None,
    coords: Coords | tuple[Coords, Coords] | None,
    batch_shape: tuple[int, ...],
    heads: int,
    num_queries: int,
    num_keys: int,
    device: torch.device,
) -> tuple[Pattern, Bias | None, tuple[Tensor, ...], tuple[Coords, Coords]]:
    if pattern is None:
        pattern = _FULL
    elif isinstance(pattern, Tensor):
        pattern = Mask(pattern)
    elif not isinstance(pattern, Pattern):
        raise TypeError(f"pattern is {type(pattern).__name__}; it must be a Pattern, a bool tensor or None")
    sinks: tuple[Tensor, ...] = ()
    if isinstance(bias, Pattern):
        pattern, bias = pattern & bias, None
    elif isinstance(bias, Bias):
        _require_initialised("bias", bias)
        added = bias.pattern
        if added is not None:
            assert isinstance(added, Pattern)
            pattern = pattern & added
        for term in bias.terms:
            _check_heads("bias", term, heads)
            if not (term.adds or term.rotates or term.binds or isinstance(term, Sink)):
                raise TypeError(f"bias {type(term).__name__} does nothing: it defines neither forward, rotate nor bind")
        if any(isinstance(term, Sink) for term in bias.terms):
            sinks = tuple(term.weight for term in bias.terms if isinstance(term, Sink))
            rest = tuple(term for term in bias.terms if not isinstance(term, Sink))
            bias = BiasSum(rest, None) if rest else None
    elif isinstance(bias, Tensor):
        bias = _tensor_bias(bias, pattern, batch_shape, heads, num_queries, num_keys, device)
    elif bias is not None:
        raise TypeError(f"bias is {type(bias).__name__}; it must be a Bias, a tensor or None")
    pattern.check(batch_shape, heads, num_queries, num_keys, device)
    coords_pair = resolve_coords(coords, batch_shape, num_queries, num_keys, device)
    if bias is not None and not torch.compiler.is_compiling():
        bias.check(coords_pair, pattern.edges._bounds if pattern.edges is not None else {})
    return pattern, bias, sinks, coords_pair


def _tensor_bias(
    values: Tensor,
    pattern: Pattern,
    batch_shape: tuple[int, ...],
    heads: int,
    num_queries: int,
    num_keys: int,
    device: torch.device,
) -> TensorBias:
    if not values.is_floating_point():
        raise TypeError(f"bias is {values.dtype}; it must be a real floating dtype (give a bool mask as pattern=)")
    if values.device != device:
        raise ValueError(f"bias lies on {values.device}; it must lie on {device}, as query does")
    edges = pattern.edges
    if edges is not None:
        want, legend = (*batch_shape, heads, edges.num_edges), "[*B, H, E]"
    else:
        want, legend = (*batch_shape, heads, num_queries, num_keys), "[*B, H, Nq, Nk]"
    sizes = tuple(values.shape)
    if len(sizes) > len(want) or any(a not in (1, b) for a, b in zip(reversed(sizes), reversed(want), strict=False)):
        raise ValueError(f"bias has shape {list(sizes)}; it must broadcast to {legend} = {list(want)}")
    return TensorBias(values, per_edge=edges is not None)


def _require_initialised(name: str, owner: Bias | Score) -> None:
    if "_parameters" not in owner.__dict__:
        raise TypeError(f"{name} {type(owner).__name__} was not initialised; its __init__ must call super().__init__()")


def _check_heads(name: str, owner: Bias | Score, heads: int) -> None:
    if owner.heads is not None and owner.heads != heads:
        raise ValueError(f"{name} {type(owner).__name__} has {owner.heads} heads; query has {heads}")


def _learns(
    terms: tuple[Bias, ...],
    score: Score,
    coords: tuple[Coords, Coords],
    pattern: Pattern,
    query: Tensor,
    key: Tensor,
) -> bool:
    """Whether a gradient may flow into bias or score: parameters and tensors, coords, edge data, bound vectors."""
    if not terms and type(score) is DotProduct:
        return False
    owners = (*terms, score)
    if any(parameter.requires_grad for owner in owners for parameter in owner.parameters()):
        return True
    if any(tensor.requires_grad for owner in owners for tensor in vars(owner).values() if isinstance(tensor, Tensor)):
        return True
    if (query.requires_grad or key.requires_grad) and any(term.binds for term in terms):
        return True
    if any(tensor.requires_grad for side in coords for tensor in side.data.values()):
        return True
    return any(
        tensor.requires_grad for leaf in pattern.leaves if leaf.edges is not None for tensor in leaf.edges.data.values()
    )


def _blocks_known(pattern: Pattern) -> bool:
    """Whether the pattern bounds the keys of a block of queries; a block of scattered edges reaches nearly all."""
    leaves = pattern.leaves
    bounded = any(type(leaf).key_ranges is not Pattern.key_ranges for leaf in leaves)
    return bounded and not any(leaf.edges is not None for leaf in leaves)


def _kind_of_score(score: Score) -> str:
    if not isinstance(score, DotProduct):
        return type(score).__name__
    return "dot" if score.softcap is None else "softcap"


def _has_tangent(*vectors: Tensor) -> bool:
    """Whether a forward-mode derivative is being taken: kernels would drop it in silence."""
    if forward_ad._current_level < 0:
        return False
    return any(forward_ad.unpack_dual(x).tangent is not None for x in vectors)  # type: ignore[no-untyped-call]


def _transforms(compiling: bool) -> tuple[bool, bool]:
    """Whether the call runs inside torch.func's vmap, and inside its derivatives."""
    if torch._C._functorch.maybe_current_level() is None:
        return False, False
    if compiling:  # the stack of transforms cannot be traced
        return True, False
    kinds = {interpreter.key() for interpreter in torch._C._functorch.get_interpreter_stack() or ()}
    vmap = torch._C._functorch.TransformType.Vmap
    return vmap in kinds, bool(kinds - {vmap})
