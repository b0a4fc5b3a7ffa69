"""What a planner sees of a call, what a backend is asked to run, and what a backend is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from attnops.biases.base import Bias
from attnops.coords import Coords
from attnops.pairs import Pairs
from attnops.patterns.base import Pattern
from attnops.scores.base import Score


class UnsupportedError(NotImplementedError):
    """A backend that was named, or every backend, cannot run this problem; the message gives the reasons in words."""


class NotFiniteError(UnsupportedError):
    """A backend met keys or values that are not finite where some query may attend them and another may not."""


class Problem(NamedTuple):
    """A call of `attend`, described by what is known before any tensor is read. Sizes in the legend B H Nq Nk D."""

    batch: int
    heads: int
    kv_heads: int
    num_queries: int
    num_keys: int
    dim: int
    value_dim: int
    dtype: torch.dtype
    device: str
    # what the pattern is
    forbids: bool  # may some pair be forbidden (by the pattern, or by -inf in a bias)?
    causal: bool  # Causal over end-aligned positions and no bias: what a kernel's own flag means?
    blocks_known: bool  # can the pattern bound the keys of a block of queries without trying all?
    most_pairs: int  # a bound on the pairs of one batch row and head
    num_edges: int | None  # where the pattern keeps an edge list
    unique_edges: bool | None
    # what bias and score are
    biased: bool
    bias_grad: bool  # does a gradient flow into the bias?
    coords_grad: bool  # does one flow into what tokens carry?
    own_bias: bool  # are all terms the library's own?
    score: str  # "dot", "softcap", or the class of another score
    fused_score: bool  # do compiled kernels know the score?
    sinks: bool
    # what is asked
    grad: bool
    dropout: bool
    lse: bool
    weights: bool
    compiling: bool
    traced: bool  # is compiling, or another tracer watches
    vmapped: bool  # inside torch.func.vmap
    differentiated: bool  # inside torch.func.grad, vjp or jvp
    budget: int  # bytes that `auto` may let a backend allocate

    @property
    def opaque(self) -> bool:
        """Whether the values of tensors cannot be read: under a tracer, under vmap, or on the meta device."""
        return self.traced or self.vmapped or self.device == "meta"

    @property
    def learns(self) -> bool:
        """Whether any gradient is asked for."""
        return self.grad or self.bias_grad

    @property
    def pairs(self) -> int:
        """B·H·Nq·Nk, the pairs of a dense grid."""
        return self.batch * self.heads * self.num_queries * self.num_keys

    @property
    def bound(self) -> int:
        """The most pairs that the pattern allows, over batch and heads."""
        return self.batch * self.heads * self.most_pairs

    @property
    def compute_bytes(self) -> int:
        """Bytes of one logit."""
        return 8 if self.dtype == torch.float64 else 4


@dataclass(frozen=True)
class Estimate:
    """What a backend expects to need: bytes above inputs and output, and operations.

    An operation is one multiply-add of a fused dense kernel, or the time of one: a pass over a tensor in memory counts
    as some ten a number (measured on a CPU). Estimates rank backends; they promise nothing.
    """

    bytes: int
    operations: int


@dataclass
class Call:
    """What a backend runs: checked, with a flat batch, rotated and bound.

    `query [B, H, Nq, D]`, `key [B, Hkv, Nk, D]`, `value [B, Hkv, Nk, Dv]`, any strides.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    pattern: Pattern
    bias: Bias | None
    score: Score
    scale: float
    coords: tuple[Coords, Coords]
    dropout: float
    batch_shape: tuple[int, ...]
    problem: Problem
    compute_dtype: torch.dtype = field(init=False)

    def __post_init__(self) -> None:
        self.compute_dtype = torch.float64 if self.query.dtype == torch.float64 else torch.float32

    def block(self, queries: slice, keys: slice | Tensor) -> Pairs:
        """The pairs of a block of the grid."""
        edges = self.pattern.edges
        return Pairs.grid(
            self.coords,
            self.batch_shape,
            self.query.shape[1],
            queries,
            keys,
            dtype=self.compute_dtype,
            device=self.query.device,
            edge_data=edges.data if edges is not None else None,
            edge_ids=edges.ids(queries, keys) if edges is not None else None,
        )

    @property
    def has_dirty_coords(self) -> bool:
        """Whether some coord or edge datum may hold NaN, which must not pass from a forbidden pair."""
        if any(not side.finite(name) for side in self.coords for name in side.names):
            return True
        edges = self.pattern.edges
        return edges is not None and any(not edges.finite(name) for name in edges.data)


class Result(NamedTuple):
    """What a backend returns: `out [B, H, Nq, Dv]`, and `lse`, `weights` where the problem asked."""

    out: Tensor
    lse: Tensor | None = None
    weights: Tensor | None = None


class Backend(Protocol):
    """One way to run the operator. `refuse` and `estimate` are pure; neither reads a tensor."""

    name: str

    def needs_finite(self, problem: Problem) -> bool:
        """Whether it keeps forbidden pairs apart only where keys and values are finite."""

    def unavailable(self) -> str | None:
        """Why this backend cannot run on this machine, in words; None where it can."""

    def refuse(self, problem: Problem) -> list[str]:
        """Every reason, in words, not to run this problem; an empty list to run it."""

    def estimate(self, problem: Problem) -> Estimate:
        """What running it would need."""

    def run(self, call: Call) -> Result:
        """Run it."""
