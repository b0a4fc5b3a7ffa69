"""Ring attention on two processes beside one process with two threads, and what divided attention sends.

First, bytes sent and pairs scored by each rank are counted, for 1, 2 and 4 processes, and must equal the formulas of
`benchmarks._cluster` exactly. Then the ring is timed: two gloo processes of one thread each, causal, in zig-zag order,
beside one process with two threads. Last, the formulas are carried to 8 … 1024 cards with published figures of cards
and links: a simulation, not a measurement. `--pictures FOLDER` draws it for docs/scale.md.

    python -m benchmarks.scale --pictures docs/curves
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import attnops
from attnops.distributed import Partition, context_attend, halo_exchange, plan_halo, shard_sequence
from benchmarks import _cluster as cluster
from benchmarks import _side_by_side as side
from benchmarks._traffic import counted

HEADS, DIM, LENGTH = 8, 64, 8192
WORLDS = (1, 2, 4)
COUNTED = cluster.Sequence(tokens=96, batch=2, heads=4, kv_heads=4, dim=8, value_dim=12, size=4)
PATTERNS: dict[str, tuple[attnops.Pattern | None, str]] = {
    "full": (None, "contiguous"),
    "causal": (attnops.Causal(), "zigzag"),
    "causal, contiguous": (attnops.Causal(), "contiguous"),
    "window 5": (attnops.SlidingWindow(5), "contiguous"),
}


# ------------------------------------------------------------------------------------------------------------- counted


def count(rank: int, world: int, group: dist.ProcessGroup) -> None:
    """Raise unless what is sent and scored is what the formulas say."""
    work = COUNTED
    for name, (pattern, order) in PATTERNS.items():
        whole = [
            torch.randn(work.batch, heads, work.tokens, dim)
            for heads, dim in ((work.heads, work.dim), (work.kv_heads, work.dim), (work.kv_heads, work.value_dim))
        ]
        query, key, value = (shard_sequence(x, group, dim=2, order=order).requires_grad_() for x in whole)
        for method in ("ring", "all_to_all"):
            with counted(rank, world) as forward, attnops.trace() as plans:
                out = context_attend(query, key, value, mesh=group, pattern=pattern, order=order, method=method)
            assert isinstance(out, torch.Tensor)
            with counted(rank, world) as backward:
                out.sum().backward()  # type: ignore[no-untyped-call]
            for backwards, traffic in ((False, forward), (True, backward)):
                ring = work.ring_bytes(world, name, backwards)
                want = (ring if method == "ring" else work.all_to_all_bytes(world, backwards))[rank]
                if backwards and method == "all_to_all":  # no gradient of lse
                    want -= work.batch * work.heads * 4 * (work.tokens // world * (world - 1) // world)
                same(traffic.data, want, f"{method}, {name}, rank {rank} of {world}, backward {backwards}: bytes")
            scored = sum(plan.cost.pairs for plan in plans)
            pairs = work.pairs(world, name)[rank] if method == "ring" else sum(work.pairs(1, name)) // world
            same(scored, pairs, f"{method}, {name}, rank {rank} of {world}: pairs")
    count_halo(rank, world, group)


def count_halo(rank: int, world: int, group: dist.ProcessGroup) -> None:
    """The halo of a graph: each row once to each rank that needs it, and its gradient back."""
    nodes, ends = 60, torch.randint(0, 60, (2, 300), generator=torch.Generator().manual_seed(0))
    part = torch.arange(nodes) % world
    plan = plan_halo(attnops.Edges(ends, nodes, nodes), Partition(part, part, world), group=group)
    rows = torch.randn(int((part == rank).sum()), 4, 7, requires_grad=True)
    with counted(rank, world) as forward:
        held = halo_exchange(rows, plan)
    with counted(rank, world) as backward:
        held.square().sum().backward()  # type: ignore[no-untyped-call]
    needs = torch.unique(torch.stack([part[ends[1]], ends[0]]), dim=1)  # (rank that needs, node)
    away = needs[:, part[needs[1]] != needs[0]]
    sent, received = int((part[away[1]] == rank).sum()), int((away[0] == rank).sum())
    same(forward.data, sent * 4 * 7 * 4, f"halo, rank {rank} of {world}: bytes")
    same(backward.data, received * 4 * 7 * 4, f"halo, rank {rank} of {world}, backward: bytes")


def same(counted: int, formula: int, what: str) -> None:
    if counted != formula:
        raise AssertionError(f"{what}: {counted} counted, {formula} by the formula")


# --------------------------------------------------------------------------------------------------------------- timed


def vectors(length: int) -> tuple[list[torch.Tensor], torch.Tensor]:
    leaves = [torch.randn(1, HEADS, length, DIM, requires_grad=True) for _ in range(3)]
    return leaves, torch.randn(1, HEADS, length, DIM)


def best(run: Any, rounds: int) -> float:
    """Of several, for a process that waits for another is as slow as the slower one."""
    taken = []
    for _ in range(rounds):
        begun = time.perf_counter()
        run()
        taken.append(time.perf_counter() - begun)
    return min(taken)


def time_ring(length: int, rounds: int, group: dist.ProcessGroup) -> dict[str, float]:
    leaves, upstream = vectors(length // 2)

    def forward() -> Any:
        return context_attend(*leaves, mesh=group, pattern=attnops.Causal(), order="zigzag")

    return timed(forward, leaves, upstream, rounds)


def time_one(length: int, rounds: int) -> dict[str, float]:
    leaves, upstream = vectors(length)
    return timed(lambda: attnops.attend(*leaves, pattern=attnops.Causal()), leaves, upstream, rounds)


def timed(forward: Any, leaves: list[torch.Tensor], upstream: torch.Tensor, rounds: int) -> dict[str, float]:
    def train() -> None:
        torch.autograd.grad(forward(), leaves, upstream)

    def infer() -> None:
        with torch.no_grad():
            forward()

    return {"forward": best(infer, rounds), "training": best(train, rounds)}


# ----------------------------------------------------------------------------------------------------------- processes


def serve(rank: int, store: str, length: int, connection: Any) -> None:
    """Count or time, as one of so many ranks, until told to end."""
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=max(WORLDS))
    groups = {world: dist.new_group(list(range(world))) for world in WORLDS}
    while (task := connection.recv()) is not None:
        what, world = task
        torch.manual_seed(0)
        try:
            answer = count(rank, world, groups[world]) if what == "count" else time_ring(length, 1, groups[world])
            connection.send((None, answer))
        except Exception as error:
            connection.send((f"rank {rank} of {world}: {error}", None))
    dist.destroy_process_group()


def ask(connections: list[Any], what: str, world: int) -> list[Any]:
    """What each of the first `world` ranks answers."""
    for connection in connections[:world]:
        connection.send((what, world))
    answers = []
    for connection in connections[:world]:
        if not connection.poll(120):
            raise SystemExit(f"{what} on {world} processes: no answer")
        error, answer = connection.recv()
        if error is not None:
            raise SystemExit(error)
        answers.append(answer)
    return answers


def processes(folder: str, length: int) -> list[Any]:
    """The ends that speak to so many processes as the largest world has."""
    context = multiprocessing.get_context("spawn")
    connections = []
    for rank in range(max(WORLDS)):
        ours, theirs = context.Pipe()
        context.Process(target=serve, args=(rank, f"{folder}/store", length, theirs), daemon=True).start()
        theirs.close()
        connections.append(ours)
    return connections


def ring_beside_one(connections: list[Any], length: int, rounds: int, threads: int) -> list[dict[str, Any]]:
    """The best of several turns of each, after one that warms both."""
    torch.set_num_threads(threads)
    ring, one = [], []
    for _ in range(rounds + 1):
        answers = ask(connections, "time", 2)
        ring.append({key: max(answer[key] for answer in answers) for key in answers[0]})
        one.append(time_one(length, 1))
    rows = []
    for key in ("forward", "training"):
        alone, divided = (min(turn[key] for turn in turns[1:]) for turns in (one, ring))
        row = {"pass": key, "one_process_ms": 1000 * alone, "ring_ms": 1000 * divided}
        rows.append({**row, "ring_ratio": alone / divided})
    return rows


# ------------------------------------------------------------------------------------------------------------ simulated


def simulated() -> list[dict[str, Any]]:
    """Seconds of one forward by world size, for every cluster."""
    rows: list[dict[str, Any]] = []
    for place in cluster.CLUSTERS:
        for power in range(3, 11):
            world = 2**power
            ring = cluster.ring_seconds(cluster.MILLION, place, world, "causal")
            heads = cluster.all_to_all_seconds(cluster.MILLION, place, world, "causal")
            random = cluster.halo_seconds(cluster.PAPERS, place, world, 1.0)
            metis = cluster.halo_seconds(cluster.PAPERS, place, world, cluster.METIS)
            rows.append({
                "cluster": place.name, "cards": world, "ring": ring, "all_to_all": heads,
                "halo, random parts": random, "halo, METIS": metis,
            })  # fmt: skip
    return rows


def overtaken(rows: list[dict[str, Any]], place: str, what: str) -> int | None:
    """The first number of cards at which sending takes longer than computing."""
    for row in rows:
        if row["cluster"] == place and row[what] is not None and row[what]["sending"] > row[what]["compute"]:
            return int(row["cards"])
    return None


def draw(rows: list[dict[str, Any]], folder: Path) -> None:
    """One picture of the sequence, one of the graph: what is computed and what is sent, as cards are added."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.rcParams.update({"svg.hashsalt": "attnops", "svg.fonttype": "none"})
    first, second = (place.name for place in cluster.CLUSTERS[:2])
    pictures: dict[str, list[tuple[str, str, str, str]]] = {
        "scale_sequence": [
            (first, "ring", "compute", "attention, any link"),
            (first, "ring", "sending", "ring, 400 Gb/s between nodes"),
            (second, "ring", "sending", "ring, 100 Gb/s between nodes"),
            (cluster.CLUSTERS[2].name, "ring", "sending", "ring, 256 cards on NVLink"),
        ],
        "scale_graph": [
            (first, "halo, random parts", "compute", "attention, any link"),
            (first, "halo, random parts", "sending", "halo, random parts, 400 Gb/s"),
            (first, "halo, METIS", "sending", "halo, METIS, 400 Gb/s"),
            (cluster.CLUSTERS[2].name, "halo, METIS", "sending", "halo, METIS, 256 cards on NVLink"),
        ],
    }
    for name, curves in pictures.items():
        figure, axes = pyplot.subplots(figsize=(6.4, 3.8))
        for place, what, part, label in curves:
            points = [(row["cards"], row[what][part]) for row in rows if row["cluster"] == place]
            axes.plot(*zip(*points, strict=True), "-" if part == "compute" else "--", marker=".", label=label)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xlabel("cards")
        axes.set_ylabel("seconds of one forward, a card")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
        figure.tight_layout()
        figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
        pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="sizes that take seconds; the figures mean nothing")
    parser.add_argument("--out", type=Path, default=Path("out/bench"))
    parser.add_argument("--threads", type=int, default=2, help="of the one process")
    parser.add_argument("--pictures", type=Path, help="the folder to draw the simulation into")
    options = parser.parse_args()
    torch.manual_seed(0)
    length = LENGTH // (8 if options.small else 1)
    with tempfile.TemporaryDirectory() as folder:
        connections = processes(folder, length)
        for world in WORLDS:
            ask(connections, "count", world)
            print(f"{world} processes: bytes sent and pairs scored equal the formulas", flush=True)
        table = ring_beside_one(connections, length, 1 if options.small else 2, options.threads)
        for connection in connections:
            connection.send(None)
    rows = simulated()
    for place in cluster.CLUSTERS:
        for what in ("ring", "halo, random parts", "halo, METIS"):
            cards = overtaken(rows, place.name, what)
            print(f"{place.name}: {what}: sending overtakes at {cards or 'more than 1024'} cards")
    if options.pictures is not None:
        draw(rows, options.pictures)
    side.write(options, "scale", table, simulated=rows)


if __name__ == "__main__":
    main()
