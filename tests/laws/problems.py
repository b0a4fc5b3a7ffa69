"""Random problems for the laws: a specification that hypothesis draws, and its tensors in any dtype from one seed."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import attnops
from attnops.coords import resolve_coords
from attnops.pairs import Pairs

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
_ONLY = os.environ.get("ATTNOPS_TEST_BACKEND")
BACKENDS = [
    name for name, reason in attnops.available_backends().items() if reason is None and _ONLY in (None, "", name)
]
EDGES_ALONE = ("scatter", "triton")  # backends that run edge lists and nothing else
TRAINING = [name for name in BACKENDS if name != "flex"]  # on a CPU flex runs forward alone

_SETTINGS: dict[str, Any] = {
    "flex": {"max_examples": 4, "phases": (Phase.reuse, Phase.generate)}
}  # torch traces each anew

LEAVES = ("causal", "window", "dilated", "chunked", "prefix", "global", "segment", "padding", "real", "mask", "blocks")
BIASES = ("alibi", "t5", "shaw", "type", "time", "rotary", "sink", "custom")
EDGE_BIASES = ("attr", "edge type", "prior", "distance")


class Crossing(attnops.Bias):
    """A bias of a user's own: a learned table a head, over a coord of both sides."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.table = nn.Parameter(torch.zeros(heads, 3))

    def forward(self, pairs: attnops.Pairs) -> Tensor:
        return self.table[pairs.head, pairs.query.type] * (pairs.key.type + 1)


@dataclass(frozen=True)
class Problem:
    """What is drawn; `build(dtype)` gives `attend`'s arguments in that dtype, from numbers that `self.dtype` holds."""

    seed: int = 0
    dtype: torch.dtype = torch.float64
    batch: tuple[int, ...] = ()
    kv_heads: int = 1
    group: int = 1
    num_queries: int = 4
    num_keys: int = 5
    dim: int = 4
    value_dim: int = 4
    pattern: Any = None  # None, a leaf's name, or ("&" | "|" | "~", part, …)
    num_edges: int | None = None  # None: no edge list
    duplicates: bool = False
    biases: tuple[str, ...] = ()  # or one tensor: ("tensor",)
    score: str = "dot"
    scale: float | None = None
    positions: str = "default"  # or "integers", "times"
    strided: bool = False
    lse: bool = False

    @property
    def heads(self) -> int:
        return self.kv_heads * self.group

    def with_(self, **changes: Any) -> Problem:
        return replace(self, **changes)

    def build(self, dtype: torch.dtype | None = None, grad: bool = False) -> Built:
        return Built(self, self.dtype if dtype is None else dtype, grad)

    def random(self, name: str) -> torch.Generator:
        return torch.Generator().manual_seed(self.seed * 1009 + sum(map(ord, name)))

    def real(self, name: str, *shape: int) -> Tensor:
        """Numbers that the problem's dtype holds, in float64."""
        return torch.randn(*shape, generator=self.random(name), dtype=torch.float64).to(self.dtype).double()

    def integers(self, name: str, high: int, *shape: int) -> Tensor:
        return torch.randint(0, high, shape, generator=self.random(name))

    def chance(self, name: str, share: float, *shape: int) -> Tensor:
        return torch.rand(*shape, generator=self.random(name)) < share


class Built:
    """The arguments of a problem in one dtype, and its leaves: all that a gradient may be asked of."""

    def __init__(self, problem: Problem, dtype: torch.dtype, grad: bool) -> None:
        self.problem, self.dtype, self.grad = problem, dtype, grad
        self.wide = torch.float64 if dtype == torch.float64 else torch.float32
        self.leaves: dict[str, Tensor] = {}
        p = problem
        self.query = self._vectors("query", p.heads, p.num_queries, p.dim)
        self.key = self._vectors("key", p.kv_heads, p.num_keys, p.dim)
        self.value = self._vectors("value", p.kv_heads, p.num_keys, p.value_dim)
        self.coords = (self._coords("query", p.num_queries), self._coords("key", p.num_keys))
        self.edges = None if p.num_edges is None else self._edges(p.num_edges)
        pattern = None if p.pattern is None else self._pattern(p.pattern)
        if self.edges is not None:
            pattern = self.edges if pattern is None else self.edges & pattern
        self.pattern = pattern
        self.bias = self._tensor_bias() if p.biases == ("tensor",) else self._bias()
        self.score = self._score()

    @property
    def arguments(self) -> dict[str, Any]:
        p = self.problem
        scale = p.scale if p.score in ("dot", "softcap") else None
        return {
            "pattern": self.pattern, "bias": self.bias, "score": self.score, "coords": self.coords, "scale": scale,
        }  # fmt: skip

    def attend(self, backend: str = "reference", **changes: Any) -> attnops.AttentionOutput:
        """The result as an `AttentionOutput`, whatever was asked for."""
        arguments = {**self.arguments, "return_lse": self.problem.lse, **changes}
        result = attnops.attend(self.query, self.key, self.value, backend=backend, **arguments)
        return result if isinstance(result, attnops.AttentionOutput) else attnops.AttentionOutput(result)

    def gradients(self, result: attnops.AttentionOutput) -> dict[str, Tensor]:
        """Of every leaf, for a random cotangent of out and, where it was asked for, of lse; zeros where none flows."""
        p, loss = self.problem, result.out.sum() * 0
        loss = loss.to(self.wide)
        for name, tensor in (("out", result.out), ("lse", result.lse)):
            if tensor is not None:
                weigh = p.real(f"cotangent {name}", *tensor.shape).to(tensor.dtype)
                loss = loss + torch.where(torch.isfinite(tensor), tensor * weigh, 0).sum().to(self.wide)
        grads = torch.autograd.grad(loss, list(self.leaves.values()), allow_unused=True)
        return {
            name: torch.zeros_like(leaf) if grad is None else grad
            for (name, leaf), grad in zip(self.leaves.items(), grads, strict=True)
        }

    def allowed(self) -> Tensor:
        """`[B, H, Nq, Nk]`, B flat: whether some pair (i, j) may attend, by the pattern and by bias above -inf."""
        p = self.problem
        sides = resolve_coords(self.coords, p.batch, p.num_queries, p.num_keys, self.query.device)
        where = (sides, p.batch, p.heads)
        form: dict[str, Any] = {"dtype": self.wide, "device": self.query.device}
        with torch.no_grad():
            if self.edges is None:
                pairs = Pairs.grid(*where, slice(0, p.num_queries), slice(0, p.num_keys), **form)
                return self._possible(pairs, self.pattern)
            target, source = self.edges.target, self.edges.source
            pairs = Pairs.listed(*where, target, source, edge_data=self.edges.data, **form)
            listed = self._possible(pairs, self.pattern.filter)
            counts = torch.zeros(*listed.shape[:2], p.num_queries * p.num_keys, dtype=torch.long)
            counts = counts.index_add(2, target * p.num_keys + source, listed.long())
            return (counts > 0).view(*listed.shape[:2], p.num_queries, p.num_keys)

    def _possible(self, pairs: Pairs, pattern: attnops.Pattern | None) -> Tensor:
        allowed = torch.ones(pairs.shape, dtype=torch.bool)
        if pattern is not None:
            allowed = allowed & pattern.allows(pairs)
        bias = self.bias
        if isinstance(bias, Tensor):
            return allowed & ((pairs.read(bias) if self.edges is None else pairs.read_edges(bias)) != float("-inf"))
        if bias is not None:
            bias = bias.bind(*(x.reshape(math.prod(self.problem.batch), *x.shape[-3:]) for x in (self.query, self.key)))
            allowed = allowed & (bias(pairs) != float("-inf"))
        return allowed

    # ------------------------------------------------------------------------------------------------------- parts
    def _leaf(self, name: str, tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        self.leaves[name] = tensor.to(self.wide if dtype is None else dtype).requires_grad_(self.grad)
        return self.leaves[name]

    def _vectors(self, name: str, heads: int, count: int, width: int) -> Tensor:
        tensor = self._leaf(name, self.problem.real(name, *self.problem.batch, heads, count, width), self.dtype)
        if not self.problem.strided:
            return tensor
        rows = torch.cat([tensor, tensor], -1).transpose(-3, -2).contiguous()  # [N, H, 2D], as a graph's features lie
        return rows.transpose(-3, -2)[..., :width]

    def _coords(self, side: str, count: int) -> attnops.Coords:
        p = self.problem
        data = {"segment": p.integers(side + "segment", 2, count).sort().values}
        data["type"] = p.integers(side, 3, *p.batch, count)
        if p.positions == "integers":
            data["position"] = p.integers(side + "position", 8, *p.batch, count)
        if p.positions == "times":
            data["position"] = p.real(side + "position", count).abs().to(self.wide)
        if "time" in p.biases:
            data["time"] = self._leaf(f"coord {side}.time", p.real(side + "time", *p.batch, count))
        return attnops.Coords(**data)

    def _edges(self, most: int) -> attnops.Edges:
        p = self.problem
        drawn = torch.randperm(p.num_queries * p.num_keys, generator=p.random("edges"))[:most]
        if p.duplicates:
            drawn = torch.cat([drawn, drawn[:2]])
        columns, count = max(1, p.num_keys), len(drawn)
        data: dict[str, Tensor] = {}
        if "attr" in p.biases:
            data["attr"] = self._leaf("datum attr", p.real("attr", count, 3))
        if "edge type" in p.biases:
            data["type"] = p.integers("edge type", 2, count)
        if "prior" in p.biases:  # some are 0
            prior = p.real("prior", count).abs()
            data["prior"] = self._leaf("datum prior", prior.where(prior > 0.2, 0))
        if "distance" in p.biases:
            data["distance"] = p.integers("distance", 5, count) - 1
        return attnops.Edges(torch.stack([drawn % columns, drawn // columns]), p.num_queries, p.num_keys, **data)

    def _pattern(self, tree: Any) -> attnops.Pattern:
        if isinstance(tree, tuple):
            terms = [self._pattern(part) for part in tree[1:]]
            return {"~": lambda: ~terms[0], "&": lambda: terms[0] & terms[1], "|": lambda: terms[0] | terms[1]}[
                tree[0]
            ]()
        p = self.problem
        rows, columns = p.num_queries, p.num_keys
        shapes = [(rows, columns), (p.heads, 1, columns), (*p.batch, p.heads, rows, columns), (*p.batch, 1, rows, 1)]
        makers: dict[str, Callable[[], attnops.Pattern]] = {
            "full": attnops.Full,
            "causal": attnops.Causal,
            "window": lambda: attnops.SlidingWindow(p.seed % 3, p.seed % 2),
            "dilated": lambda: attnops.Dilated(2),
            "chunked": lambda: attnops.Chunked(3),
            "prefix": lambda: attnops.PrefixLM(2),
            "global": lambda: attnops.GlobalTokens([0] if max(rows, columns) else []),
            "segment": attnops.SameSegment,
            "padding": lambda: attnops.Padding(p.integers("lengths", columns + 1, *p.batch)),
            "real": lambda: attnops.Padding(p.chance("real", 0.7, *p.batch, columns)),
            "mask": lambda: attnops.Mask(p.chance("mask", 0.6, *shapes[p.seed % 4])),
            "blocks": lambda: attnops.BlockMask(
                p.chance("blocks", 0.6, (rows + 1) // 2, (columns + 1) // 2), block_size=2
            ),
        }
        return makers[tree]()

    def _tensor_bias(self) -> Tensor:
        p = self.problem
        pairs = (p.num_queries, p.num_keys) if self.edges is None else (self.edges.num_edges,)
        sizes = (*p.batch, p.heads, *pairs)
        shape = [1 if (p.seed >> axis) & 1 else size for axis, size in enumerate(sizes)]
        values = p.real("bias", *shape[p.seed % 2 :])
        values[p.chance("forbid", 0.2, *values.shape)] = float("-inf")
        return self._leaf("bias", values)

    def _bias(self) -> Any:
        p, total = self.problem, None
        makers: dict[str, Callable[[], attnops.Bias]] = {
            "alibi": lambda: attnops.ALiBi(p.heads),
            "t5": lambda: attnops.RelativeBias(p.heads, buckets=6, max_distance=5),
            "shaw": lambda: attnops.RelativeKeys(p.heads, p.dim, 2),
            "type": lambda: attnops.TypePrior(3, 3, p.heads),
            "time": lambda: attnops.TimeGap(p.heads),
            "rotary": lambda: attnops.Rotary(p.dim // 2 * 2) if p.dim > 1 else attnops.ALiBi(p.heads),
            "sink": lambda: attnops.Sink(p.heads),
            "custom": lambda: Crossing(p.heads),
            "attr": lambda: attnops.EdgeBias(3, p.heads),
            "edge type": lambda: attnops.EdgeTypePrior(2, p.heads),
            "prior": attnops.LogPrior,
            "distance": lambda: attnops.Distance(p.heads, 2),
        }
        for name in p.biases:
            term = self._learned(name, makers[name]())
            total = term if total is None else total + term
        return total

    def _score(self) -> attnops.Score | None:
        p = self.problem
        makers: dict[str, Callable[[], attnops.Score]] = {
            "softcap": lambda: attnops.DotProduct(softcap=1.5),
            "bahdanau": lambda: attnops.Additive(p.heads, p.dim),
            "gatv2": lambda: attnops.Additive(p.heads, p.dim, activation="leaky_relu"),
            "gat": lambda: attnops.SeparableAdditive(p.heads, p.dim),
        }
        return None if p.score == "dot" else self._learned(p.score, makers[p.score]())

    def _learned(self, name: str, module: Any) -> Any:
        """Parameters moved off their initial values, in `wide`, and listed among the leaves."""
        module.to(self.wide)
        for part, parameter in module.named_parameters():
            parameter.data.copy_(0.5 * self.problem.real(f"{name}.{part}", *parameter.shape))
            self.leaves[f"parameter {name}.{part}"] = parameter.requires_grad_(self.grad)
        return module


# ---------------------------------------------------------------------------------------------------------- drawing
def patterns() -> st.SearchStrategy[Any]:
    """Trees of `&`, `|` and `~` over leaves."""

    def grow(parts: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        pair = st.tuples(st.sampled_from(["&", "|"]), parts, parts)
        return pair | st.tuples(st.just("~"), parts)

    return st.recursive(st.sampled_from(LEAVES), grow, max_leaves=3)


@st.composite
def problems(draw: st.DrawFn, backend: str, **fixed: Any) -> Problem:
    """Problems inside what `backend` declares that it runs, whatever else they hold; `fixed` values are not drawn."""
    listed = backend in EDGES_ALONE or draw(st.integers(0, 3)) == 0
    if "num_edges" in fixed:
        listed = fixed["num_edges"] is not None
    dots = backend in ("sdpa", "flex")
    names = BIASES + (EDGE_BIASES if listed else ())
    if backend == "flex":  # a sink needs the lse
        names = tuple(name for name in names if name != "sink")
    drawn: dict[str, Any] = {
        "seed": draw(st.integers(0, 999)),
        "dtype": draw(st.sampled_from(DTYPES)),
        "batch": draw(st.sampled_from([(), (), (2,), (2,), (1, 3), (2, 2)])),
        "kv_heads": draw(st.integers(1, 2)),
        "group": draw(st.sampled_from([1, 1, 2, 3])),
        "num_queries": draw(st.integers(0, 7)),
        "num_keys": draw(st.integers(0, 9)),
        "dim": draw(st.sampled_from([1, 2, 4, 8])),
        "pattern": draw(st.none() | st.just("causal") | patterns()),
        "num_edges": draw(st.integers(0, 14)) if listed else None,
        "duplicates": listed and backend in ("reference", "native", *EDGES_ALONE) and draw(st.booleans()),
        "biases": draw(st.just(("tensor",)) | st.lists(st.sampled_from(names), max_size=2, unique=True).map(tuple)),
        "score": draw(st.sampled_from(["dot", "dot", "softcap"] if backend == "flex" else ["dot"])),
        "scale": draw(st.sampled_from([None, None, 0.3])),
        "positions": draw(st.sampled_from(["default", "default", "integers", "times"])),
        "strided": draw(st.booleans()),
        "lse": backend != "flex" and draw(st.booleans()),
    }
    if not dots:
        drawn["score"] = draw(st.sampled_from(["dot", "dot", "softcap", "bahdanau", "gatv2", "gat"]))
    if draw(st.integers(0, 3)) == 0:  # as many keys as queries, which kernels treat apart
        drawn["num_keys"] = drawn["num_queries"]
    same = drawn["lse"] and backend == "sdpa"
    drawn["value_dim"] = drawn["dim"] if same or draw(st.booleans()) else draw(st.sampled_from([1, 3, 8]))
    return Problem(**{**drawn, **fixed})


def hold(backend: str, law: Callable[[Problem], None], **fixed: Any) -> None:
    """Run a law over problems drawn for a backend; it may refuse some, saying why, but not more than half of them."""
    tally: Counter[str] = Counter()

    @settings(**_SETTINGS.get(backend, {}))
    @given(problems(backend, **fixed))
    def over_problems(problem: Problem) -> None:
        try:
            law(problem)
        except attnops.UnsupportedError as refusal:
            check_refusal(backend, refusal)
            tally["refused"] += 1
        else:
            tally["ran"] += 1

    over_problems()
    assert tally["ran"] >= tally["refused"], (
        f"{backend} refuses {tally['refused']} of {tally.total()} problems drawn for it"
    )


def check_refusal(backend: str, refusal: attnops.UnsupportedError) -> None:
    """A refusal names the backend, gives its reasons, and says what would run."""
    text = str(refusal)
    assert repr(backend) in text and ("alternative" in text or "no other backend" in text), text
    assert len(text) > len(repr(backend)) + 40, f"a refusal without a reason: {text}"
