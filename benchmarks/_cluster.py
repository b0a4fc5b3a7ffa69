"""What divided attention sends and computes, by formula, and how long that takes on published cards and links.

The same formulas are compared with counted bytes and pairs (`benchmarks.scale`) before they are carried further.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Sequence:
    """One attention call over a divided sequence; sizes in the legend B H Hkv N D Dv, `size` bytes a number."""

    tokens: int
    batch: int
    heads: int
    kv_heads: int
    dim: int
    value_dim: int
    size: int

    @property
    def key_bytes(self) -> int:
        """Of the keys and values of one token."""
        return self.batch * self.kv_heads * (self.dim + self.value_dim) * self.size

    # --------------------------------------------------------------------------------------------- tokens and pairs

    def needed(self, world: int, pattern: str) -> Tensor:
        """`[W, W]`: how many tokens' keys rank r (row) takes from rank s (column); its own are 0.

        "causal" in zig-zag order, chunks of c = N / 2W: one chunk from the ranks before, two from those behind. "full":
        two from all. "causal, contiguous": two from the ranks before. An int w is a window of w + 1 tokens, contiguous:
        w from the rank before, where a rank holds at least w.
        """
        rank = torch.arange(world)
        before, behind = rank.view(1, -1) < rank.view(-1, 1), rank.view(1, -1) > rank.view(-1, 1)
        chunk = self.tokens // (2 * world)
        if pattern == "causal":
            return chunk * (before.long() + 2 * behind.long())
        if pattern == "full":
            return 2 * chunk * (before | behind).long()
        if pattern == "causal, contiguous":
            return 2 * chunk * before.long()
        return int(pattern.removeprefix("window ")) * (rank.view(1, -1) == rank.view(-1, 1) - 1).long()

    def ring_bytes(self, world: int, pattern: str, backward: bool) -> list[int]:
        """What each rank sends: keys and values in a forward; those again, and gradients of others', in a backward."""
        needed = self.needed(world, pattern)
        sent, returned = needed.sum(0), needed.sum(1)
        return [int(n) * self.key_bytes for n in (sent + returned if backward else sent)]

    def all_to_all_bytes(self, world: int, backward: bool) -> list[int]:
        """Queries, keys and values to the ranks of their heads, outputs with lse (4 bytes) back: the same each way."""
        share = self.tokens // world * (world - 1) // world  # tokens times the share of heads that leave
        vectors = self.heads * self.dim + self.kv_heads * (self.dim + self.value_dim) + self.heads * self.value_dim
        return [self.batch * share * (vectors * self.size + self.heads * 4)] * world

    def pairs(self, world: int, pattern: str) -> list[int]:
        """How many pairs of a query and a key each rank scores."""
        own, chunk, found = self.tokens // world, self.tokens // (2 * world), []
        for rank in range(world):
            if pattern == "full":
                count = own * self.tokens
            elif pattern == "causal":
                count = chunk * chunk * (2 * world - 1) + chunk * (chunk + 1)
            elif pattern == "causal, contiguous":
                count = own * own * rank + own * (own + 1) // 2
            else:
                window = int(pattern.removeprefix("window "))
                count = own * (window + 1) - (window * (window + 1) // 2 if rank == 0 else 0)
            found.append(self.batch * self.heads * count)
        return found


@dataclass(frozen=True)
class Graph:
    """Attention over a divided graph: `row` bytes of key and value a node."""

    nodes: int
    edges: int
    row: int

    def halo_rows(self, world: int, share: float = 1.0) -> float:
        """Rows that a rank receives: the distinct others' nodes among the sources of its E/W edges.

        Where parts know nothing of the edges, N (1 - 1/W) (1 - exp(-E / (W N))); `share` is what a partition leaves.
        """
        spread = 1 - math.exp(-self.edges / (world * self.nodes))
        return share * self.nodes * (1 - 1 / world) * spread


@dataclass(frozen=True)
class Cluster:
    """Cards in nodes: what a card computes and reads, and its links inside a node and between nodes, one way."""

    name: str
    flops: float  # of attention, a second
    memory: float  # bytes a second
    inside: float  # bytes a second
    between: float
    node: int = 8
    latency: float = 10e-6

    def link(self, world: int) -> float:
        """The slower of the links that a group of so many cards uses."""
        return self.inside if world <= self.node else self.between


# NVIDIA's data sheets: H100 SXM, 900 GB/s NVLink both ways together, 3.35 TB/s of memory; ConnectX-7, 400 Gb/s a card;
# its predecessor of 100 Gb/s Ethernet for comparison. FlashAttention-3 (arXiv:2407.08608) reaches 740 of the card's 989
# TFLOPS forward in half precision. The latency of a message is an assumption.
CLUSTERS = (
    Cluster("H100, NVLink in nodes of 8, 400 Gb/s between", 740e12, 3.35e12, 450e9, 50e9),
    Cluster("H100, NVLink in nodes of 8, 100 Gb/s between", 740e12, 3.35e12, 450e9, 12.5e9),
    Cluster("H100, 256 cards on one NVLink switch", 740e12, 3.35e12, 450e9, 50e9, node=256),
)

# A layer of Llama 3 8B (32 heads on 8, D = 128, bfloat16) over 2^20 tokens.
MILLION = Sequence(2**20, 1, 32, 8, 128, 128, 2)
# ogbn-papers100M (Hu et al. 2020, arXiv:2005.00687), 4 heads of 64, bfloat16.
PAPERS = Graph(111_059_956, 1_615_685_872, 4 * (64 + 64) * 2)
METIS = 0.2  # of a random partition's halo: 0.15 to 0.31 for 8 to 512 parts of MUSAE's Facebook pages (docs/scale.md)


def ring_seconds(work: Sequence, cluster: Cluster, world: int, pattern: str) -> dict[str, float]:
    """A forward over a ring: in each step the slowest rank computes while the next blocks travel."""
    per_pair = 2 * (work.dim + work.value_dim)
    pairs = torch.tensor(work.pairs(world, pattern), dtype=torch.float64)
    compute = float(pairs.max()) * per_pair / cluster.flops
    needed = work.needed(world, pattern)
    rank = torch.arange(world)
    # tokens that each rank receives in step t, of the slowest
    arriving = [float(needed[rank, (rank - t) % world].max()) * work.key_bytes for t in range(1, world)]
    link = cluster.link(world)
    sending = [size / link + cluster.latency if size else 0.0 for size in arriving]
    step = compute / world
    exposed = sum(max(0.0, seconds - step) for seconds in sending)
    return {"compute": compute, "sending": sum(sending), "total": compute + exposed}


def all_to_all_seconds(work: Sequence, cluster: Cluster, world: int, pattern: str) -> dict[str, float] | None:
    """A forward with heads exchanged, nothing overlapped; None where heads do not divide."""
    if work.heads % world or work.kv_heads % world:
        return None
    pairs = sum(work.pairs(1, pattern)) / world
    compute = pairs * 2 * (work.dim + work.value_dim) / cluster.flops
    sending = work.all_to_all_bytes(world, False)[0] / cluster.link(world) + 4 * cluster.latency
    return {"compute": compute, "sending": sending, "total": compute + sending}


def halo_seconds(graph: Graph, cluster: Cluster, world: int, share: float) -> dict[str, float]:
    """A forward over a graph: edges read the rows of their sources from memory; the halo travels before."""
    compute = graph.edges / world * graph.row / cluster.memory
    sending = graph.halo_rows(world, share) * graph.row / cluster.link(world) + cluster.latency
    return {"compute": compute, "sending": sending, "total": compute + sending}
