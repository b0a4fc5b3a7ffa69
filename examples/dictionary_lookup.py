"""The dictionary lookup: a task that GAT cannot solve, whatever its width, and GATv2 can.

K keys each carry an attribute and a value; K queries each carry an attribute and ask for the value of the key that has
the same one. Every query hears from every key, through one layer. GAT's score is LeakyReLU(a_q·q_i + a_k·k_j): all
queries rank the keys alike, so at most one of them finds its own. GATv2's is a·LeakyReLU(q_i + k_j): each ranks them
its own way (Brody et al. 2022, arXiv:2105.14491).

python -m examples.dictionary_lookup [--small] [--seed 0] [--out out/dictionary_lookup]
"""

from __future__ import annotations

import argparse
import textwrap
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

import attnops
from attnops.graph import GATConv, GATv2Conv

LAYERS: dict[str, type[GATConv] | type[GATv2Conv]] = {"GAT": GATConv, "GATv2": GATv2Conv}


class Lookup(nn.Module):
    """One attention layer from keys to queries, between embeddings and a classifier of values."""

    def __init__(self, layer: type[GATConv] | type[GATv2Conv], keys: int, width: int, heads: int) -> None:
        super().__init__()
        self.attribute, self.value = nn.Embedding(keys, width), nn.Embedding(keys, width)
        self.asked = nn.Embedding(keys, width)
        for embedding in (self.attribute, self.value, self.asked):
            nn.init.normal_(embedding.weight, std=0.2)  # at 1, attention is sharp, and stuck, before it has learned
        self.attention = layer((width, width), width // heads, heads=heads, add_self_loops=False)
        self.answer = nn.Linear(width, keys)

    def forward(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """The value of each key, `[B, K]`, to logits of the value of each query, `[B, K, K]`, and weights `[E, H]`."""
        attributes = torch.arange(values.shape[1]).expand_as(values)
        keys = (self.attribute(attributes) + self.value(values)).flatten(0, 1)
        queries = self.asked(attributes).flatten(0, 1)
        heard, (_, weights) = self.attention(
            (keys, queries), everyone_to_everyone(*values.shape), return_attention_weights=True
        )
        return self.answer(heard).view(*values.shape, -1), weights


def everyone_to_everyone(batch: int, keys: int) -> Tensor:
    """All edges from the K keys of a dictionary to its K queries, for each of B dictionaries: `[2, B·K²]`."""
    one = torch.cartesian_prod(torch.arange(keys), torch.arange(keys))
    return (one + keys * torch.arange(batch).view(-1, 1, 1)).flatten(0, 1).t()


def dictionaries(count: int, keys: int, generator: torch.Generator) -> Tensor:
    """Values of the keys, `[count, K]`, each by itself at random, so that a value cannot be told by elimination."""
    return torch.randint(0, keys, (count, keys), generator=generator)


@dataclass
class Outcome:
    """What a layer learned."""

    layer: str
    width: int
    accuracy: float  # over queries of new dictionaries
    favourites: int  # different keys that queries attend to most
    weights: Tensor  # [H, K, K], of one dictionary


def learn(layer: str, keys: int, width: int, heads: int, steps: int, seed: int) -> Outcome:
    """Train a layer on random dictionaries and ask it about new ones."""
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    model = Lookup(LAYERS[layer], keys, width, heads)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        values = dictionaries(32, keys, generator)
        loss = nn.functional.cross_entropy(model(values)[0].flatten(0, 1), values.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        new = dictionaries(256, keys, generator)
        accuracy = float((model(new)[0].argmax(-1) == new).float().mean())
        _, listed = model(new[:1])
    weights = listed.view(keys, keys, heads).permute(2, 1, 0)  # listed key by key
    favourites = len(weights[0].argmax(-1).unique())
    return Outcome(layer, width, accuracy, favourites, weights)


def draw(outcomes: list[Outcome], path: Path) -> None:
    """The attention matrices of both layers, side by side; the file is written whole or not at all."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(outcomes), figsize=(9, 4), layout="constrained")
    attnops.viz.draw_weights(torch.cat([outcome.weights[:1] for outcome in outcomes]), ax=list(panels))
    for outcome, axes in zip(outcomes, panels, strict=True):
        keys = outcome.weights.shape[-1]
        title = f"{outcome.layer}: {outcome.favourites} of {keys} keys attended to most by some query"
        axes.set(title=textwrap.fill(title, 36), xlabel="key", ylabel="query")
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".draft.png")
    figure.savefig(draft, dpi=120)
    draft.replace(path)
    pyplot.close(figure)


def main(arguments: list[str] | None = None) -> list[Outcome]:
    """Run from the command line; the outcomes are returned."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="fewer keys, widths and steps: seconds")
    parser.add_argument("--keys", type=int, default=None, help="K (10; 5 in small)")
    parser.add_argument("--heads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("out/dictionary_lookup"))
    given = parser.parse_args(arguments)
    keys = given.keys or (5 if given.small else 10)
    widths, steps = ((64,), 200) if given.small else ((64, 128, 256), 800)

    print(f"{keys} keys; a guess is right once in {keys}; {steps} steps; {given.heads} head(s); seed {given.seed}")
    print(f"{'layer':8}{'width':>6}{'right':>9}   keys that some query attends to most")
    outcomes = []
    for layer in LAYERS:
        for width in widths:
            outcome = learn(layer, keys, width, given.heads, steps, given.seed)
            outcomes.append(outcome)
            print(f"{layer:8}{width:6}{outcome.accuracy:9.1%}   {outcome.favourites} of {keys}")
    path = given.out / "attention.png"
    draw([outcome for outcome in outcomes if outcome.width == widths[-1]], path)
    print(f"attention of one dictionary: {path}")
    return outcomes


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
