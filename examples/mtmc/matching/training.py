"""Train the matcher: the true predecessor, the true successor, or nobody, should have all the weight."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch_geometric.data import HeteroData

from examples.mtmc.matching.matcher import Matcher, Matches

STEPS, EVERY = 100, 10


@dataclass(frozen=True)
class Labelled:
    """A graph and which of its candidates are true, ``true [E]``."""

    graph: HeteroData
    true: Tensor


def train(
    fitting: Labelled,
    held_out: Labelled,
    use_bias: bool,
    seed: int,
    steps: int = STEPS,
    tick: Callable[[], None] = lambda: None,
) -> Matcher:
    """Fit on one stretch of the training period; keep the state that does best on the stretch held out."""
    torch.manual_seed(seed)
    matcher = Matcher(use_bias=use_bias)
    optimizer = torch.optim.AdamW(matcher.parameters(), lr=1e-2, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=2e-2, total_steps=steps)
    best, best_state = float("inf"), copy.deepcopy(matcher.state_dict())
    for step in range(steps):
        optimizer.zero_grad()
        loss(matcher(fitting.graph), fitting).backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(matcher.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        tick()
        if step % EVERY == EVERY - 1:
            with torch.no_grad():
                now = float(loss(matcher(held_out.graph), held_out))
            if now < best:
                best, best_state = now, copy.deepcopy(matcher.state_dict())
    matcher.load_state_dict(best_state)
    return matcher.eval()


def loss(matches: Matches, labelled: Labelled) -> Tensor:
    """Mean negative log weight of what is true, over both directions."""
    source, target = labelled.graph["tracklet", "candidate", "tracklet"].edge_index
    true = labelled.true
    new = torch.ones(len(matches.log_starts), dtype=torch.bool)
    new[target[true]] = False
    last = torch.ones(len(matches.log_ends), dtype=torch.bool)
    last[source[true]] = False
    total = (
        matches.log_before[true].sum()
        + matches.log_starts[new].sum()
        + matches.log_after[true].sum()
        + matches.log_ends[last].sum()
    )
    return -total / (2 * max(len(new), 1))
