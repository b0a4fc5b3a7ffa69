"""Conformance checks for users' own biases, patterns and scores: one definition, the same numbers in every form."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from attnops.backends import BACKENDS
from attnops.biases.base import Bias
from attnops.closeness import assert_close, assert_within
from attnops.closeness import assert_close_as_reference as assert_close_as_reference
from attnops.coords import Coords
from attnops.operator import attend
from attnops.pairs import Pairs
from attnops.patterns.base import Pattern
from attnops.patterns.edges import Edges
from attnops.patterns.intervals import Causal
from attnops.problem import UnsupportedError
from attnops.scene import Allowing, Scene, Scored, bound_bias, gradients, stirred
from attnops.scores.base import Score

_SQUARE = (6, 6)  # beside fewer queries than keys: as many, which backends may treat apart


def check_bias(
    bias: Bias,
    heads: int,
    dim: int = 16,
    coords: Coords | tuple[Coords, Coords] | None = None,
    edge: Mapping[str, Tensor] | None = None,
) -> None:
    """Run a bias through every lowering and every backend that can run here, forward and backward.

    Lowerings: the whole grid, blocks of it, a list of edges, and one pair of 0-d indices under `torch.vmap`, as
    FlexAttention evaluates it. Each must give b_ij, and the gradients of every parameter, real coord and edge datum,
    that the grid gives; each backend must give the output and gradients of `reference`. Parameters are moved off their
    initial values for the run, and put back.

    Args:
        bias: the bias. heads: H. dim: D.
        coords: coords to use; a name that the bias reads and that is not given holds 0 and 1.
        edge: data `[E]` or `[E, F]` on distinct edges; a name that is read and not given holds 0 and 1, but `prior`
            positive reals, and `attr` reals `[E, F]`, F the bias's `edge_dim` or 4.

    Raises:
        AssertionError: two forms differ, or one fails; says which, in what, by how much, and at which place.

    Example:
        >>> import attnops
        >>> attnops.testing.check_bias(attnops.ALiBi(4), heads=4)
        >>> class Square(attnops.Bias):
        ...     def forward(self, pairs):                # rows come before keys on a grid alone
        ...         return pairs.query.index.flatten()[:, None] - pairs.key.index.flatten()
        >>> attnops.testing.check_bias(Square(), heads=2)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        AssertionError: Square() fails on a list of edges: ValueError: what it gives has shape [12, 12]; it must ...
    """
    if not isinstance(bias, Bias):
        raise TypeError(f"bias is {type(bias).__name__}; it must be a Bias")
    with stirred(bias):
        for sizes in (None, None), _SQUARE:
            scene = Scene(bias, heads, dim, coords, edge, lambda s, pairs: bound_bias(bias, s)(pairs), sizes)
            if bias.adds or bias.binds:
                _check_lowerings(scene, lambda scene=scene: bound_bias(bias, scene))  # type: ignore[misc]
            graphs: list[Pattern | None] = [scene.edges, Edges.cat([scene.edges, scene.edges])]
            for pattern in graphs if scene.edges.data else [None, Causal(), *graphs]:
                _check_backends(scene, pattern=pattern, bias=bias)


def check_pattern(
    pattern: Pattern,
    heads: int = 2,
    dim: int = 16,
    coords: Coords | tuple[Coords, Coords] | None = None,
    edge: Mapping[str, Tensor] | None = None,
    num_queries: int | None = None,
    num_keys: int | None = None,
) -> None:
    """Run a pattern through every lowering and every backend that can run here; see `check_bias`.

    Its `key_ranges` must leave out no pair that `allows` lets through, and `most_pairs` must bound their number.

    Args:
        num_queries, num_keys: sizes, where neither coords nor an edge list in the pattern says them.

    Raises:
        AssertionError: two forms differ, or one fails; says which, by how much, and at which place.

    Example:
        >>> import attnops
        >>> class Later(attnops.Pattern):
        ...     def allows(self, pairs):
        ...         return pairs.query.time >= pairs.key.time
        >>> attnops.testing.check_pattern(Later())
    """
    if not isinstance(pattern, Pattern):
        raise TypeError(f"pattern is {type(pattern).__name__}; it must be a Pattern")
    if pattern.edges is not None:
        num_queries, num_keys = pattern.edges.num_queries, pattern.edges.num_keys
    scene = Scene(pattern, heads, dim, coords, edge, lambda s, pairs: pattern.allows(pairs), (num_queries, num_keys))
    _check_lowerings(scene, lambda: Allowing(pattern))
    _check_ranges(scene, pattern)
    carried: Pattern = scene.edges & pattern if scene.edges.data and pattern.edges is None else pattern
    _check_backends(scene, pattern=carried)


def check_score(
    score: Score,
    heads: int = 2,
    dim: int = 16,
    coords: Coords | tuple[Coords, Coords] | None = None,
    edge: Mapping[str, Tensor] | None = None,
) -> None:
    """Run a score through every lowering and every backend that can run here, forward and backward; see `check_bias`.

    Raises:
        AssertionError: two forms differ, or one fails; says which, in what, by how much, and at which place.

    Example:
        >>> import attnops
        >>> class Negative(attnops.Score):
        ...     def forward(self, query, key, pairs):
        ...         return -(query - key).square().sum(-1)
        >>> attnops.testing.check_score(Negative(), heads=2)
    """
    if not isinstance(score, Score):
        raise TypeError(f"score is {type(score).__name__}; it must be a Score")
    with stirred(score):
        for sizes in (None, None), _SQUARE:
            scene = Scene(score, heads, dim, coords, edge, lambda s, pairs: Scored(score, s)(pairs), sizes)
            _check_lowerings(scene, lambda scene=scene: Scored(score, scene))  # type: ignore[misc]
            for pattern in [scene.edges] if scene.edges.data else [None, Causal(), scene.edges]:
                _check_backends(scene, pattern=pattern, score=score)


# --------------------------------------------------------------------------------------------------- what is compared
def _check_lowerings(scene: Scene, bound: Callable[[], Callable[[Pairs], Tensor]]) -> None:
    """Every form gives what the whole grid gives, and its gradients."""
    edges, csr = scene.edges, scene.edges.sorted()
    rows, columns, at = edges.num_queries, edges.num_keys, torch.arange(edges.num_edges)

    def whole(pairs: Pairs) -> Tensor:
        value = bound()(pairs)
        fits = isinstance(value, Tensor) and value.ndim <= len(pairs.shape)
        if not fits or any(a not in (1, b) for a, b in zip(reversed(value.shape), reversed(pairs.shape), strict=False)):
            got = f"has shape {list(value.shape)}" if isinstance(value, Tensor) else f"is {type(value).__name__}"
            raise ValueError(f"what it gives {got}; it must broadcast to the pairs, {list(pairs.shape)}")
        return value.expand(pairs.shape)

    def blocks() -> Tensor:
        order = torch.arange(columns).roll(1)
        parts = []
        for some in (slice(0, rows // 2), slice(rows // 2, rows)):
            left, right = (whole(scene.grid(some, keys)) for keys in (order[: columns // 2], order[columns // 2 :]))
            parts.append(torch.cat([left, right], 3)[..., order.argsort()])
        return torch.cat(parts, 2)

    def grid() -> Tensor:
        return whole(scene.grid(slice(0, rows), slice(0, columns)))

    def spread(values: Tensor) -> Tensor:
        """`[B, H, E]` at the pairs that the edges join, `[B, H, Nq, Nk]`, 0 elsewhere."""
        zeros = torch.zeros(*values.shape[:2], rows * columns, dtype=values.dtype)
        return zeros.index_copy(2, edges.target * columns + edges.source, values).view(*values.shape[:2], rows, columns)

    def joined(values: Tensor) -> Tensor:
        return spread(values[:, :, edges.target, edges.source])

    every = joined if edges.data else torch.clone  # edge data say nothing of pairs that no edge joins
    forms: dict[str, tuple[Callable[[], Tensor], Callable[[Tensor], Tensor]]] = {
        "blocks of the grid": (lambda: every(blocks()), every),
        "a list of edges": (lambda: spread(whole(scene.listed())), joined),
        "a list of edges by target": (
            lambda: spread(whole(scene.listed(csr.order))[:, :, csr.order.argsort()]),
            joined,
        ),
        "a grid whose columns are edges": (lambda: spread(whole(scene.edge_columns())[:, :, edges.target, at]), joined),
        "one pair under torch.vmap": (lambda: every(scene.single(bound())), every),
    }
    for form, (evaluate, select) in forms.items():
        _compare_values(scene, form, scene.run(form, evaluate), select(grid()))


def _compare_values(scene: Scene, form: str, got: Tensor, want: Tensor) -> None:
    what, place = f"{scene.name} on {form} differs from the grid", "[b, h, i, j]"
    if want.dtype == torch.bool:
        assert_within(got.double(), want.double(), 0.0, f"{what}, at {place}")
        return
    for test, kind in ((torch.isneginf, "-inf"), (torch.isnan, "NaN")):
        assert_within(test(got).double(), test(want).double(), 0.0, f"{what}, {kind} at {place}")
    finite = torch.isfinite(want)
    got, want = (torch.where(finite, value.double(), 0) for value in (got, want))
    assert_close(got, want, f"{what}, forward at {place}")
    weigh = torch.randn(want.shape, generator=torch.Generator().manual_seed(1), dtype=want.dtype)
    _compare_gradients(what, gradients(scene, (got * weigh).sum()), gradients(scene, (want * weigh).sum()))


def _check_ranges(scene: Scene, pattern: Pattern) -> None:
    """`key_ranges` and `most_pairs` never leave out a pair that is allowed."""
    rows, columns = scene.edges.num_queries, scene.edges.num_keys
    pairs = scene.grid(slice(0, rows), slice(0, columns))
    allowed = pattern.allows(pairs).expand(pairs.shape)
    for start in range(rows):
        some = slice(start, min(rows, start + 2))
        inside = torch.zeros(columns, dtype=torch.bool)
        for low, high in pattern.key_ranges(scene.sides, some, columns):
            inside[low:high] = True
        cut = (allowed[:, :, some] & ~inside).nonzero()
        if len(cut):
            b, h, i, j = cut[0].tolist()
            raise AssertionError(
                f"{scene.name} allows the pair [b, h, i, j] = {[b, h, start + i, j]}, but key_ranges of queries "
                f"{some.start} … {some.stop - 1} leaves key {j} out"
            )
    aligned = all("position" not in side for side in scene.sides)
    bound, most = pattern.most_pairs(rows, columns, aligned), int(allowed.sum((2, 3)).max())
    if most > bound:
        raise AssertionError(
            f"{scene.name} allows {most} pairs of a batch row and head, but most_pairs says at most {bound}"
        )


def _check_backends(
    scene: Scene, *, pattern: Pattern | None = None, bias: Bias | None = None, score: Score | None = None
) -> None:
    """Every backend that takes the problem gives what `reference` gives."""
    tokens = [scene.unflattened(side) for side in scene.sides]
    coords = tokens[0] if scene.sides[0] is scene.sides[1] else (tokens[0], tokens[1])

    def run(backend: str, lse: bool) -> dict[str, Tensor]:
        result = attend(
            scene.query,
            scene.key,
            scene.value,
            pattern=pattern,
            bias=bias,
            score=score,
            coords=coords,
            return_lse=lse,
            backend=backend,
        )
        return {"out": result} if isinstance(result, Tensor) else {"out": result.out, "lse": result.lse}  # type: ignore[dict-item]

    about = "" if pattern is None or pattern is scene.subject else f" under {pattern}"
    for lse in (False, True):
        want = run("reference", lse)
        for backend in BACKENDS:
            if backend.name == "reference" or backend.unavailable() is not None:
                continue
            if backend.name == "flex" and scene.edges.num_queries == scene.edges.num_keys:
                continue  # torch traces each problem for a second, and sizes change nothing of a pair's own form
            what = f"{scene.name} on backend {backend.name!r}{about} differs from 'reference'"
            for learns in (True, False):  # a backend may take the forward alone
                try:
                    with torch.set_grad_enabled(learns):
                        got = run(backend.name, lse)
                    grads = gradients(scene, _weighed(got)) if learns else {}
                except UnsupportedError:
                    continue
                except Exception as error:
                    reason = f"{type(error).__name__}: {error}"
                    raise AssertionError(f"{scene.name} fails on backend {backend.name!r}{about}: {reason}") from error
                for name, result in want.items():
                    axes = "[b, h, i, d]" if name == "out" else "[b, h, i]"
                    assert_close(got[name], result, f"{what}, forward {name} at {axes}")
                if learns:
                    _compare_gradients(what, grads, gradients(scene, _weighed(want)))
                break


def _weighed(results: dict[str, Tensor]) -> Tensor:
    """One number of all results, each element weighed by its own; rows of lse -inf left out."""
    random = torch.Generator().manual_seed(1)
    total = torch.zeros((), dtype=torch.float64)
    for result in results.values():
        result = torch.where(torch.isfinite(result), result, 0).double()
        total = total + (result * torch.randn(result.shape, generator=random, dtype=torch.float64)).sum()
    return total


def _compare_gradients(what: str, got: dict[str, Tensor], want: dict[str, Tensor]) -> None:
    for name, grad in want.items():
        assert_close(got[name], grad, f"{what}, gradient of {name}")
