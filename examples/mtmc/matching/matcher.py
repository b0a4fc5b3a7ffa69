"""The matcher: GATv2 over candidate pairs and "nobody", with the logarithmic prior as the bias of the one operator.

    logit(a, b) = aᵀ LeakyReLU(q_b + k_a + W cos(a, b)) + b_ab,
    b_ab = log P(A → B) + w_t (log p(Δt | A → B) − log p_background) + w_z zone + w_p place + c_kind
    logit(nobody, b) = aᵀ LeakyReLU(q_b + k_nobody) + log P(start | B) + c_nobody

q and k hold what the cameras say (messages along adjacency, then to the tracklets that they see) and how long a
tracklet is; cos(a, b) is the likeness of the two looks, GATv2's edge feature, with one slope for each kind of link. A
tracklet attends to those it may have been before; and, with the same logits, to those it may be next. Then come rounds
in which rivals and companions inform each other (``company.py``). The match score of a pair is its log-odds against
nobody at both of its ends. Without the bias the pattern (links and windows), the camera messages and all else stay.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch_geometric.data import HeteroData

import attnops
from attnops.graph import GATConv, GATv2Conv
from examples.mtmc.matching.company import Round, State, weigh
from examples.mtmc.matching.evidence import TINY, Evidence, GATLooks, GATv2Looks, bias_of
from examples.mtmc.matching.graph import ADJACENT_DIM, CAMERA_DIM, EXTRA_DIM
from examples.mtmc.matching.slots import KINDS

NOBODY = 2  # more kinds of edges: nobody in sequence, nobody in a view that overlaps


@dataclass(frozen=True)
class Form:
    """What a matcher is made of; every field has its row in the table of ablations."""

    bias: tuple[str, ...] = ("link", "travel", "zone", "place", "kind")
    score: str = "gatv2"
    rounds: int = 2
    companions: bool = True


@dataclass(frozen=True)
class Matches:
    """Per candidate: ``log_before`` and ``log_after [E]``, the log weights of a as b's predecessor and of b as a's
    successor, ``gain [E]`` the log-odds against nobody and ``bias [E]``; per tracklet the log weights of nobody, in
    sequence."""

    log_before: Tensor
    log_after: Tensor
    log_starts: Tensor
    log_ends: Tensor
    gain: Tensor
    bias: Tensor
    company: Tensor  # what rivals, companions and learned corrections changed
    nobody: Tensor  # minus what nobody had, the mean of both ends
    rounds: tuple[Tensor, ...] = ()  # gain before and after every round, for training


class Matcher(nn.Module):
    """Camera messages, one attention over predecessors and one over successors, and rounds of company."""

    def __init__(self, form: Form | None = None, hidden: int = 32) -> None:
        super().__init__()
        self.form = form = form or Form()
        conv = {"gatv2": GATv2Conv, "gat": GATConv}[form.score]
        self.adjacency = conv(
            CAMERA_DIM, hidden, heads=2, concat=False, edge_dim=ADJACENT_DIM, add_self_loops=False, residual=True
        )
        self.seen_by = conv((hidden, EXTRA_DIM), hidden, heads=1, add_self_loops=False, residual=True)
        self.as_later = nn.Linear(hidden, hidden)
        self.as_earlier = nn.Linear(hidden, hidden)
        self.nobody = nn.ModuleList([nn.Linear(hidden, hidden) for _ in range(2)])  # before the first, after the last
        self.score = GATv2Looks(hidden, len(KINDS)) if form.score == "gatv2" else GATLooks(hidden, len(KINDS))
        self.bias = bias_of(form.bias, len(KINDS) + NOBODY)
        self.rounds = nn.ModuleList([Round(len(KINDS), companions=form.companions) for _ in range(form.rounds)])

    def forward(self, graph: HeteroData) -> Matches:
        """Scores of every candidate of the graph, in its order."""
        candidate = graph["tracklet", "candidate", "tracklet"]
        into, out_of = candidate.into, candidate.out_of
        logit, starts, ends = self.logits(graph)
        own = graph["tracklet"].looks
        state = State(torch.zeros_like(logit), own, own, torch.zeros_like(logit))
        gains = []
        alone = (starts[into] + ends[out_of]) / 2
        for round in self.rounds:
            gains.append(logit + state.change - alone)
            state = round(graph, logit, starts, ends, state)
        weights = weigh(graph, logit + state.change, starts, ends, state.past, state.future)
        count = len(own)
        return Matches(
            log_before=weights.before,
            log_after=weights.after,
            log_starts=weights.starts[:count],
            log_ends=weights.ends[:count],
            gain=logit + state.change - alone,
            bias=sum(self.parts(candidate).values(), torch.zeros_like(logit)),
            company=state.change,
            nobody=-alone,
            rounds=tuple(gains),
        )

    def logits(self, graph: HeteroData) -> tuple[Tensor, Tensor, Tensor]:
        """Of the candidates ``[E]``, and of nobody in the slots before ``[I]`` and after ``[O]``, before any round."""
        earlier, later, (first, last) = self.vectors(graph)
        candidate = graph["tracklet", "candidate", "tracklet"]
        logit = self._attend(later, earlier, candidate.edge_index, candidate)
        start, end = graph["nobody", "starts", "tracklet"], graph["tracklet", "ends", "nobody"]
        starts = self._attend(later, first, start.edge_index, start)
        ends = self._attend(earlier, last, end.edge_index.flip(0), end)
        return logit, starts, ends

    def vectors(self, graph: HeteroData) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
        """Keys of tracklets as the earlier one, queries as the later one ``[N, D]``, and nobody in each camera."""
        adjacent = graph["camera", "adjacent", "camera"]
        cameras = self.adjacency(graph["camera"].x, adjacent.edge_index, edge_attr=adjacent.edge_attr).tanh()
        sees = graph["camera", "sees", "tracklet"].edge_index
        seen = self.seen_by((cameras, graph["tracklet"].x), sees).tanh()
        return self.as_earlier(seen), self.as_later(seen), (self.nobody[0](cameras), self.nobody[1](cameras))

    def _attend(self, query: Tensor, key: Tensor, edge_index: Tensor, given: HeteroData) -> Tensor:
        """The logits of edges, from the operator's weights."""
        data = {name: given[name] for name in ("prior", "travel", "zone", "place", "type")}
        edges = attnops.Edges(edge_index, len(query), len(key), looks=self.score.project(given.alike), **data)
        result = attnops.attend(
            query[None], key[None], key[None, :, :1],
            pattern=edges, bias=self.bias, score=self.score, return_weights=True, return_lse=True,
        )  # fmt: skip
        assert isinstance(result, attnops.AttentionOutput) and result.weights is not None and result.lse is not None
        total = result.lse[0].nan_to_num(neginf=0.0)  # of rows whose every edge is forbidden
        return result.weights[0].clamp_min(TINY).log() + total[edge_index[1]]

    def parts(self, candidate: HeteroData) -> dict[str, Tensor]:
        """The summands of b_ij by name, as the operator adds them: for pictures and reasons."""
        found: dict[str, Tensor] = {}
        for term in self.bias.terms if self.bias is not None else ():
            if isinstance(term, Evidence):
                found[term.name] = term.log_weight.exp()[0] * candidate[term.name]
            elif isinstance(term, attnops.EdgeTypePrior):
                found["kind"] = term.weight[:, 0][candidate.type]
            else:
                found["link"] = candidate.prior.clamp_min(TINY).log()
        return found
