"""Train the matcher: the true predecessor, the true successor, or nobody, should have all the weight."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.data import HeteroData

from examples.mtmc.matching.checkpoint import Checkpoint, Progress
from examples.mtmc.matching.matcher import Form, Matcher, Matches

STEPS, EVERY = 60, 10


@dataclass(frozen=True)
class Labelled:
    """A graph and which of its candidates are true, ``true [E]``."""

    graph: HeteroData
    true: Tensor


def train(
    fitting: Labelled,
    held_out: Labelled,
    form: Form,
    seed: int,
    steps: int = STEPS,
    tick: Callable[[], None] = lambda: None,
    checkpoint: Checkpoint | None = None,
) -> Matcher:
    """Fit on one stretch of the training period; keep the state that does best on the stretch held out.

    With a ``checkpoint`` the state is written as often as it is judged, and what was written before is gone on from.
    """
    torch.manual_seed(seed)
    matcher = Matcher(form)
    optimizer = torch.optim.AdamW(matcher.parameters(), lr=1e-2, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=2e-2, total_steps=steps)
    so_far = checkpoint.load(matcher, optimizer, schedule) if checkpoint else None
    so_far = so_far or Progress(best_state=copy.deepcopy(matcher.state_dict()))
    for _ in range(so_far.step):
        tick()
    for step in range(so_far.step, steps):
        optimizer.zero_grad()
        loss(matcher(fitting.graph), fitting).backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(matcher.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        so_far.step = step + 1
        tick()
        if step % EVERY == EVERY - 1 or step == steps - 1:
            with torch.no_grad():
                so_far.better(float(loss(matcher(held_out.graph), held_out)), matcher)
            if checkpoint:
                checkpoint.save(matcher, optimizer, schedule, so_far)
    matcher.load_state_dict(so_far.best_state)
    return matcher.eval()


def loss(matches: Matches, labelled: Labelled) -> Tensor:
    """Mean negative log weight of what is true in every sequence slot, over both directions, and the negative log
    probability of every candidate's own label, per tracklet."""
    candidate = labelled.graph["tracklet", "candidate", "tracklet"]
    true, count = labelled.true, len(matches.log_starts)
    new, last = torch.ones(count, dtype=torch.bool), torch.ones(count, dtype=torch.bool)
    into, out_of = candidate.into[true], candidate.out_of[true]
    new[into[into < count]] = False
    last[out_of[out_of < count]] = False
    total = (
        matches.log_before[true].sum()
        + matches.log_starts[new].sum()
        + matches.log_after[true].sum()
        + matches.log_ends[last].sum()
    )
    each = F.binary_cross_entropy_with_logits(matches.gain, true.float(), reduction="sum")
    return (-total / 2 + each) / max(count, 1)
