"""The tracking example's matcher in torch-geometric's steps: its GATv2Conv, its softmax, gathers and scatters.

The parameters are those of the matcher that is given, so that both give the same numbers.
"""

from __future__ import annotations

import copy
import math

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.data import HeteroData
from torch_geometric.nn import GATv2Conv
from torch_geometric.utils import scatter, softmax

from examples.mtmc.matching import company, matcher
from examples.mtmc.matching.evidence import TINY, Evidence, GATv2Looks

NEGATIVE_SLOPE = 0.2


class Peer(matcher.Matcher):
    """The same model; ``Peer.of(ours)`` shares its numbers."""

    @classmethod
    def of(cls, ours: matcher.Matcher) -> Peer:
        """With a copy of the parameters of ``ours``."""
        own = copy.deepcopy(ours)
        own.__class__ = cls
        for name in ("adjacency", "seen_by"):
            conv = getattr(ours, name)
            theirs = GATv2Conv(
                conv.in_channels, conv.out_channels, heads=conv.heads, concat=conv.concat, edge_dim=conv.edge_dim,
                add_self_loops=False, residual=True,
            )  # fmt: skip
            theirs.load_state_dict(conv.state_dict())
            setattr(own, name, theirs.to(ours.as_later.weight.dtype))
        for number, given in enumerate(own.rounds):
            given.__class__ = PeerRound
            own.rounds[number] = given
        assert isinstance(own, Peer)
        return own.eval()

    def _attend(self, query: Tensor, key: Tensor, edge_index: Tensor, given: HeteroData) -> Tensor:
        """The logits, gathered edge by edge."""
        assert isinstance(self.score, GATv2Looks) and self.bias is not None
        source, target = edge_index
        hidden = F.leaky_relu(query[target] + key[source] + self.score.project(given.alike), NEGATIVE_SLOPE)
        logit = (hidden * self.score.a).sum(-1) + given.prior.log()
        for term in self.bias.terms:
            if isinstance(term, Evidence):
                logit = logit + term.log_weight.exp() * given[term.name]
            elif hasattr(term, "weight"):
                logit = logit + term.weight[:, 0][given.type]
        return logit


class PeerRound(company.Round):
    """One round, companions by softmax and scatter."""

    def attend(self, graph: HeteroData, features: Tensor, weights: company.Weights) -> Tensor:
        """How likely the likeliest companions are ``[E]``; the sink is one more candidate that is worth nothing."""
        candidate = graph["tracklet", "candidate", "tracklet"]
        likely = ((weights.before + weights.after) / 2).exp()
        other, own = candidate.companions
        asks, tells = self.asks(features), self.tells(features)
        logit = (asks[own] * tells[other]).sum(-1) / math.sqrt(asks.shape[1])
        logit = logit - self.apart.log_rate.exp() * candidate.apart
        everyone = torch.arange(len(likely))
        whole = torch.cat([logit, self.alone.weight.expand(len(likely))])
        weight = softmax(whole, torch.cat([own, everyone]), num_nodes=len(likely))
        return scatter(weight[: len(own)] * likely[other], own, 0, len(likely), reduce="sum")


def compete(
    logit: Tensor, nobody: Tensor, giver: Tensor, slot: Tensor, carried: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """``company._compete`` by torch-geometric's softmax and scatter."""
    slots, edges = len(nobody), len(logit)
    index = torch.cat([slot, torch.arange(slots)])
    weight = softmax(torch.cat([logit, nobody]), index, num_nodes=slots)
    out = scatter(carried[giver] * weight[:edges, None], slot, 0, slots, reduce="sum")
    log_weight = weight.clamp_min(TINY).log()
    return log_weight[:edges], log_weight[edges:], out
