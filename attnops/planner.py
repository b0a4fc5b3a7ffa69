"""Which backend runs a problem, and why not the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from attnops.coords import Coords
from attnops.patterns.base import Pattern
from attnops.patterns.cost import Cost, count_pairs
from attnops.problem import Backend, Problem, UnsupportedError

DEFAULT_BUDGET = 4 * 2**30
"""Bytes that `auto` lets a backend allocate above inputs and output."""


@dataclass(frozen=True)
class Candidate:
    """A backend as the planner saw it: its refusals in words (none: it would run), its estimates, a condition."""

    name: str
    refusals: tuple[str, ...]
    bytes: int
    operations: int
    condition: str = ""


@dataclass(frozen=True)
class Plan:
    """Which backend runs a problem, and what each other candidate said; hand it to `attend(..., backend=plan)`.

    Example:
        >>> import torch, attnops
        >>> x = torch.randn(1, 8, 64, 16)
        >>> plan = attnops.plan(x, x, x, pattern=attnops.Causal())
        >>> plan.backend
        'sdpa'
        >>> plan.cost.pairs, plan.cost.empty_rows
        (16640, 0)
    """

    problem: Problem
    backend: str
    candidates: tuple[Candidate, ...]
    description: str = field(compare=False)
    pattern: Pattern = field(compare=False, repr=False)
    coords: tuple[Coords, Coords] = field(compare=False, repr=False)
    batch_shape: tuple[int, ...] = field(compare=False, repr=False)
    device: object = field(compare=False, repr=False)

    @property
    def cost(self) -> Cost:
        """Pairs allowed, density, empty rows: counted now, block by block (`attend` itself never counts)."""
        p = self.problem
        return count_pairs(self.pattern, self.coords, self.batch_shape, p.heads, p.num_queries, p.num_keys, self.device)

    def __str__(self) -> str:
        p = self.problem
        heads = f"H{p.heads}" if p.kv_heads == p.heads else f"H{p.heads}/{p.kv_heads}"
        dims = f"D{p.dim}" if p.value_dim == p.dim else f"D{p.dim} Dv{p.value_dim}"
        dtype = str(p.dtype).removeprefix("torch.")
        grad = "  with gradients" if p.grad or p.bias_grad else ""
        lines = [
            f"attention  B{p.batch} {heads} Nq{p.num_queries} Nk{p.num_keys} {dims}  {dtype} {p.device}{grad}",
            self.description,
        ]
        taken = next(candidate for candidate in self.candidates if candidate.name == self.backend)
        for candidate in self.candidates:
            mark = ">" if candidate is taken else " "
            if candidate.refusals:
                says = "refused: " + f"\n  {'':<10}          ".join(candidate.refusals)
            else:
                times = candidate.operations / max(1, taken.operations)
                more = f"{times:.2g} times the operations" if times < 100 else f"{times:.0f} times the operations"
                says = f"takes it: {candidate.operations:.1e} operations" if candidate is taken else f"could: {more}"
                says += f", {format_bytes(candidate.bytes)}"
                says += f", {candidate.condition}" if candidate.condition else ""
            lines.append(f"{mark} {candidate.name:<10} {says}")
        return "\n".join(lines)


def rank(problem: Problem, backends: Sequence[Backend]) -> tuple[Candidate, ...]:
    """Every backend's word on a problem, in the order in which `auto` would take them: a pure function."""
    ranked: list[Candidate] = []
    for backend in backends:
        reason = backend.unavailable()
        refusals = [f"it cannot run here: {reason}"] if reason is not None else backend.refuse(problem)
        estimate = backend.estimate(problem)
        condition = "if keys and values are finite" if problem.forbids and backend.needs_finite(problem) else ""
        candidate = Candidate(backend.name, tuple(refusals), estimate.bytes, estimate.operations, condition)
        # placed by comparisons alone, which a tracer with symbolic sizes can follow
        place = sum(1 for other in ranked if not _before(candidate, other))
        ranked.insert(place, candidate)
    return tuple(ranked)


def _before(candidate: Candidate, other: Candidate) -> bool:
    if bool(candidate.refusals) != bool(other.refusals):
        return not candidate.refusals
    return candidate.operations < other.operations


def over_budget(problem: Problem, candidate: Candidate) -> str | None:
    """Why `auto` does not take a candidate that would run: its bytes."""
    if candidate.bytes <= problem.budget:
        return None
    return (
        f"it would allocate {format_bytes(candidate.bytes)}, over the budget of {format_bytes(problem.budget)} "
        "(attnops.plan(…, budget=bytes) raises it)"
    )


def choose(problem: Problem, candidates: tuple[Candidate, ...], backend: str) -> tuple[str, tuple[Candidate, ...]]:
    """The backend to run, and the candidates as `auto` saw them.

    Raises:
        ValueError: an unknown name.
        UnsupportedError: the named backend refuses, or all do; with the reasons and the best alternative.
    """
    within = tuple(_with_budget(problem, candidate) for candidate in candidates)
    best = next((candidate.name for candidate in within if not candidate.refusals), None)
    if backend == "auto":
        if best is None:
            raise UnsupportedError("no backend can run this problem:\n" + _reasons(within))
        return best, within
    named = [candidate for candidate in candidates if candidate.name == backend]
    if not named:
        raise ValueError(
            f"backend is {backend!r}; it must be 'auto', a Plan, or one of {', '.join(c.name for c in candidates)}"
        )
    if named[0].refusals:
        raise UnsupportedError(f"{refusal_text(named[0])}; {alternative(best)}")
    return backend, within


def refusal_text(candidate: Candidate) -> str:
    """A candidate's refusals as one sentence."""
    return f"backend {candidate.name!r} refuses this problem: " + "; ".join(candidate.refusals)


def alternative(best: str | None) -> str:
    """What to say of the best backend that would run."""
    return f"the best alternative is backend={best!r}" if best else "no other backend can run it either"


def _with_budget(problem: Problem, candidate: Candidate) -> Candidate:
    reason = None if candidate.refusals else over_budget(problem, candidate)
    if reason is None:
        return candidate
    return Candidate(candidate.name, (reason,), candidate.bytes, candidate.operations, candidate.condition)


def _reasons(candidates: tuple[Candidate, ...]) -> str:
    return "\n".join(f"  {candidate.name}: {'; '.join(candidate.refusals)}" for candidate in candidates)


def format_bytes(count: int) -> str:
    """A count of bytes as a person reads it."""
    size = float(count)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


_collecting: ContextVar[list[Plan] | None] = ContextVar("attnops_trace", default=None)


@contextmanager
def trace() -> Iterator[list[Plan]]:
    """Collect the plan of every `attend` that runs inside the block; a compiled call was planned when it was traced.

    Example:
        >>> import torch, attnops
        >>> x = torch.randn(1, 4, 8)
        >>> with attnops.trace() as plans:
        ...     _ = attnops.attend(x, x, x, backend="reference")
        >>> [plan.backend for plan in plans]
        ['reference']
    """
    plans: list[Plan] = []
    token = _collecting.set(plans)
    try:
        yield plans
    finally:
        _collecting.reset(token)


def collector() -> list[Plan] | None:
    """Where the running `trace` collects plans, if one runs."""
    return _collecting.get()
