"""Bytes that the halo exchange sends on METIS parts of real social graphs, beside sending all keys to all ranks.

Counted from the plans that run, not timed: rows of one key and one value each, 4 heads of 64, float32. First the result
of every division is compared with that of one process. Real graphs are read from $ATTNOPS_DATA (snap-graphs, from
SNAP, Leskovec and Krevl 2014); without it, one drawn with communities stands in, and says nothing about real ones.
"""

from __future__ import annotations

import csv
import gzip
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import attnops
from attnops import Edges
from attnops.distributed import HaloPlan, partition, plan_halo
from benchmarks import _side_by_side as side

HEADS, DIM, BYTES = 4, 64, 4
GRAPHS = ("facebook-combined", "email-enron", "soc-slashdot0902-directed", "ego-twitter-undirected")


def main() -> None:
    options = side.arguments(__doc__ or "")
    folder = Path(os.environ.get("ATTNOPS_DATA", "")) / "snap-graphs"
    names = [name for name in GRAPHS if (folder / f"{name}.jlg.gz").exists()]
    graphs = {name: read(folder / f"{name}.jlg.gz") for name in (names[:1] if options.small else names)}
    rows = [row for name, edges in (graphs or {"drawn": drawn()}).items() for row in measured(name, edges)]
    side.write(options, "halo", rows)


def measured(name: str, edges: Edges) -> list[dict[str, Any]]:
    """2, 4 and 8 parts of a graph, by METIS and by range."""
    rows = []
    for parts in (2, 4, 8):
        shares = {}
        for method in ("metis", "range"):
            divided = partition(edges, parts, method)
            plans = [plan_halo(edges, divided, rank=rank) for rank in range(parts)]
            check(edges, plans, f"{name} in {parts} parts")
            sent = [plan.keys.num_sent for plan in plans]
            shares[method] = sum(sent) / (edges.num_keys * (parts - 1))
            if method == "metis":
                loads = [plan.edges.num_edges for plan in plans]
        row_bytes = 2 * HEADS * DIM * BYTES
        rows.append(
            {
                "graph": name,
                "nodes": edges.num_keys,
                "edges": edges.num_edges,
                "parts": parts,
                "all_keys_MB": edges.num_keys * (parts - 1) * row_bytes / 1e6,
                "halo_MB": shares["metis"] * edges.num_keys * (parts - 1) * row_bytes / 1e6,
                "share": shares["metis"],
                "share_by_range": shares["range"],
                "most_edges_of_mean": max(loads) * parts / edges.num_edges,
            }
        )
    return rows


def check(edges: Edges, plans: list[HaloPlan], what: str) -> None:
    """What each rank computes from the rows that it is sent is what one process computes."""
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 1, edges.num_keys, 8)
    want = attnops.attend(query, key, value, pattern=edges)
    got = torch.empty_like(value)
    for rank, plan in enumerate(plans):
        held = [plan.keys.own]
        for sender in plans:
            held.append(sender.keys.own[torch.split(sender.keys.send_rows, list(sender.keys.send_counts))[rank]])
        rows = torch.cat(held)
        out = attnops.attend(query[:, plan.queries], key[:, rows], value[:, rows], pattern=plan.edges)
        assert isinstance(out, Tensor)
        got[:, plan.queries] = out
    assert isinstance(want, Tensor)
    side.assert_equal_numbers([got], [want], what)


def read(path: Path) -> Edges:
    """Each edge both ways where the graph is undirected; sources are followed, and heard."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        rows = csv.reader(file)
        nodes, _, kind, *_ = next(rows)
        ends = torch.tensor([[int(end) for end in row] for row in rows]).t() - 1
    ends = torch.cat([ends, ends.flip(0)], dim=1) if kind == "u" else ends
    return Edges(ends, int(nodes), int(nodes))


def drawn(nodes: int = 4000, communities: int = 40, degree: int = 10) -> Edges:
    """Communities, their nodes in random order; nine edges of ten lie within one."""
    size, shuffled = nodes // communities, torch.randperm(nodes)
    source, other = torch.randint(0, nodes, (2, nodes * degree))
    target = torch.where(torch.rand(len(source)) < 0.9, source // size * size + other % size, other)
    return Edges(torch.stack([shuffled[source], shuffled[target]]), nodes, nodes)


if __name__ == "__main__":
    main()
