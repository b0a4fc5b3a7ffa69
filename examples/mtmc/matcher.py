"""The matcher: GATv2 over candidate pairs and "nobody", with the logarithmic prior as the bias of the one operator.

    logit(a, b) = aᵀ LeakyReLU(q_b + k_a) + log P(A → B) + w · (log p(Δt | A → B) − log p_background(Δt))
    logit(nobody, b) = aᵀ LeakyReLU(q_b + k_nobody) + log P(start | B)

A tracklet attends to those it may have been before; and, with the same logits, to those it may be next. The match
score is the log-odds of a pair against nobody at both of its ends. Without the bias the pattern (links and their
windows), the camera messages and all else stay.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch_geometric.data import HeteroData

import attnops
from attnops.graph import GATv2Conv
from examples.mtmc.appearance import DIMS
from examples.mtmc.graph import ADJACENT_DIM, CAMERA_DIM, EXTRA_DIM

TINY = 1e-30  # below it a weight is as good as forbidden


class TravelTime(attnops.Bias):
    """b_ij = w_h · (log p(Δt | link) − log p_background), read from the edge datum ``travel``; w starts at 1."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.log_weight = nn.Parameter(torch.zeros(heads))

    def forward(self, pairs: attnops.Pairs) -> Tensor:
        """The weighted log ratio at the pairs."""
        return self.log_weight.exp()[pairs.head] * pairs.edge.travel


@dataclass(frozen=True)
class Matches:
    """Per candidate: ``log_before`` and ``log_after [E]``, the log weights of a as b's predecessor and of b as a's
    successor, ``gain [E]`` the log-odds against nobody and ``bias [E]``; per tracklet the log weights of nobody."""

    log_before: Tensor
    log_after: Tensor
    log_starts: Tensor
    log_ends: Tensor
    gain: Tensor
    bias: Tensor


class Matcher(nn.Module):
    """Camera messages, then one attention over predecessors and one over successors.

    The look enters query and key with opposite signs and twice, so that the additive score starts as a (learned)
    L1 distance, |x| = (LeakyReLU(x) + LeakyReLU(−x)) / 0.8, and is free to become another.
    """

    def __init__(self, hidden: int = 16, directions: int = 64, use_bias: bool = True) -> None:
        super().__init__()
        self.directions = directions
        dim = 2 * directions + hidden
        self.adjacency = GATv2Conv(
            CAMERA_DIM, hidden, heads=2, concat=False, edge_dim=ADJACENT_DIM, add_self_loops=False, residual=True
        )
        self.seen_by = GATv2Conv((hidden, EXTRA_DIM), hidden, heads=1, add_self_loops=False, residual=True)
        self.look = nn.Linear(DIMS, directions, bias=False)
        self.as_later = nn.Linear(hidden, hidden)
        self.as_earlier = nn.Linear(hidden, hidden)
        self.nobody = nn.Parameter(torch.zeros(2, dim))  # before the first, after the last
        self.nobody_at = nn.ModuleList([nn.Linear(hidden, hidden) for _ in range(2)])
        self.score = attnops.Additive(1, dim, activation="leaky_relu")
        self.bias: attnops.Bias | None = attnops.LogPrior() + TravelTime(1) if use_bias else None
        with torch.no_grad():
            turns = [torch.linalg.qr(torch.randn(DIMS, DIMS))[0] for _ in range(-(-directions // DIMS))]
            self.look.weight.copy_(torch.cat(turns)[:directions])
            self.score.a[:, : 2 * directions] = -0.5 * DIMS / directions
            self.nobody[:, : 2 * directions] = 0.4

    def forward(self, graph: HeteroData) -> Matches:
        """Scores of every candidate of the graph, in its order."""
        tracklet, candidate = graph["tracklet"], graph["tracklet", "candidate", "tracklet"]
        source, target = candidate.edge_index
        earlier, later, (first, last) = self.vectors(graph)
        logit, before = self._attend(later, earlier, candidate.edge_index, candidate.prior, candidate.travel)
        everyone = torch.arange(len(later), device=later.device)
        at_camera, none = torch.stack([tracklet.camera, everyone]), torch.zeros_like(tracklet.starts)
        _, starts = self._attend(later, first, at_camera, tracklet.starts, none)
        _, ends = self._attend(earlier, last, at_camera, tracklet.ends, none)
        after = self._same_logits_forward(logit, source, target, len(later))
        all_before, all_after = torch.logaddexp(before, starts), torch.logaddexp(after, ends)
        return Matches(
            log_before=logit - all_before[target],
            log_after=logit - all_after[source],
            log_starts=starts - all_before,
            log_ends=ends - all_after,
            gain=logit - (starts[target] + ends[source]) / 2,
            bias=self.bias_of(candidate),
        )

    def vectors(self, graph: HeteroData) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
        """Keys of tracklets as the earlier one, queries as the later one ``[N, D]``, and nobody in each camera."""
        cameras = self.adjacency(
            graph["camera"].x,
            graph["camera", "adjacent", "camera"].edge_index,
            edge_attr=graph["camera", "adjacent", "camera"].edge_attr,
        ).tanh()
        seen = self.seen_by((cameras, graph["tracklet"].x), graph["camera", "sees", "tracklet"].edge_index).tanh()
        look = self.look(graph["tracklet"].look)
        earlier = torch.cat([-look, look, self.as_earlier(seen)], dim=1)
        later = torch.cat([look, -look, self.as_later(seen)], dim=1)
        nobody = [
            self.nobody[end] + torch.cat([look.new_zeros(len(cameras), 2 * self.directions), self.nobody_at[end](cameras)], dim=1)
            for end in range(2)
        ]
        return earlier, later, (nobody[0], nobody[1])

    def _attend(
        self, query: Tensor, key: Tensor, edge_index: Tensor, prior: Tensor, travel: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Logits of the edges, and the log of their summed exponentials for every query."""
        edges = attnops.Edges(edge_index, len(query), len(key), prior=prior, travel=travel)
        result = attnops.attend(
            query[None], key[None], key[None, :, :1],
            pattern=edges, bias=self.bias, score=self.score, return_weights=True, return_lse=True,
        )  # fmt: skip
        target = edge_index[1]
        return result.weights[0].clamp_min(TINY).log() + result.lse[0][target], result.lse[0]

    def _same_logits_forward(self, logit: Tensor, source: Tensor, target: Tensor, count: int) -> Tensor:
        """The log of the summed exponentials over the successors of each tracklet: the same logits, read forwards."""
        nothing = logit.new_zeros(1, count, 1)
        edges = attnops.Edges(torch.stack([target, source]), count, count)
        return attnops.attend(
            nothing, nothing, nothing, pattern=edges, bias=logit[None], return_lse=True
        ).lse[0]  # fmt: skip

    def bias_of(self, candidate: HeteroData) -> Tensor:
        """b_ij of every candidate, as the operator adds it: for pictures and reasons."""
        if self.bias is None:
            return torch.zeros_like(candidate.travel)
        travel = next(term for term in self.bias.terms if isinstance(term, TravelTime))
        return candidate.prior.log() + travel.log_weight.exp()[0] * candidate.travel
