"""A temporal graph: a stream of messages between people, read by attention that hears from the past alone.

Events are nodes; an event hears from the earlier events of its two people. Timestamps are positions: `Causal()` over
`Edges` forbids the future, and `ALiBi` or `TimeGap` over the same timestamps says that the recent past matters more.

The task: tell the mood of each message from a noisy look at it. Two people have a mood between them that changes now
and then, so the last messages of the two say more than those of long ago. A third model may also hear from the future.
It scores best on a recorded stream, and that is the trap: replayed as the stream comes in, its answers change.

python -m examples.temporal_graph [--small] [--seed 0] [--out out/temporal_graph]
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

import attnops
from attnops import ALiBi, Causal, Coords, Edges, TimeGap
from attnops.graph import NodeAttention

MOODS, LOOK = 2, 4


@dataclass
class Stream:
    """Events in the order of time."""

    time: Tensor  # [N], ascending
    pair: Tensor  # [N], which two people
    mood: Tensor  # [N]
    look: Tensor  # [N, LOOK]


def simulate(events: int, pairs: int, seed: int, noise: float = 1.6, change: float = 0.08) -> Stream:
    """Messages at random times; a pair's mood changes at the rate `change` (1 / time), and each look is noisy."""
    generator = torch.Generator().manual_seed(seed)
    time = torch.rand(events, generator=generator, dtype=torch.float64).sort().values * events / pairs
    pair = torch.randint(0, pairs, (events,), generator=generator)
    mood = torch.zeros(events, dtype=torch.int64)
    for which in range(pairs):
        own = (pair == which).nonzero().flatten()
        gaps = torch.diff(time[own], prepend=time.new_full((1,), -1e9))
        changed = torch.rand(len(own), generator=generator) < 1 - (-change * gaps).exp()
        drawn = torch.randint(0, MOODS, (len(own),), generator=generator)
        last = torch.cummax(torch.where(changed, torch.arange(len(own)), 0), 0).values
        mood[own] = drawn[last]
    centre = torch.zeros(MOODS, LOOK).index_put((torch.arange(MOODS), torch.arange(MOODS)), torch.tensor(1.0))
    return Stream(time, pair, mood, centre[mood] + noise * torch.randn(events, LOOK, generator=generator))


def same_pair(stream: Stream) -> Edges:
    """Every two events of one pair of people, both ways, and each event with itself."""
    order = torch.sort(stream.pair, stable=True).indices
    blocks = torch.split(order, torch.bincount(stream.pair).tolist())
    return Edges(
        torch.cat([torch.cartesian_prod(block, block).view(-1, 2).t() for block in blocks], dim=1),
        len(stream.time), len(stream.time),
    )  # fmt: skip


class Reader(nn.Module):
    """Two rounds of attention over a stream; `past` keeps the future out."""

    def __init__(self, bias: attnops.Bias | None, past: bool = True, dim: int = 16, heads: int = 4) -> None:
        super().__init__()
        self.past = past
        self.embed = nn.Linear(LOOK, dim)
        self.rounds = nn.ModuleList(NodeAttention(dim, heads, bias) for _ in range(2))
        self.answer = nn.Linear(dim, MOODS)

    def forward(self, look: Tensor, time: Tensor, edges: Edges) -> Tensor:
        """`[N, LOOK]` to logits `[N, MOODS]`."""
        pattern = edges & Causal() if self.past else edges
        when = Coords(position=time, time=time)  # Causal and ALiBi read the position, TimeGap the time
        h = self.embed(look)
        for attention in self.rounds:
            h = h + attention(torch.nn.functional.gelu(h), pattern, when)
        out: Tensor = self.answer(h)
        return out


def readers(heads: int = 4) -> dict[str, Reader]:
    """The models of the table, by what they are told."""
    return {
        "each message alone": Reader(Nothing()),
        "past": Reader(None),
        "past + ALiBi over time": Reader(ALiBi(heads)),
        "past + TimeGap": Reader(TimeGap(heads)),
        "past and future + TimeGap": Reader(TimeGap(heads), past=False),
    }


class Nothing(attnops.Bias):
    """-inf between different events: no event hears from another."""

    def forward(self, pairs: attnops.Pairs) -> Tensor:
        same = pairs.query.index == pairs.key.index
        return torch.where(same, 0.0, -torch.inf).to(pairs.dtype)


def train(model: Reader, stream: Stream, until: int, steps: int) -> Reader:
    """Learn from the events before number `until`."""
    known = Stream(*(part[:until] for part in (stream.time, stream.pair, stream.mood, stream.look)))
    edges = same_pair(known)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=1.0)
    for _ in range(steps):
        loss = nn.functional.cross_entropy(model(known.look, known.time, edges), known.mood)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


def replay(model: Reader, stream: Stream, first: int) -> Tensor:
    """The answer to each event from number `first` on, given as the event comes in: nothing later is there yet."""
    answers = []
    for now in range(first, len(stream.time)):
        own = (stream.pair[: now + 1] == stream.pair[now]).nonzero().flatten()
        known = Stream(*(part[own] for part in (stream.time, stream.pair, stream.mood, stream.look)))
        known.pair = torch.zeros(len(own), dtype=torch.int64)
        answers.append(model(known.look, known.time, same_pair(known))[-1])
    return torch.stack(answers)


def leakage(model: Reader, stream: Stream) -> float:
    """The largest gradient of an answer with respect to a later event, over all pairs of events; it must be 0."""
    edges = same_pair(stream)
    jacobian = torch.autograd.functional.jacobian(
        lambda look: model(look, stream.time, edges).sum(1), stream.look, vectorize=False
    )
    reached = jacobian.abs().sum(-1)  # [answer, event]
    later = stream.time.unsqueeze(0) > stream.time.unsqueeze(1)
    return float(reached[later].max())


def draw(model: Reader, stream: Stream, path: Path) -> None:
    """Who hears whom, and how much, among the events of one pair of people."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    moods = torch.zeros(int(stream.pair.max()) + 1, MOODS).index_put(
        (stream.pair, stream.mood), torch.tensor(1.0), True
    )
    own = (stream.pair == moods.amin(1).argmax()).nonzero().flatten()[:24]  # of the two with most of both moods
    time, look, mood = stream.time[own], stream.look[own], stream.mood[own]
    before = torch.tril_indices(len(own), len(own)).flip(0)  # the events are in the order of time
    edges, attention = Edges(before, len(own), len(own)), model.rounds[0]
    query, key, value = attention.project(nn.functional.gelu(model.embed(look)))
    heard = attnops.attend(
        query, key, value, pattern=edges, bias=attention.bias, coords=Coords(time=time), return_weights=True
    )
    assert isinstance(heard, attnops.AttentionOutput) and heard.weights is not None
    weights = heard.weights.detach().mean(0)
    figure, (left, right) = pyplot.subplots(
        1, 2, figsize=(11, 4), layout="constrained", gridspec_kw={"width_ratios": [1, 1.3]}
    )
    attnops.viz.draw_weights(weights, edges, ax=left)
    left.set(title="attention, mean over heads", xlabel="hears from event", ylabel="event")
    for (j, i), weight in zip(edges.edge_index.t().tolist(), weights.tolist(), strict=True):
        if j != i and weight > 0.02:
            way = {"arrowstyle": "->", "connectionstyle": "arc3,rad=-0.5", "alpha": min(1.0, 2 * weight)}
            right.annotate("", (float(time[i]), 0), (float(time[j]), 0), arrowprops=way)
    for which, colour in enumerate(("#0072b2", "#d55e00")):
        right.scatter(time[mood == which], 0 * time[mood == which], c=colour, zorder=3, s=60, label=f"mood {which}")
    right.set(title="the same along the axis of time", xlabel="time", yticks=[], ylim=(-0.15, 1))
    right.legend(frameon=False, loc="upper left")
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".draft.png")
    figure.savefig(draft, dpi=110)
    draft.replace(path)
    pyplot.close(figure)


def main(arguments: list[str] | None = None) -> dict[str, tuple[float, float, float]]:
    """Run from the command line; by model, accuracy on the record, accuracy replayed, and leakage are returned."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="fewer events and steps: seconds")
    parser.add_argument("--events", type=int, default=None, help="events of the stream (4000; 400 in small)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("out/temporal_graph"))
    given = parser.parse_args(arguments)
    events = given.events or (400 if given.small else 4000)
    steps = 30 if given.small else 80
    stream = simulate(events, max(4, events // 40), given.seed)
    first = int(events * 0.7)  # learned on what comes before, asked about what comes after

    print(f"{events} events, the last {events - first} of them asked about; seed {given.seed}")
    print(f"{'model':28}{'on the record':>15}{'replayed':>11}{'leakage':>11}")
    torch.manual_seed(given.seed)
    results, models = {}, readers()
    whole, glimpse = same_pair(stream), simulate(60, 3, given.seed + 1)
    for name, model in models.items():
        train(model, stream, first, steps)
        with torch.no_grad():
            recorded = model(stream.look, stream.time, whole)[first:].argmax(-1)
            replayed = replay(model, stream, first).argmax(-1)
        truth = stream.mood[first:]
        scores = [float((answers == truth).float().mean()) for answers in (recorded, replayed)]
        results[name] = (scores[0], scores[1], leakage(model, glimpse))
        print(f"{name:28}{scores[0]:15.1%}{scores[1]:11.1%}{results[name][2]:11.2g}")
    path = given.out / "stream.png"
    draw(models["past + TimeGap"], stream, path)
    print(f"leakage: the largest gradient of an answer with respect to a later event\nwho hears whom: {path}")
    return results


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
