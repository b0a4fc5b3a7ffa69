"""An epoch of training GAT on Cora, its words taken as sparse, beside torch-geometric's on dense features.

Cora is read from $ATTNOPS_DATA (cora.npz in its folder planetoid); without it the words and citations are random, as
many as Cora has. Both sides run the model of the GAT paper and the same Adam; numbers are compared without dropout.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import torch_geometric.nn as peer
from torch import Tensor, nn

import attnops.graph as ours
from benchmarks import _side_by_side as side
from examples.planetoid import Citations, drop_words, read, sum_to_one

RATE = 0.6


class Classifier(nn.Module):
    """The two layers of the paper, of either library."""

    def __init__(self, layer: Any, words: int, classes: int, drop: Callable[[Tensor, float, bool], Tensor]) -> None:
        super().__init__()
        self.first, self.drop = layer(words, 8, heads=8, dropout=RATE), drop
        self.second = layer(64, classes, heads=1, concat=False, dropout=RATE)

    def forward(self, features: Tensor, edge_index: Tensor) -> Tensor:
        hidden = F.elu(self.first(self.drop(features, RATE, self.training), edge_index))
        out: Tensor = self.second(F.dropout(hidden, RATE, self.training), edge_index)
        return out


def made_up(nodes: int, words: int, a_document: int, edges: int, classes: int) -> Citations:
    """Random documents and citations."""
    places = torch.stack(
        [torch.arange(nodes).repeat_interleave(a_document), torch.randint(words, (nodes * a_document,))]
    )
    features = torch.sparse_coo_tensor(places, torch.ones(places.shape[1]), (nodes, words), check_invariants=True)
    ids = torch.randperm(nodes)
    train, val, test = ids[: nodes // 20], ids[nodes // 20 : nodes // 4], ids[nodes // 4 : nodes // 2]
    labels = torch.randint(classes, (nodes,))
    return Citations(sum_to_one(features), torch.randint(nodes, (2, edges)), labels, train, val, test)


def main() -> None:
    options = side.arguments(__doc__ or "")
    folder = Path(os.environ.get("ATTNOPS_DATA", "")) / "planetoid"
    real = os.environ.get("ATTNOPS_DATA") and (folder / "cora.npz").is_file() and not options.small
    data = (
        read(folder, "Cora")
        if real
        else made_up(*((200, 50, 5, 600, 3) if options.small else (2708, 1433, 18, 10556, 7)))
    )
    words, classes, dense = data.features.shape[1], int(data.labels.max()) + 1, data.features.to_dense()
    mine = Classifier(ours.GATConv, words, classes, drop_words)
    theirs = Classifier(peer.GATConv, words, classes, F.dropout)
    theirs.load_state_dict(mine.state_dict())

    def gradients(model: Classifier, features: Tensor) -> list[Tensor]:
        loss = F.cross_entropy(model(features, data.edge_index)[data.train], data.labels[data.train])
        return [loss, *torch.autograd.grad(loss, list(model.parameters()))]

    both = gradients(mine.eval(), data.features), gradients(theirs.eval(), dense)
    side.assert_equal_numbers(*both, "loss and gradients")

    def epoch(model: Classifier, features: Tensor, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(features, data.edge_index)[data.train], data.labels[data.train]).backward()
        optimizer.step()

    runs = {
        name: partial(epoch, model.train(), features, torch.optim.Adam(model.parameters(), 0.005, weight_decay=5e-4))
        for name, model, features in (("attnops", mine, data.features), ("peer", theirs, dense))
    }
    taken = side.seconds(runs, 2 if options.small else 20, 0.0 if options.small else 0.2)
    row = {
        "graph": "Cora" if real else "random, of Cora's size",
        "epoch_pyg_ratio": taken["peer"] / taken["attnops"],
        "epoch_ms": taken["attnops"] * 1e3,
        "peer_ms": taken["peer"] * 1e3,
    }
    side.write(options, "citations", [row])


if __name__ == "__main__":
    main()
