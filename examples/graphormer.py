"""What a distance is worth: a task on small graphs that a transformer solves if it is told the hops between nodes.

Half the nodes of a random graph have the colour 1, half -1. The question to each node: which colour has the majority
among the nodes exactly three hops away? Attention among all nodes of a graph sees every colour but not where they are.
With Graphormer's bias, one learned number a distance, it can look at the third ring alone. Beside both, a GAT of three
layers, which hears along edges: what comes from three hops away is mixed with what went there and back.

python -m examples.graphormer [--small] [--seed 0] [--out out/graphormer]
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import networkx
import torch
from torch import Tensor, nn

from attnops import Edges
from attnops.graph import GAT, CentralityEncoding, GraphormerBias, NodeAttention, NodeBlock, all_pairs, shortest_paths

HOPS, DIM, HEADS = 3, 32, 4


@dataclass
class Batch:
    """Some graphs packed into one."""

    edge_index: Tensor  # [2, E]
    graph: Tensor  # [N], which graph a node is in
    colour: Tensor  # [N, 1]
    answer: Tensor  # [N]: 1 or 0, -1 where there is no majority
    pairs: Edges  # all pairs of each graph, with their distance


def random_graphs(count: int, nodes: int, seed: int) -> Batch:
    """Sparse random graphs, connected or not, packed, with colours and answers."""
    generator = torch.Generator().manual_seed(seed)
    parts, colours, answers = [], [], []
    for which in range(count):
        graph = networkx.gnm_random_graph(nodes, int(1.25 * nodes), seed=1000 * seed + which).to_directed()
        edge_index = torch.tensor(list(graph.edges)).t()
        colour = torch.randperm(nodes, generator=generator) % 2 * 2 - 1
        ring = shortest_paths(edge_index, nodes).distance == HOPS
        balance = (ring * colour).sum(1)
        answers.append(torch.where(balance == 0, -1, (balance > 0).long()))
        colours.append(colour)
        parts.append(edge_index + which * nodes)
    edges, graph = torch.cat(parts, dim=1), torch.arange(count).repeat_interleave(nodes)
    pairs = all_pairs(edges, count * nodes, graph)
    return Batch(edges, graph, torch.cat(colours).float().unsqueeze(1), torch.cat(answers), pairs)


class Transformer(nn.Module):
    """One block of attention among all nodes of a graph; `bias` tells it the distances, or None does not."""

    def __init__(self, bias: GraphormerBias | None) -> None:
        super().__init__()
        self.embed, self.degrees = nn.Linear(1, DIM), CentralityEncoding(DIM, max_degree=16)
        self.block = NodeBlock(NodeAttention(DIM, HEADS, bias))
        self.answer = nn.Linear(DIM, 2)

    def forward(self, batch: Batch) -> Tensor:
        """Logits `[N, 2]`."""
        h = self.degrees(self.embed(batch.colour), batch.edge_index)
        out: Tensor = self.answer(self.block(h, batch.pairs))
        return out


class Local(nn.Module):
    """Three layers of GAT, so that three hops can be heard."""

    def __init__(self) -> None:
        super().__init__()
        self.gat = GAT(1, DIM, HOPS, 2, heads=HEADS, act="elu", residual=True)

    def forward(self, batch: Batch) -> Tensor:
        """Logits `[N, 2]`."""
        out: Tensor = self.gat(batch.colour, batch.edge_index)
        return out


def accuracy(model: nn.Module, batch: Batch) -> float:
    """The share of right answers among nodes that have one."""
    with torch.no_grad():
        right = model(batch).argmax(1) == batch.answer
    return float(right[batch.answer >= 0].float().mean())


def train(model: nn.Module, batches: list[Batch], epochs: int) -> nn.Module:
    """Learn from some batches, each seen once an epoch."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * len(batches))
    for _ in range(epochs):
        for batch in batches:
            loss = nn.functional.cross_entropy(model(batch), batch.answer, ignore_index=-1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return model


def draw(model: Transformer, path: Path) -> None:
    """The learned number of each distance, a line a head."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import MaxNLocator

    table = next(iter(model.block.attention.bias.parameters())).detach()  # [distances + 2, H]
    figure, axes = pyplot.subplots(figsize=(7.5, 3.6), layout="constrained")
    for head in range(table.shape[1]):
        (line,) = axes.plot(table[:-1, head], "o-", label=f"head {head}")
        axes.plot(len(table) - 1, table[-1, head], "s", color=line.get_color())
    axes.axvline(HOPS, color="0.85", linewidth=8, zorder=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    ticks = list(range(len(table)))
    labels = [str(hops) for hops in ticks[:-2]] + [f"≥ {ticks[-2]}", "no path"]
    axes.set_xticks(ticks, labels)
    axes.set(xlabel="hops between the two nodes", ylabel="learned bias", title="what Graphormer's table has learned")
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".draft.png")
    figure.savefig(draft, dpi=120)
    draft.replace(path)
    pyplot.close(figure)


def main(arguments: list[str] | None = None) -> dict[str, tuple[float, float]]:
    """Run from the command line; accuracies in training and on new graphs are returned by model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="fewer graphs and epochs: seconds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("out/graphormer"))
    given = parser.parse_args(arguments)
    batches, graphs, nodes, epochs = (8, 32, 16, 15) if given.small else (16, 32, 24, 12)
    torch.manual_seed(given.seed)
    seen = [random_graphs(graphs, nodes, 100 * given.seed + number + 1) for number in range(batches)]
    new = random_graphs(4 * graphs, nodes, 100 * given.seed)
    models = {
        "all pairs, with distances": Transformer(GraphormerBias(HEADS, max_distance=6)),
        "all pairs, without": Transformer(None),
        f"GAT, {HOPS} layers": Local(),
    }
    print(f"{batches * graphs} graphs of {nodes} nodes; the majority {HOPS} hops away; a guess is right half the time")
    print(f"{'model':28}{'parameters':>12}{'train':>9}{'test':>9}")
    results = {}
    for name, model in models.items():
        train(model, seen, epochs)
        results[name] = (accuracy(model, seen[0]), accuracy(model, new))
        size = sum(parameter.numel() for parameter in model.parameters())
        print(f"{name:28}{size:12}{results[name][0]:9.1%}{results[name][1]:9.1%}")
    path = given.out / "distances.png"
    told = models["all pairs, with distances"]
    assert isinstance(told, Transformer)
    draw(told, path)
    print(f"the learned bias: {path}")
    return results


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
