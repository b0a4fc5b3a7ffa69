"""The matcher: GATv2 over candidate pairs and "nobody", with the logarithmic prior as the bias of the one operator.

    logit(a, b) = aᵀ LeakyReLU(q_b + k_a + W cos(a, b)) + log P(A → B) + w · (log p(Δt | A → B) − log p_background)
    logit(nobody, b) = aᵀ LeakyReLU(q_b + k_nobody) + log P(start | B)

q and k hold what the cameras say (messages along adjacency, then to the tracklets that they see) and how long a
tracklet is; cos(a, b) is the likeness of the two looks, GATv2's edge feature. A tracklet attends to those it may have
been before; and, with the same logits, to those it may be next. The match score is the log-odds of a pair against
nobody at both of its ends. Without the bias the pattern (links and windows), the camera messages and all else stay.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch_geometric.data import HeteroData

import attnops
from attnops.graph import GATv2Conv
from examples.mtmc.matching.graph import ADJACENT_DIM, CAMERA_DIM, EXTRA_DIM

SLOPE = 10.0  # log-odds per unit of cosine, before training
TINY = 1e-30  # below it a weight is as good as forbidden


class TravelTime(attnops.Bias):
    """b_ij = w_h · (log p(Δt | link) − log p_background), read from the edge datum ``travel``; w starts at 1."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.log_weight = nn.Parameter(torch.zeros(heads))

    def forward(self, pairs: attnops.Pairs) -> Tensor:
        """The weighted log ratio at the pairs."""
        return self.log_weight.exp()[pairs.head] * pairs.edge.travel


class AlikeAdditive(attnops.Additive):
    """GATv2's score with an edge feature, aᵀ LeakyReLU(q + k + W · alike), read from the edge datum ``alike``."""

    def __init__(self, heads: int, dim: int) -> None:
        super().__init__(heads, dim, activation="leaky_relu")
        with torch.no_grad():
            weight = SLOPE / 0.6 * self.a / self.a.square().sum(1, keepdim=True)  # 0.6: LeakyReLU's mean slope
        self.weight = nn.Parameter(weight)

    def forward(self, query: Tensor, key: Tensor, pairs: attnops.Pairs) -> Tensor:
        """Logits at the pairs."""
        return super().forward(query + pairs.edge.alike.unsqueeze(-1) * self.weight[pairs.head], key, pairs)


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
    company: Tensor  # what rivals, companions and learned corrections changed
    nobody: Tensor  # minus what nobody had, the mean of both ends


class Matcher(nn.Module):
    """Camera messages, then one attention over predecessors and one over successors."""

    def __init__(self, hidden: int = 32, use_bias: bool = True) -> None:
        super().__init__()
        self.adjacency = GATv2Conv(
            CAMERA_DIM, hidden, heads=2, concat=False, edge_dim=ADJACENT_DIM, add_self_loops=False, residual=True
        )
        self.seen_by = GATv2Conv((hidden, EXTRA_DIM), hidden, heads=1, add_self_loops=False, residual=True)
        self.as_later = nn.Linear(hidden, hidden)
        self.as_earlier = nn.Linear(hidden, hidden)
        self.nobody = nn.ModuleList([nn.Linear(hidden, hidden) for _ in range(2)])  # before the first, after the last
        self.score = AlikeAdditive(1, hidden)
        self.bias: attnops.Bias | None = attnops.LogPrior() + TravelTime(1) if use_bias else None

    def forward(self, graph: HeteroData) -> Matches:
        """Scores of every candidate of the graph, in its order."""
        tracklet, candidate = graph["tracklet"], graph["tracklet", "candidate", "tracklet"]
        source, target = candidate.edge_index
        earlier, later, (first, last) = self.vectors(graph)
        known = candidate.travel + candidate.zone + candidate.place
        logit, before = self._attend(later, earlier, candidate.edge_index, candidate.prior, known, candidate.alike)
        everyone = torch.arange(len(later), device=later.device)
        at_camera, none = torch.stack([tracklet.camera, everyone]), torch.zeros_like(tracklet.starts)
        _, starts = self._attend(later, first, at_camera, tracklet.starts, none, none)
        _, ends = self._attend(earlier, last, at_camera, tracklet.ends, none, none)
        after = _read_forwards(logit, source, target, len(later))
        all_before, all_after = torch.logaddexp(before, starts), torch.logaddexp(after, ends)
        return Matches(
            log_before=logit - all_before[target],
            log_after=logit - all_after[source],
            log_starts=starts - all_before,
            log_ends=ends - all_after,
            gain=logit - (starts[target] + ends[source]) / 2,
            bias=self.bias_of(candidate),
            company=torch.zeros_like(logit),
            nobody=-(starts[target] + ends[source]) / 2,
        )

    def vectors(self, graph: HeteroData) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
        """Keys of tracklets as the earlier one, queries as the later one ``[N, D]``, and nobody in each camera."""
        adjacent = graph["camera", "adjacent", "camera"]
        cameras = self.adjacency(graph["camera"].x, adjacent.edge_index, edge_attr=adjacent.edge_attr).tanh()
        sees = graph["camera", "sees", "tracklet"].edge_index
        seen = self.seen_by((cameras, graph["tracklet"].x), sees).tanh()
        return self.as_earlier(seen), self.as_later(seen), (self.nobody[0](cameras), self.nobody[1](cameras))

    def _attend(
        self, query: Tensor, key: Tensor, edge_index: Tensor, prior: Tensor, travel: Tensor, alike: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Logits of the edges, and the log of their summed exponentials for every query."""
        edges = attnops.Edges(edge_index, len(query), len(key), prior=prior, travel=travel, alike=alike)
        result = attnops.attend(
            query[None], key[None], key[None, :, :1],
            pattern=edges, bias=self.bias, score=self.score, return_weights=True, return_lse=True,
        )  # fmt: skip
        assert isinstance(result, attnops.AttentionOutput) and result.weights is not None and result.lse is not None
        return result.weights[0].clamp_min(TINY).log() + result.lse[0][edge_index[1]], result.lse[0]

    def bias_of(self, candidate: HeteroData) -> Tensor:
        """b_ij of every candidate, as the operator adds it: for pictures and reasons."""
        return sum(self.parts(candidate).values(), torch.zeros_like(candidate.travel))

    def parts(self, candidate: HeteroData) -> dict[str, Tensor]:
        """The summands of b_ij by name."""
        if self.bias is None:
            return {}
        travel = next(term for term in self.bias.terms if isinstance(term, TravelTime))
        weight = travel.log_weight.exp()[0]
        known = {"time": candidate.travel, "zone": candidate.zone, "place": candidate.place}
        link = candidate.prior.clamp_min(TINY).log()
        return {"link": link, **{name: weight * ratio for name, ratio in known.items()}}


def _read_forwards(logit: Tensor, source: Tensor, target: Tensor, count: int) -> Tensor:
    """The log of the summed exponentials over the successors of each tracklet: the same logits, given as a bias."""
    nothing = logit.new_zeros(1, count, 1)
    edges = attnops.Edges(torch.stack([target, source]), count, count)
    result = attnops.attend(nothing, nothing, nothing, pattern=edges, bias=logit[None], return_lse=True)
    assert isinstance(result, attnops.AttentionOutput) and result.lse is not None
    return result.lse[0]
