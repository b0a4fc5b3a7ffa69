"""`attend` over an edge list and rows that lie in files."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from attnops.biases import Bias, Sink
from attnops.biases.base import BiasSum
from attnops.coords import Coords
from attnops.distributed.out_of_core.mapped_edges import MappedEdges
from attnops.distributed.out_of_core.mapped_rows import MappedRows
from attnops.distributed.out_of_core.row_functions import add_up, placed
from attnops.operator import attend as attend_in_memory
from attnops.scores import Score
from attnops.states import AttentionOutput, merge


def attend(
    query: MappedRows,
    key: MappedRows,
    value: MappedRows,
    edges: MappedEdges,
    *,
    bias: Bias | None = None,
    score: Score | None = None,
    scale: float | None = None,
    coords: tuple[Coords, Coords] | None = None,
    backend: str = "auto",
) -> MappedRows:
    """`attnops.attend` over a graph in files: one tile of edges, and the rows that it joins, in memory at a time.

    For each block of queries, attention over one block of keys after the other, joined by `merge`; the result is that
    of one pass over all edges, up to rounding. Backward, each tile is computed again; gradients of queries, keys and
    values are written to files, those of bias and score arrive in their parameters.

    Args:
        query: `[Nq, H, D]`. key: `[Nk, Hkv, D]`. value: `[Nk, Hkv, Dv]`; in blocks of `edges.query_block` and
            `edges.key_block` rows.
        edges: who hears whom, with data that biases read as `edge.NAME`.
        bias: as of `attend`, but no tensor (a bias a edge is edge data).
        coords: of queries and of keys, in memory. A position that is not given is the row in the whole graph, and
            `index` counts from the first row of a block.
        score, scale, backend: as of `attend`.

    Returns:
        `[Nq, H, Dv]`, in a folder beside the query's that is removed when nothing refers to it.

    Raises:
        ValueError: sizes, blocks or coords that do not fit; a pattern, a bias that depends on all positions.

    Example:
        >>> import attnops, tempfile, torch
        >>> from attnops.distributed import out_of_core
        >>> folder = tempfile.TemporaryDirectory()
        >>> x = out_of_core.MappedRows.from_tensor(folder.name + "/x", torch.randn(6, 2, 4), block=4)     # [N, H, D]
        >>> ring = attnops.Edges(torch.stack([torch.arange(6), torch.arange(6).roll(1)]), 6, 6)
        >>> edges = out_of_core.MappedEdges.write(folder.name + "/edges", [ring], query_block=4, key_block=4)
        >>> out_of_core.attend(x, x, x, edges)
        MappedRows([6, 2, 4], torch.float32, 2 blocks of 4)
        >>> folder.cleanup()
    """
    _check(query, key, value, edges, bias, score)
    of_queries, of_keys = _both_sides(coords, edges)
    bias, sinks = _apart(bias)
    learned = [each for prior in (bias, score) if isinstance(prior, nn.Module) for each in prior.parameters()]
    of_tiles = list(learned)
    learned += (sink.weight for sink in sinks)

    def attend_tile(q: Tensor, k: Tensor, v: Tensor, of_query: int, of_key: int) -> AttentionOutput:
        """`[n, H, D]` rows to the partial result of one tile, `[H, n, Dv]`."""
        aligned = edges.num_keys - edges.num_queries
        sides = (
            _coords(of_queries, of_query * edges.query_block, len(q), aligned),
            _coords(of_keys, of_key * edges.key_block, len(k), 0),
        )
        q, k, v = (rows.transpose(0, 1) for rows in (q, k, v))
        pattern = edges.tile(of_query, of_key)
        result = attend_in_memory(
            q,
            k,
            v,
            pattern=pattern,
            bias=bias,
            score=score,
            scale=scale,
            coords=sides,
            return_lse=True,
            backend=backend,
        )
        assert isinstance(result, AttentionOutput)
        return result

    heads = query.width[0]
    out = query.like((heads, value.width[1]), query.dtype)
    lse = query.like((heads,), torch.promote_types(query.dtype, torch.float32))
    with torch.no_grad():
        for block, where in query.blocks():
            q = query.read(block)
            shape = (heads, where.stop - where.start)
            known = AttentionOutput(q.new_zeros(*shape, value.width[1]), torch.full(shape, -torch.inf, dtype=lse.dtype))
            for of_key in edges.keys_of(block):
                known = merge([known, attend_tile(q, key.read(of_key), value.read(of_key), block, of_key)])
            for sink in sinks:
                known = merge([known, _heard_by_none(known, sink)])
            assert known.lse is not None
            out.write(block, known.out.transpose(0, 1))
            lse.write(block, known.lse.t())

    files, lse_files = out.files, lse.files

    def backward(_: Tensor) -> list[Tensor | None]:
        total: list[Tensor | None] = [None] * len(learned)
        for block, _where in files.blocks() if files.grad is not None else ():
            assert files.grad is not None
            upstream, whole = (each.read(block).transpose(0, 1) for each in (files.grad, files))
            whole_lse = lse_files.read(block).t()
            of_sinks = [_of_sink(sink, upstream, whole, whole_lse) for sink in sinks]
            add_up(total, [*(None for _ in of_tiles), *of_sinks])
            for of_key in edges.keys_of(block):
                with torch.enable_grad():
                    leaves = [
                        rows.read(which).requires_grad_(rows.requires_grad)
                        for rows, which in ((query, block), (key, of_key), (value, of_key))
                    ]
                    part = attend_tile(leaves[0], leaves[1], leaves[2], block, of_key)
                wanted = [each for each in (*leaves, *of_tiles) if each.requires_grad]
                if not wanted:
                    continue
                assert part.lse is not None
                # out = Σ_p s_p out_p with the share s_p = exp(lse_p - lse): its derivatives by out_p and by lse_p.
                share = torch.where(part.lse == -torch.inf, 0, (part.lse - whole_lse).exp()).detach()
                moved = (upstream * (part.out.detach() - whole)).sum(-1)
                given = ((share.unsqueeze(-1) * upstream).to(part.out.dtype), (share * moved).to(part.lse.dtype))
                gradients = iter(torch.autograd.grad((part.out, part.lse), wanted, given, allow_unused=True))
                for rows, which, leaf in zip((query, key, value), (block, of_key, of_key), leaves, strict=True):
                    gradient = next(gradients) if leaf.requires_grad else None
                    if gradient is not None:
                        rows.files.add_gradient(which, gradient)
                add_up(total, [next(gradients) if each.requires_grad else None for each in of_tiles])
        files.grad = None  # it went on to query, key and value: another backward pass begins at nothing
        return total

    out.token = placed(torch.zeros(()), backward, (query, key, value), learned)
    return out


def _apart(bias: Bias | None) -> tuple[Bias | None, list[Sink]]:
    """What tiles add to their logits, and the sinks, of which each query hears once."""
    terms = () if bias is None else bias.terms
    sinks = [term for term in terms if isinstance(term, Sink)]
    rest = tuple(term for term in terms if not isinstance(term, Sink))
    return (rest[0] if len(rest) == 1 else BiasSum(rest, None) if rest else None), sinks


def _heard_by_none(known: AttentionOutput, sink: Sink) -> AttentionOutput:
    """A sink as a part: one logit a head and nothing behind it, for the rows that hear some key."""
    assert known.lse is not None
    logit = sink.weight.detach().to(known.lse.dtype)[:, None]
    return AttentionOutput(torch.zeros_like(known.out), torch.where(known.lse == -torch.inf, -torch.inf, logit))


def _of_sink(sink: Sink, upstream: Tensor, out: Tensor, lse: Tensor) -> Tensor | None:
    """The gradient of its logits from one block: its share gives nothing, so it is -Σ share · upstream · out."""
    if not sink.weight.requires_grad:
        return None
    share = torch.where(lse == -torch.inf, 0, (sink.weight.detach().to(lse.dtype)[:, None] - lse).exp())
    return -(share * (upstream * out).sum(-1)).sum(-1).to(sink.weight.dtype)


def _coords(coords: Coords, first: int, count: int, offset: int) -> Coords:
    """The coords of a block, their position that of the whole graph."""
    data = {name: values[..., first : first + count] for name, values in coords.data.items()}
    if "position" not in data:
        data["position"] = torch.arange(first + offset, first + offset + count)
    return Coords(**data)


def _both_sides(coords: object, edges: MappedEdges) -> tuple[Coords, Coords]:
    """Coords of queries and of keys, one a row."""
    if coords is None:
        return Coords(), Coords()
    if not isinstance(coords, tuple) or len(coords) != 2 or not all(isinstance(each, Coords) for each in coords):
        raise TypeError(f"coords is {type(coords).__name__}; it must be a pair of Coords, of queries and of keys")
    for side, each, count in zip(("queries", "keys"), coords, (edges.num_queries, edges.num_keys), strict=True):
        for name, values in each.data.items():
            if values.ndim == 0 or values.shape[-1] != count:
                raise ValueError(f"coords of {side} {name} has shape {list(values.shape)}; it must end in {count}")
    return coords


def _check(
    query: MappedRows, key: MappedRows, value: MappedRows, edges: MappedEdges, bias: object, score: object
) -> None:
    if not isinstance(edges, MappedEdges):
        raise TypeError(f"edges is {type(edges).__name__}; it must be MappedEdges")
    if score is not None and not isinstance(score, Score):
        raise TypeError(f"score is {type(score).__name__}; it must be a Score or None")
    for name, rows, count, block in (
        ("query", query, edges.num_queries, edges.query_block),
        ("key", key, edges.num_keys, edges.key_block),
        ("value", value, edges.num_keys, edges.key_block),
    ):
        if not isinstance(rows, MappedRows):
            raise TypeError(f"{name} is {type(rows).__name__}; it must be MappedRows")
        if len(rows.width) != 2 or rows.dtype != query.dtype or not rows.dtype.is_floating_point:
            wanted = query.dtype if query.dtype.is_floating_point else "a floating dtype"
            raise ValueError(f"{name} is {rows}; it must be [N, H, D] in {wanted}")
        if rows.num_rows != count or (rows.block != block and rows.num_blocks > 1):
            raise ValueError(f"{name} is {rows}; edges join {count}, in blocks of {block}")
    if query.width[1] != key.width[1] or key.width[0] != value.width[0] or query.width[0] % max(1, key.width[0]):
        shapes = ", ".join(str(rows) for rows in (query, key, value))
        raise ValueError(f"query, key and value are {shapes}; D must be one, and H a multiple of the heads of keys")
    if bias is None:
        return
    if not isinstance(bias, Bias):
        raise TypeError(f"bias is {type(bias).__name__}; it must be a Bias: what each edge has is edge data")
    if bias.pattern is not None:
        raise ValueError(f"bias is {bias}; a pattern cannot be had over tiles of edges")
    for term in bias.terms:
        if isinstance(term, Sink) and term.heads != query.width[0]:
            raise ValueError(f"bias Sink has {term.heads} heads; query has {query.width[0]}")
        if getattr(term, "depends_on_length", False):
            raise ValueError(f"bias {term} depends on the largest position of all nodes, which one tile does not know")
