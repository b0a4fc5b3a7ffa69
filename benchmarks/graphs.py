"""Edge attention beside the same steps of torch-geometric and of DGL, and beside reading what it gathers.

The steps of torch-geometric are those of a message-passing layer, with torch-scatter where that is installed. DGL 1.1.3
runs its fused `u_dot_v`, `edge_softmax` and `u_mul_e_sum`; it is measured where it is installed (`make bench` puts it
into an environment of its own). "Reading" is the time that streaming E·H·(D + Dv) numbers from memory takes. Memory is
of training, above what was held before, sorting the edges included.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch_geometric.utils import scatter, softmax

import attnops
from benchmarks import _side_by_side as side
from benchmarks._memory import peak_bytes

try:
    import dgl
except ImportError:
    dgl = None

SHAPES = {
    "10k nodes, 200k edges, 8 x 16": (10_000, 200_000, 8, 16),
    "50k nodes, 1M edges, 4 x 32": (50_000, 1_000_000, 4, 32),
    "2.7k nodes, 10.6k edges, 8 x 8 (Cora)": (2_708, 10_556, 8, 8),
    "10k nodes, 1M edges, 4 x 64": (10_000, 1_000_000, 4, 64),
}
Forward = Callable[[], Tensor]


def composed(query: Tensor, key: Tensor, value: Tensor, edge_index: Tensor, num_nodes: int) -> Tensor:
    """The steps that a message-passing layer takes: gather to edges, softmax over targets, scatter. `[N, H, D]`."""
    source, target = edge_index
    logits = (query[target] * key[source]).sum(-1) / query.shape[-1] ** 0.5
    weights = softmax(logits, target, num_nodes=num_nodes)
    return scatter(value[source] * weights.unsqueeze(-1), target, 0, num_nodes, reduce="sum")


def by_dgl(query: Tensor, key: Tensor, value: Tensor, graph: Any) -> Tensor:
    """DGL's kernels, one a step. `[N, H, D]`."""
    logits = dgl.ops.u_dot_v(graph, key, query) / query.shape[-1] ** 0.5
    return dgl.ops.u_mul_e_sum(graph, value, dgl.ops.edge_softmax(graph, logits))  # type: ignore[no-any-return]


def main() -> None:
    options = side.arguments(__doc__ or "")
    rows = [measured(name, *shape, options) for name, shape in SHAPES.items()]
    side.write(options, "graphs", [*rows, mean_of(rows)])


def mean_of(rows: list[dict[str, Any]]) -> dict[str, Any]:
    mean: dict[str, Any] = {"shape": "geometric mean"}
    for key in ("forward_pyg_ratio", "training_pyg_ratio", "forward_dgl_ratio", "training_dgl_ratio"):
        if all(row[key] for row in rows):
            mean[key] = statistics.geometric_mean(row[key] for row in rows)
    return mean


def measured(name: str, nodes: int, edges: int, heads: int, dim: int, options: argparse.Namespace) -> dict[str, Any]:
    if options.small:
        nodes, edges = nodes // 100, edges // 100
    query, key, value = vectors = tuple(torch.randn(nodes, heads, dim, requires_grad=True) for _ in range(3))
    edge_index, upstream = torch.randint(0, nodes, (2, edges)), torch.randn(nodes, heads, dim)
    pattern = attnops.Edges(edge_index, nodes, nodes)
    forwards: dict[str, Forward] = {
        "attnops": lambda: over(pattern, *vectors),
        "composed": lambda: composed(query, key, value, edge_index, nodes),
    }
    if dgl is not None:
        graph = dgl.graph((edge_index[0], edge_index[1]), num_nodes=nodes)
        forwards["dgl"] = lambda: by_dgl(query, key, value, graph)

    def train(forward: Forward) -> tuple[Tensor, ...]:
        return torch.autograd.grad(forward(), vectors, upstream)

    for peer, forward in list(forwards.items())[1:]:
        side.assert_equal_numbers([forwards["attnops"]()], [forward()], f"{name}, {peer}")
        side.assert_equal_numbers(
            [*train(forwards["attnops"])], [*train(forward)], f"{name}, gradients, {peer}", relative=2e-4
        )
    buffer = torch.ones(2**20 if options.small else 2**27)
    reading = edges * heads * 2 * dim / buffer.numel() * side.seconds({"sum": buffer.sum}, 5)["sum"]
    rounds = 2 if options.small else 3 if edges > 500_000 else 7
    with torch.no_grad():
        forward = side.seconds(forwards, rounds, turn=0.02, warm=True)
    training = side.seconds(
        {who: lambda run=run: train(run) for who, run in forwards.items()}, rounds, turn=0.02, warm=True
    )

    def whole() -> tuple[Tensor, ...]:
        fresh = attnops.Edges(edge_index, nodes, nodes)
        return train(lambda: over(fresh, *vectors))

    return {
        "shape": name,
        "forward_pyg_ratio": forward["composed"] / forward["attnops"],
        "training_pyg_ratio": training["composed"] / training["attnops"],
        "forward_dgl_ratio": forward["dgl"] / forward["attnops"] if dgl else None,
        "training_dgl_ratio": training["dgl"] / training["attnops"] if dgl else None,
        "forward_reading_times": forward["attnops"] / reading,
        "training_memory_share": peak_bytes(whole) / peak_bytes(lambda: train(forwards["composed"])),
        "forward_ms": forward["attnops"] * 1e3,
        "training_ms": training["attnops"] * 1e3,
    }


def over(pattern: attnops.Edges, *vectors: Tensor) -> Tensor:
    out = attnops.attend(*(x.transpose(0, 1) for x in vectors), pattern=pattern, backend="native")
    assert isinstance(out, Tensor)
    return out.transpose(0, 1)


if __name__ == "__main__":
    main()
