"""Attention over a social graph that is divided over processes: each holds a part of the nodes and trains with all.

    torchrun --nproc-per-node 2 -m examples.graph_distributed   # two processes: gloo on CPUs, NCCL on GPUs
    torchrun --nproc-per-node 2 --max-restarts 3 -m examples.graph_distributed   # started again when one dies
    python -m examples.graph_distributed                        # one process, the same losses

The task is the type of a page from what it says and whom it likes. METIS divides the graph so that few likes cross from
one part to another; each process plans once what it sends to whom, and before each layer the features of those nodes
travel (`halo_exchange`), and back their gradients. The layers are `GATv2Conv`, which know nothing of it. What is known
of a page stays where the page lies: no process holds all features.

Every `--every` steps a checkpoint is written (torch.distributed.checkpoint), under another name and then renamed; a
start goes on from the last whole one, with any number of processes. Losses are those of one undisturbed process, up to
rounding. A process that dies ends the others: their next exchange fails at once, or after `--timeout` seconds where the
lost one hangs instead.

The graph is the Facebook pages of MUSAE (Rozemberczki et al. 2021) where $ATTNOPS_DATA/musae holds them, else, or with
--small, one that is drawn here: communities whose nodes look alike a little.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.elastic.multiprocessing.errors import record

from attnops import Edges
from attnops.distributed import HaloPlan, halo_exchange, init_processes, partition, plan_halo
from attnops.graph import GATv2Conv
from examples.arguments import positive
from examples.distributed_run import claim, keep, resume
from examples.outputs import add_out

WORDS = 128  # features of a page: the many words that it may hold, hashed to so many


@dataclass
class Graph:
    """A graph whose nodes have features and a class."""

    name: str
    edges: Edges
    x: Tensor  # [N, F]
    kind: Tensor  # [N]


# ------------------------------------------------------------------------------------------------------------ graphs


def draw_graph(nodes: int = 600, kinds: int = 4, degree: int = 8) -> Graph:
    """Communities: four edges of five lie within one, and features say a little."""
    generator = torch.Generator().manual_seed(0)
    kind = torch.randint(0, kinds, (nodes,), generator=generator)
    source, other = torch.randint(0, nodes, (2, nodes * degree // 2), generator=generator)
    by_kind = torch.argsort(kind, stable=True)
    counts = torch.bincount(kind, minlength=kinds)
    first = counts.cumsum(0) - counts
    place = first[kind[source]] + other % counts[kind[source]]  # a node of the source's own kind
    inside = torch.rand(len(source), generator=generator) < 0.8
    target = torch.where(inside, by_kind[place], other)
    x = torch.randn(nodes, 16, generator=generator)
    x[:, :kinds] += nn.functional.one_hot(kind, kinds)
    return Graph("drawn here", both_ways(source, target, nodes), x, kind)


def read_facebook(folder: Path) -> Graph:
    """Pages of Facebook that like each other, and their types."""
    with gzip.open(folder / "facebook_target.csv.gz", "rt", encoding="utf-8") as file:
        types = {int(row["id"]): row["page_type"] for row in csv.DictReader(file)}
    names = sorted(set(types.values()))
    kind = torch.tensor([names.index(types[node]) for node in range(len(types))])
    with gzip.open(folder / "facebook_features.json.gz", "rt", encoding="utf-8") as file:
        words: dict[str, list[int]] = json.load(file)
    node = torch.tensor([int(page) for page, held in words.items() for _ in held])
    word = torch.tensor([each for held in words.values() for each in held])
    x = torch.zeros(len(kind), WORDS).index_put((node, word % WORDS), torch.ones(()), accumulate=True)
    with gzip.open(folder / "facebook_edges.csv.gz", "rt", encoding="utf-8") as file:
        rows = list(csv.reader(file))[1:]
    source, target = torch.tensor([[int(end) for end in row] for row in rows]).t()
    return Graph("Facebook pages", both_ways(source, target, len(kind)), x / x.sum(1, keepdim=True).clamp(min=1), kind)


def both_ways(source: Tensor, target: Tensor, nodes: int) -> Edges:
    """Each edge in both directions."""
    return Edges(torch.stack([torch.cat([source, target]), torch.cat([target, source])]), nodes, nodes)


def find_graph(small: bool) -> Graph:
    """The real one where it lies."""
    folder = Path(os.environ.get("ATTNOPS_DATA", "")) / "musae"
    return read_facebook(folder) if not small and (folder / "facebook_edges.csv.gz").exists() else draw_graph()


# ------------------------------------------------------------------------------------------------------------- model


class Model(nn.Module):
    """Two layers of attention over likes; a page hears itself too, which is what the layer's self-loops are for."""

    def __init__(self, features: int, dim: int, kinds: int, heads: int = 4) -> None:
        super().__init__()
        self.embed = nn.Linear(features, dim)
        self.layers = nn.ModuleList(GATv2Conv(dim, dim // heads, heads) for _ in range(2))
        self.answer = nn.Linear(dim, kinds)

    def forward(self, x: Tensor, plan: HaloPlan) -> Tensor:
        """`[n, F]` of this process's own nodes to logits `[n, kinds]`."""
        h = self.embed(x)
        for layer in self.layers:
            held = halo_exchange(h, plan)  # own nodes first, then those whom they hear from elsewhere
            h = h + nn.functional.gelu(layer(held, plan.edge_index)[: len(h)])
        out: Tensor = self.answer(h)
        return out


class Run:
    """A model in training on this process's part of the graph."""

    def __init__(self, graph: Graph, device: torch.device, options: argparse.Namespace) -> None:
        self.options = options
        divided = partition(graph.edges, dist.get_world_size(), options.method)
        self.plan = plan_halo(graph.edges, divided).to(device)  # the processes compare their graphs first
        own = self.plan.queries.cpu()
        dtype = getattr(torch, options.dtype)
        self.x, self.kind = graph.x[own].to(device, dtype), graph.kind[own].to(device)
        known = torch.rand(len(graph.x), generator=torch.Generator().manual_seed(options.seed)) < 0.6
        self.known, self.num_known = known[own].to(device), int(known.sum())
        torch.manual_seed(options.seed)  # every process draws the same weights
        self.model = Model(graph.x.shape[1], options.dim, int(graph.kind.max()) + 1).to(device, dtype)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.losses: list[float] = []
        self.settings = {"graph": str(graph.edges), "seed": options.seed, "dim": options.dim, "dtype": options.dtype}

    def step(self) -> None:
        """One step over all nodes: each process sums the loss and the gradients of its own."""
        logits = self.model(self.x, self.plan)
        own = nn.functional.cross_entropy(logits[self.known], self.kind[self.known], reduction="sum")
        loss = own / self.num_known
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        parts = [parameter.grad.flatten() for parameter in self.model.parameters() if parameter.grad is not None]
        total = torch.cat([*parts, loss.detach().view(1)])
        dist.all_reduce(total)
        first = 0
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                parameter.grad.copy_(total[first : first + parameter.numel()].view_as(parameter))
                first += parameter.numel()
        self.optimizer.step()
        self.losses.append(float(total[-1]))

    @torch.no_grad()
    def accuracy(self) -> float:
        """On the nodes whose kind was not told."""
        right = self.model(self.x, self.plan).argmax(1) == self.kind
        counts = torch.stack([right[~self.known].sum(), (~self.known).sum()])
        dist.all_reduce(counts)
        return float(counts[0] / counts[1])


def say(*words: object) -> None:
    """Print, on rank 0 alone."""
    if dist.get_rank() == 0:
        print(*words, flush=True)


def train(options: argparse.Namespace, device: torch.device) -> list[float]:
    """Train to the last step; every loss since the first."""
    graph = find_graph(options.small)
    run = Run(graph, device, options)
    with claim(options.out, run.settings, device.type):
        return go_on(options, device, graph, run)


def go_on(options: argparse.Namespace, device: torch.device, graph: Graph, run: Run) -> list[float]:
    """From the last checkpoint, if there is one."""
    sizes = torch.tensor([run.plan.keys.num_sent, run.plan.edges.num_edges], device=device)
    every = [torch.zeros_like(sizes) for _ in range(dist.get_world_size())]
    dist.all_gather(every, sizes)
    sent = sum(int(each[0]) for each in every)
    say(f"{graph.name}: {graph.edges.num_queries} nodes, {graph.edges.num_edges} edges, backend {dist.get_backend()}")
    if len(every) > 1:
        share = sent / (graph.edges.num_keys * (len(every) - 1))
        say(f"parts of {', '.join(str(int(each[1])) for each in every)} edges; {sent} rows travel before a layer,")
        say(f"  {share:.3f} of sending every node to every process")
    run.losses = resume(options.out, run.model, run.optimizer, run.settings)
    say(f"{len(every)} processes, from step {len(run.losses)}")
    begun, before = time.perf_counter(), len(run.losses)
    while len(run.losses) < options.steps:
        run.step()
        if len(run.losses) % options.every == 0 or len(run.losses) == options.steps:
            keep(options.out, run.model, run.optimizer, run.losses, run.settings)
            speed = (len(run.losses) - before) / (time.perf_counter() - begun)
            say(f"step {len(run.losses):5}  loss {run.losses[-1]:.4f}  {speed:.1f} steps/s")
    say(f"right on {run.accuracy():.1%} of the nodes whose kind was not told")
    return run.losses


@record
def main(arguments: list[str] | None = None) -> list[float]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", choices=["metis", "range"], default="metis", help="how the nodes are divided")
    parser.add_argument("--steps", type=positive, help="100 if not given, and 40 with --small")
    parser.add_argument(
        "--every", type=positive, help="steps between two checkpoints: 20 if not given, and 5 with --small"
    )
    add_out(parser, "graph_distributed")
    parser.add_argument("--dim", type=positive, default=64, help="a multiple of 4, which are the heads")
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float32")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=60, help="seconds that a process waits for another")
    parser.add_argument("--small", action="store_true", help="a few seconds, on a graph that is drawn here")
    options = parser.parse_args(arguments)
    if options.small:
        options.dim, options.dtype = 16, "float64"
    if options.dim % 4:
        parser.error(f"--dim is {options.dim}; it must be a multiple of 4")
    options.steps = options.steps or (40 if options.small else 100)
    options.every = options.every or (5 if options.small else 20)
    device = init_processes(options.timeout)
    try:
        return train(options, device)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
