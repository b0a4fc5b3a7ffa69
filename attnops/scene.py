"""A small problem around one bias, pattern or score: vectors, the coords and edge data it reads, and its forms."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from attnops.biases.base import Bias
from attnops.checks import require_positive
from attnops.coords import Coords, as_pair, resolve_coords
from attnops.pairs import Pairs
from attnops.patterns.base import Pattern
from attnops.patterns.edges import Edges
from attnops.scores.base import Score

_EDGES, _QUERIES, _KEYS = 12, 5, 7


class _Filling(dict[str, Tensor]):
    """Named data that appear as they are read, so that one run shows what a class reads."""

    def __init__(self, given: Mapping[str, Tensor], make: Callable[[str], Tensor]) -> None:
        super().__init__(given)
        self._make = make

    def __bool__(self) -> bool:
        return True

    def __contains__(self, name: object) -> bool:
        return name not in ("position", "index") or super().__contains__(name)

    def __missing__(self, name: str) -> Tensor:
        self[name] = self._make(name)
        return self[name]


class Scene:
    """A small problem for one class: vectors, the coords and edge data that it reads, and what takes a gradient."""

    def __init__(
        self,
        subject: Bias | Pattern | Score,
        heads: int,
        dim: int,
        coords: Coords | tuple[Coords, Coords] | None,
        edge: Mapping[str, Tensor] | None,
        evaluate: Callable[[Scene, Pairs], Tensor],
        sizes: tuple[int | None, int | None] = (None, None),
    ) -> None:
        require_positive(heads=heads, dim=dim)
        for side, size in zip(("num_queries", "num_keys"), sizes, strict=True):
            if size is not None:
                require_positive(**{side: size})
        _check_edge_data(edge)
        self.subject, self.name, self.heads = subject, _name(subject), heads
        self.random = torch.Generator().manual_seed(0)
        parameters = dict(subject.named_parameters()) if isinstance(subject, nn.Module) else {}
        self.dtype = torch.float64 if any(p.dtype == torch.float64 for p in parameters.values()) else torch.float32
        given = (None, None) if coords is None else as_pair(coords)
        leads = [tuple(tensor.shape[:-1]) for side in given if side is not None for tensor in side.data.values()]
        self.batch = max(leads, key=len, default=()) or (2,)
        num_edges = next((tensor.shape[0] for tensor in (edge or {}).values()), _EDGES)
        rows = _length(given[0]) or sizes[0] or _QUERIES
        least = rows if isinstance(coords, Coords) else max(_KEYS, -(-num_edges // rows))
        columns = _length(given[1]) or sizes[1] or least
        if num_edges > rows * columns and edge is not None:
            raise ValueError(f"edge data have {num_edges} rows; {rows} queries and {columns} keys join in fewer pairs")
        self.query, self.key, self.value = (
            torch.randn(*self.batch, heads, count, dim, generator=self.random, dtype=self.dtype).requires_grad_()
            for count in (rows, columns, columns)
        )
        chosen = torch.randperm(rows * columns, generator=self.random)[:num_edges]
        self.edges = Edges(torch.stack([chosen % columns, chosen // columns]), rows, columns)
        self.sides = resolve_coords(coords, self.batch, rows, columns, self.query.device)
        self._discover(edge or {}, evaluate)
        self.sources = {"query": self.query, "key": self.key, "value": self.value}
        self.sources |= {f"parameter {name}": p for name, p in parameters.items() if p.requires_grad}
        for side, tokens in zip(("query", "key"), self.sides, strict=True):
            self.sources |= {f"coord {side}.{name}": t for name, t in tokens.data.items() if t.requires_grad}
        self.sources |= {f"datum edge.{name}": t for name, t in self.edges.data.items() if t.requires_grad}

    def _discover(self, edge: Mapping[str, Tensor], evaluate: Callable[[Scene, Pairs], Tensor]) -> None:
        """Run the class on the grid, and keep what it reads."""
        flat = self.query.shape[:-3].numel()
        filled = []
        for tokens, length in zip(self.sides, (self.edges.num_queries, self.edges.num_keys), strict=True):
            data = _Filling(tokens.data, lambda name, length=length: self._integers(flat, length))  # type: ignore[misc]
            filled.append(tokens._replace(data))
        if self.sides[0] is self.sides[1]:
            filled[1] = filled[0]
        self.sides = (filled[0], filled[1])
        data = _Filling(edge, self._datum)
        with torch.no_grad():
            pairs = self.grid(slice(0, self.edges.num_queries), slice(0, self.edges.num_keys), data)
            self.run("a grid", lambda: evaluate(self, pairs))
            if isinstance(self.subject, Bias):
                placed = [
                    t.with_position(v.shape[-2], v.device) for t, v in zip(filled, (self.query, self.key), strict=True)
                ]
                self.subject.rotate(self.flat(self.query), self.flat(self.key), (placed[0], placed[1]))
        query = _learning(filled[0])
        self.sides = (query, query if filled[0] is filled[1] else _learning(filled[1]))
        self.edges = self.edges.with_data(**_learning(Coords()._replace(data)).data)

    def _integers(self, *shape: int) -> Tensor:
        return torch.randint(0, 2, shape, generator=self.random)

    def _datum(self, name: str) -> Tensor:
        count = self.edges.num_edges
        if name == "prior":
            return torch.rand(count, generator=self.random, dtype=self.dtype) + 0.1
        if name == "attr":
            return torch.randn(count, getattr(self.subject, "edge_dim", 4), generator=self.random, dtype=self.dtype)
        return self._integers(count)

    def flat(self, vectors: Tensor) -> Tensor:
        """`[*B, H, N, D]` with B as one axis."""
        return vectors.reshape(-1, *vectors.shape[-3:])

    def run(self, form: str, evaluate: Callable[[], Tensor]) -> Tensor:
        """What the class gives in one form; an error of its own names the form."""
        try:
            return evaluate()
        except Exception as error:
            raise AssertionError(f"{self.name} fails on {form}: {type(error).__name__}: {error}") from error

    def unflattened(self, side: Coords) -> Coords:
        """Coords as a caller gives them, `[N]` or `[*B, N]`."""
        return Coords(**{n: t.view(*self.batch, -1) if t.shape[0] > 1 else t[0] for n, t in side.data.items()})

    # -------------------------------------------------------------------------------------------- forms of the pairs
    @property
    def _form(self) -> tuple[tuple[Coords, Coords], tuple[int, ...], int]:
        return self.sides, self.batch, self.heads

    @property
    def _kind(self) -> dict[str, Any]:
        return {"dtype": self.dtype, "device": self.query.device}

    def grid(self, rows: slice, columns: slice | Tensor, data: Mapping[str, Tensor] | None = None) -> Pairs:
        data, ids = self.edges.data if data is None else data, self.edges.ids(rows, columns)
        return Pairs.grid(*self._form, rows, columns, edge_data=data, edge_ids=ids, **self._kind)

    def edge_columns(self) -> Pairs:
        rows, edges = slice(0, self.edges.num_queries), self.edges
        return Pairs.grid(*self._form, rows, edges.source, edge_data=edges.data, keys_are_edges=True, **self._kind)

    def listed(self, order: Tensor | None = None) -> Pairs:
        edges = self.edges
        ends = edges.edge_index if order is None else edges.edge_index[:, order]
        return Pairs.listed(*self._form, ends[1], ends[0], edge_data=edges.data, edge_ids=order, **self._kind)

    def single(self, evaluate: Callable[[Pairs], Tensor]) -> Tensor:
        """`[B, H, Nq, Nk]`, each pair evaluated alone, by four nested vmaps."""
        ids = self.edges.ids(slice(0, self.edges.num_queries), slice(0, self.edges.num_keys))

        def one(batch: Tensor, head: Tensor, row: Tensor, column: Tensor) -> Tensor:
            at, data = ids[row, column], self.edges.data
            pairs = Pairs.single(*self._form, batch, head, row, column, edge_data=data, edge_ids=at, **self._kind)
            value = evaluate(pairs)
            if not isinstance(value, Tensor) or value.ndim:
                got = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
                raise ValueError(f"it gives {got}; one pair has one number, a 0-d tensor")
            return value

        each: Callable[..., Tensor] = one
        for axes in ((None, None, None, 0), (None, None, 0, None), (None, 0, None, None), (0, None, None, None)):
            each = torch.vmap(each, in_dims=axes)
        grid: Tensor = each(*(torch.arange(size) for size in (len(self.flat(self.query)), self.heads, *ids.shape)))
        return grid


def bound_bias(bias: Bias, scene: Scene) -> Bias:
    """The bias of the scene's vectors."""
    return bias.bind(scene.flat(scene.query), scene.flat(scene.key))


class Allowing(nn.Module):
    """A pattern as what is lowered."""

    def __init__(self, pattern: Pattern) -> None:
        super().__init__()
        self.pattern = pattern

    def forward(self, pairs: Pairs) -> Tensor:
        allowed = self.pattern.allows(pairs)
        if isinstance(allowed, Tensor) and allowed.dtype != torch.bool:
            raise TypeError(f"allows gives {allowed.dtype}; it must be a bool tensor")
        return allowed


class Scored(nn.Module):
    """A score with its vectors, gathered at whatever pairs it is lowered on."""

    def __init__(self, score: Score, scene: Scene) -> None:
        super().__init__()
        self.query, self.key, self.score = score.bind(scene.flat(scene.query), scene.flat(scene.key))

    def forward(self, pairs: Pairs) -> Tensor:
        rows, columns = pairs.queries, pairs.keys
        if len(pairs.shape) == 4:
            query, key = self.query[:, :, rows].unsqueeze(3), self.key[:, :, columns].unsqueeze(2)
        elif len(pairs.shape) == 3:
            query, key = self.query[:, :, rows], self.key[:, :, columns]
        else:
            query, key = self.query[pairs.batch, pairs.head, rows], self.key[pairs.batch, pairs.head, columns]
        logits: Tensor = self.score(query, key, pairs)
        return logits


@contextmanager
def stirred(module: nn.Module) -> Iterator[None]:
    """Parameters moved off their initial values (a table of zeros hides which row is read), then put back."""
    random = torch.Generator().manual_seed(2)
    kept = [parameter.detach().clone() for parameter in module.parameters()]
    try:
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=random).to(parameter))
        yield
    finally:
        with torch.no_grad():
            for parameter, value in zip(module.parameters(), kept, strict=True):
                parameter.copy_(value)


def gradients(scene: Scene, loss: Tensor) -> dict[str, Tensor]:
    """The gradient of each source, zeros where none flows."""
    if not loss.requires_grad:
        return {name: torch.zeros_like(source) for name, source in scene.sources.items()}
    grads = torch.autograd.grad(loss, list(scene.sources.values()), allow_unused=True, retain_graph=True)
    return {
        name: torch.zeros_like(source) if grad is None else grad
        for (name, source), grad in zip(scene.sources.items(), grads, strict=True)
    }


def _learning(coords: Coords) -> Coords:
    """The same data, what is real as leaves that take a gradient."""
    data = {
        name: tensor.detach().clone().requires_grad_() if tensor.is_floating_point() else tensor
        for name, tensor in coords.data.items()
    }
    return coords._replace(data)


def _check_edge_data(edge: object) -> None:
    if edge is None:
        return
    if not isinstance(edge, Mapping):
        raise TypeError(f"edge is {type(edge).__name__}; it must be a mapping of names to tensors [E] or [E, F]")
    for name, data in edge.items():
        if not isinstance(name, str) or not isinstance(data, Tensor):
            raise TypeError(
                f"edge holds {type(data).__name__} under {name!r}; it must hold tensors [E] or [E, F] under their names"
            )
        if data.ndim == 0 or len(data) == 0:
            raise ValueError(f"edge data {name} have shape {list(data.shape)}; it must be [E] or [E, F], E 1 or more")


def _length(coords: Coords | None) -> int | None:
    return None if coords is None else coords.length


def _name(subject: object) -> str:
    return repr(subject).replace("\n", " ")
