"""One round of what candidates learn from each other: rivals, those who came before and after, and companions.

- Rivals compete in a softmax: for the slot of the later tracklet, and for that of the earlier. Each candidate hears how
  much of both it has.
- Along the same weights looks are carried: what a tracklet and those before it look like, against what the next one and
  those after it look like. One noisy view becomes the mean of several, and nothing of the pair's other end leaks in.
- Companions attend to each other, candidates as nodes of their own graph: a pair that arrives together with a pair that
  is likely is likelier itself, the more so where its earlier end came in company.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch_geometric.data import HeteroData

import attnops
from examples.mtmc.matching.evidence import Apart

FEATURES = 8  # of a candidate, beside its kind


@dataclass(frozen=True)
class State:
    """What is known after a round: ``change [E]`` of the logits, looks carried ``[N, D + 1]`` (the last: how many), and
    ``company [E]``, how likely the likeliest companion is."""

    change: Tensor
    past: Tensor
    future: Tensor
    company: Tensor


@dataclass(frozen=True)
class Weights:
    """Log weights of candidates ``before, after [E]`` and of nobody ``starts [I], ends [O]``, and what was carried."""

    before: Tensor
    after: Tensor
    starts: Tensor
    ends: Tensor
    past: Tensor
    future: Tensor


def weigh(graph: HeteroData, logit: Tensor, starts: Tensor, ends: Tensor, past: Tensor, future: Tensor) -> Weights:
    """Candidates and nobody compete for every slot, by the given logits; looks are carried along the weights."""
    candidate = graph["tracklet", "candidate", "tracklet"]
    source, target = candidate.edge_index
    before, none_before, past_out = _compete(logit, starts, source, candidate.into, past)
    after, none_after, future_out = _compete(logit, ends, target, candidate.out_of, future)
    entry, exit = graph["nobody", "starts", "tracklet"].edge_index[1], graph["tracklet", "ends", "nobody"].edge_index[0]
    own = graph["tracklet"].looks
    return Weights(
        before, after, none_before, none_after, own.index_add(0, entry, past_out), own.index_add(0, exit, future_out)
    )


def _compete(
    logit: Tensor, nobody: Tensor, giver: Tensor, slot: Tensor, carried: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Log weights of candidates and of nobody in their slots, and the weighted sum of what the givers carry."""
    slots, count = len(nobody), len(carried)
    everyone = torch.arange(slots, device=slot.device)
    ends = torch.stack([torch.cat([giver, torch.full_like(everyone, count)]), torch.cat([slot, everyone])])
    value = torch.cat([carried, carried.new_zeros(1, carried.shape[1])])  # the last key is nobody, who carries nothing
    result = attnops.attend(
        logit.new_zeros(1, slots, 1), logit.new_zeros(1, count + 1, 1), value[None],
        pattern=attnops.Edges(ends, slots, count + 1), bias=torch.cat([logit, nobody])[None], return_lse=True,
    )  # fmt: skip
    assert isinstance(result, attnops.AttentionOutput) and result.lse is not None
    total = result.lse[0]
    return logit - total[slot], nobody - total, result.out[0].detach()  # what is carried is not learned through


class Round(nn.Module):
    """A change of the logits from what rivals, forerunners, followers and companions say; none before training."""

    def __init__(self, kinds: int, hidden: int = 16, companions: bool = True) -> None:
        super().__init__()
        self.asks = nn.Linear(FEATURES + kinds, hidden)
        self.tells = nn.Linear(FEATURES + kinds, hidden)
        self.apart = Apart()
        self.alone = attnops.Sink(1)
        self.hear = nn.Linear(FEATURES + kinds + 2, hidden)
        self.change = nn.Linear(hidden, 1)
        nn.init.zeros_(self.change.weight)
        nn.init.zeros_(self.change.bias)
        self.companions = companions

    def forward(self, graph: HeteroData, logit: Tensor, starts: Tensor, ends: Tensor, state: State) -> State:
        """The state after this round; ``logit, starts, ends`` are those before any round."""
        candidate = graph["tracklet", "candidate", "tracklet"]
        source, target = candidate.edge_index
        now = logit + state.change
        weights = weigh(graph, now, starts, ends, state.past, state.future)
        features = self.features(graph, now - (starts[candidate.into] + ends[candidate.out_of]) / 2, weights)
        company = self.attend(graph, features, weights) if self.companions else torch.zeros_like(now)
        came = now.new_zeros(len(weights.past)).index_add(0, target, weights.before.exp() * company)
        heard = self.hear(torch.cat([features, company[:, None], came[source, None]], 1)).relu()
        change = self.change(heard).squeeze(1)
        return State(state.change + change, weights.past, weights.future, company)

    def features(self, graph: HeteroData, gain: Tensor, weights: Weights) -> Tensor:
        """What a candidate tells and asks ``[E, FEATURES + kinds]``."""
        candidate = graph["tracklet", "candidate", "tracklet"]
        source, target = candidate.edge_index
        likeness = torch.cosine_similarity(weights.past[source, :-1], weights.future[target, :-1], dim=1, eps=1e-6)
        seen = weights.past[source, -1] * weights.future[target, -1]
        alike = candidate.alike.sum(1)
        return torch.cat(
            [
                torch.stack(
                    [
                        gain.clamp(-20, 20) / 8,
                        weights.before.clamp(-12, 0) / 4,
                        weights.after.clamp(-12, 0) / 4,
                        alike,
                        likeness,
                        likeness - alike,
                        likeness * seen.log(),
                        seen.log(),
                    ],
                    1,
                ),
                candidate.kind_of,
            ],
            1,
        )

    def attend(self, graph: HeteroData, features: Tensor, weights: Weights) -> Tensor:
        """How likely the likeliest companions are ``[E]``; candidates are queries, keys and values."""
        candidate = graph["tracklet", "candidate", "tracklet"]
        likely = ((weights.before + weights.after) / 2).exp()
        edges = attnops.Edges(candidate.companions, len(likely), len(likely), apart=candidate.apart)
        company = attnops.attend(
            self.asks(features)[None], self.tells(features)[None], likely[None, :, None],
            pattern=edges, bias=self.apart + self.alone,
        )  # fmt: skip
        assert isinstance(company, Tensor)
        return company[0, :, 0]
