"""Edge attention on `scatter` beside the same steps composed from torch-geometric's `softmax` and `scatter`."""

from __future__ import annotations

import torch
from torch import Tensor
from torch_geometric.utils import scatter, softmax

import attnops
from benchmarks import _side_by_side as side

SHAPES = {
    "10k nodes, 200k edges, 8 x 16": (10_000, 200_000, 8, 16),
    "50k nodes, 1M edges, 4 x 32": (50_000, 1_000_000, 4, 32),
    "2.7k nodes, 10.6k edges, 8 x 8 (Cora)": (2_708, 10_556, 8, 8),
    "10k nodes, 1M edges, 4 x 64": (10_000, 1_000_000, 4, 64),
}


def composed(query: Tensor, key: Tensor, value: Tensor, edge_index: Tensor, num_nodes: int) -> Tensor:
    """The steps that a message-passing layer takes: gather to edges, softmax over targets, scatter. `[N, H, D]`."""
    source, target = edge_index
    logits = (query[target] * key[source]).sum(-1) / query.shape[-1] ** 0.5
    weights = softmax(logits, target, num_nodes=num_nodes)
    return scatter(value[source] * weights.unsqueeze(-1), target, 0, num_nodes, reduce="sum")


def main() -> None:
    options = side.arguments(__doc__ or "")
    rows = []
    for name, (nodes, edges, heads, dim) in SHAPES.items():
        if options.small:
            nodes, edges = nodes // 100, edges // 100
        query, key, value = (torch.randn(nodes, heads, dim, requires_grad=True) for _ in range(3))
        graph = attnops.Edges(torch.randint(0, nodes, (2, edges)), nodes, nodes)
        upstream = torch.randn(nodes, heads, dim)
        vectors = (query, key, value)

        def ours(vectors=vectors, graph=graph) -> Tensor:
            q, k, v = (x.transpose(0, 1) for x in vectors)
            out = attnops.attend(q, k, v, pattern=graph, backend="scatter")
            return out.transpose(0, 1)

        def theirs(vectors=vectors, graph=graph, nodes=nodes) -> Tensor:
            return composed(*vectors, graph.edge_index, nodes)

        def train(forward, vectors=vectors, upstream=upstream):  # type: ignore[no-untyped-def]
            return lambda: torch.autograd.grad(forward(), vectors, upstream)

        side.assert_equal_numbers([ours()], [theirs()], name)
        side.assert_equal_numbers(list(train(ours)()), list(train(theirs)()), f"{name}, gradients")
        rounds = 2 if options.small else 5
        with torch.no_grad():
            forward = side.seconds({"attnops": ours, "composed": theirs}, rounds)
        training = side.seconds({"attnops": train(ours), "composed": train(theirs)}, rounds)
        rows.append(
            {
                "shape": name,
                "forward_ratio": forward["composed"] / forward["attnops"],
                "training_ratio": training["composed"] / training["attnops"],
                "forward_ms": forward["attnops"] * 1e3,
                "training_ms": training["attnops"] * 1e3,
            }
        )
    side.write(options, "scatter", rows)


if __name__ == "__main__":
    main()
