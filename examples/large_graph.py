"""A graph of millions of edges, trained full-batch inside a budget of memory.

Attention over parts of the keys gives partial results that `merge` joins exactly, so a layer goes through the edges
part by part: each part is sorted, attended and joined to what is known so far, and nothing as long as all edges is ever
laid out. In the backward pass each part is computed again rather than kept (`torch.utils.checkpoint`). Loss and
gradients are those of one pass over all edges, up to rounding; `--chunks 1` is that pass. Measured for 10 million edges
on 100 000 nodes, Python and torch included: 1.13 GB resident at most in 8 parts, 2.30 GB in one.

The graph is made up: nodes of a few communities, four edges of five within them, features that say little. The task is
the community of a node.

python -m examples.large_graph [--edges 10000000] [--chunks 8] [--budget 1.5] [--small] [--out out/large_graph]
"""

from __future__ import annotations

import argparse
import ctypes
import json
import resource
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import attnops
from attnops import AttentionOutput, Edges

BLOCKS, COMMUNITIES, FEATURES = 64, 8, 16


@dataclass
class Part:
    """The edges whose sources (keys) are the nodes from `first` up to `last`."""

    first: int
    last: int
    edge_index: Tensor  # int32 [2, E'], sources counted from `first`


@dataclass
class Graph:
    """Nodes, and the edges in parts of disjoint keys."""

    x: Tensor  # [N, FEATURES]
    community: Tensor  # [N]
    parts: list[Part]


def make_graph(edges: int, nodes: int, chunks: int, seed: int) -> Graph:
    """The same graph for every number of chunks; `nodes` is a multiple of `BLOCKS`."""
    generator = torch.Generator().manual_seed(seed)
    community = torch.arange(nodes) % COMMUNITIES
    x = torch.randn(nodes, FEATURES, generator=generator)
    x[:, :COMMUNITIES] += 0.5 * nn.functional.one_hot(community, COMMUNITIES)
    size = nodes // BLOCKS
    blocks = []
    for block in range(BLOCKS):  # a block of sources at a time
        count = edges * (block + 1) // BLOCKS - edges * block // BLOCKS
        source = torch.randint(block * size, (block + 1) * size, (count,), generator=generator)
        target = torch.randint(0, nodes, (count,), generator=generator)
        inside = torch.rand(count, generator=generator) < 0.8
        neighbour = target - target % COMMUNITIES + source % COMMUNITIES
        target = torch.where(inside & (neighbour < nodes), neighbour, target)
        blocks.append(torch.stack([source, target]).int())
    parts, each = [], BLOCKS // chunks
    for start in range(0, BLOCKS, each):
        edge_index = torch.cat(blocks[start : start + each], dim=1)
        edge_index[0] -= start * size
        parts.append(Part(start * size, (start + each) * size, edge_index))
        blocks[start : start + each] = [edge_index[:, :0]] * each  # let go of
    return Graph(x, community, parts)


def attend_to(part: Part, query: Tensor, key: Tensor, value: Tensor, *known: Tensor) -> tuple[Tensor, Tensor]:
    """Attention over the keys of one part, joined to what is known from the parts before: (out, lse)."""
    edges = Edges(part.edge_index, query.shape[1], part.last - part.first)
    keys = slice(part.first, part.last)
    own = attnops.attend(query, key[:, keys], value[:, keys], pattern=edges, return_lse=True)
    assert isinstance(own, AttentionOutput)
    joined = attnops.merge([AttentionOutput(*known), own]) if known else own
    assert joined.lse is not None
    return joined.out, joined.lse


class Layer(nn.Module):
    """Attention over the edges, part by part, then a feed-forward."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.attention_norm, self.norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.feed_forward = nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, dim))

    def forward(self, h: Tensor, parts: list[Part]) -> Tensor:
        """`[N, dim]` to `[N, dim]`."""
        query, key, value = (rows.transpose(0, 1) for rows in self.qkv(h).view(len(h), 3, self.heads, -1).unbind(1))
        known: tuple[Tensor, ...] = ()
        for part in parts:
            if len(parts) == 1:
                known = attend_to(part, query, key, value)
            else:
                known = checkpoint(attend_to, part, query, key, value, *known, use_reentrant=True)
        h = self.attention_norm(h + self.out(known[0].transpose(0, 1).flatten(1)))
        out: Tensor = self.norm(h + self.feed_forward(h))
        return out


class Model(nn.Module):
    """Two layers between a map of the features and one to communities."""

    def __init__(self, dim: int = 32, heads: int = 2, layers: int = 2) -> None:
        super().__init__()
        self.embed, self.answer = nn.Linear(FEATURES, dim), nn.Linear(dim, COMMUNITIES)
        self.layers = nn.ModuleList(Layer(dim, heads) for _ in range(layers))

    def forward(self, graph: Graph) -> Tensor:
        """Logits `[N, COMMUNITIES]`."""
        h = self.embed(graph.x)
        for layer in self.layers:
            h = layer(h, graph.parts)
        out: Tensor = self.answer(h)
        return out


def peak_memory() -> float:
    """The most memory that this process has had resident, in GB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e9 if sys.platform == "darwin" else peak * 1024 / 1e9  # macOS counts bytes, Linux KiB


def backend_of(graph: Graph, heads: int = 2, dim: int = 16) -> str:
    """Which backend a part runs on. (`attnops.trace` would keep all parts sorted, since its plans keep their edges.)"""
    part, rows = graph.parts[0], torch.zeros(heads, 1, dim, requires_grad=True)
    query, key = (rows.expand(-1, count, -1) for count in (len(graph.x), part.last - part.first))
    edges = Edges(part.edge_index, query.shape[1], key.shape[1])
    return attnops.plan(query, key, key, pattern=edges, return_lse=True).backend


def give_back_freed_memory() -> None:
    """Tell glibc to return freed blocks at once: it keeps those of up to 32 MB, in pieces, for blocks to come."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(-3, 1 << 20)  # M_MMAP_THRESHOLD


def main(arguments: list[str] | None = None) -> dict[str, float]:
    """Run from the command line; the figures are returned. The exit code is 1 where the budget was exceeded."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--edges", type=int, default=10_000_000)
    parser.add_argument("--nodes", type=int, default=None, help="a hundredth of the edges, if not given")
    parser.add_argument("--chunks", type=int, default=8, choices=[1, 2, 4, 8, 16, 32, 64])
    parser.add_argument("--steps", type=int, default=5, help="full-batch steps of training")
    parser.add_argument("--budget", type=float, default=1.5, help="GB of resident memory, Python and torch included")
    parser.add_argument("--small", action="store_true", help="20 000 edges: seconds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("out/large_graph"))
    given = parser.parse_args(arguments)
    edges = 20_000 if given.small else given.edges
    nodes = max(1, round((given.nodes or edges // 100) / BLOCKS)) * BLOCKS
    torch.manual_seed(given.seed)

    give_back_freed_memory()
    bare = peak_memory()
    graph = make_graph(edges, nodes, given.chunks, given.seed)
    made = peak_memory()
    model = Model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    known = torch.rand(nodes) < 0.1  # whose community is told
    print(f"{nodes} nodes, {edges} edges in {given.chunks} part(s); seed {given.seed}; budget {given.budget:g} GB")
    print(f"{'step':>4}{'loss':>9}{'accuracy':>10}{'seconds':>9}{'resident at most, GB':>22}")
    seconds = []
    for step in range(given.steps):
        start = time.perf_counter()
        logits = model(graph)
        loss = nn.functional.cross_entropy(logits[known], graph.community[known])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seconds.append(time.perf_counter() - start)
        last = loss.item()
        accuracy = float((logits.argmax(1) == graph.community)[~known].float().mean())
        print(f"{step + 1:4}{last:9.4f}{accuracy:10.1%}{seconds[-1]:9.2f}{peak_memory():22.2f}", flush=True)
    figures = {
        "edges": edges, "nodes": nodes, "chunks": given.chunks, "loss": last, "accuracy": accuracy,
        "seconds_a_step": min(seconds), "peak_gb": peak_memory(), "bare_gb": bare, "with_graph_gb": made,
    }  # fmt: skip
    print(f"backend: {backend_of(graph)}; at most {bare:.2f} GB before the graph, {made:.2f} with it")
    given.out.mkdir(parents=True, exist_ok=True)
    draft = given.out / "figures.draft"
    draft.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    draft.replace(given.out / "figures.json")
    if figures["peak_gb"] > given.budget:
        raise SystemExit(
            f"{figures['peak_gb']:.2f} GB were resident; the budget is {given.budget:g} GB (more --chunks?)"
        )
    print(f"within the budget: {figures['peak_gb']:.2f} of {given.budget:g} GB")
    return figures


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
