"""Which field a paper is of, from its words and its citations: GAT on Cora and Citeseer, by the GAT paper's protocol.

Two layers, 8 heads of 8 features and one head of the classes; dropout 0.6 on features, on attention and, as in the
authors' code, on what is attended to; Adam at 0.005, weight decay 5e-4; rows of features sum to 1. Training ends 100
epochs after the last best of either validation loss or accuracy; the weights kept are those where both were best
(Veličković et al. 2018, arXiv:1710.10903).
Words are 1 to 2 % of a document's vocabulary, so features stay sparse: dropout draws a number for each word that is
there, and the first projection reads no zeros.

    python -m examples.planetoid --dataset Cora --data DIR --seeds 10 --json out/planetoid/cora.json

DIR holds cora.npz or citeseer.npz and is only read; without --data torch-geometric downloads the data.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnops.graph import GATConv, GATv2Conv

PAPER = {"Cora": "83.0 ± 0.7", "Citeseer": "72.5 ± 0.7"}
PATIENCE, LONGEST = 100, 10_000


class Citations(NamedTuple):
    """Documents, their words, who cites whom, and the public split."""

    features: Tensor  # sparse [N, F], rows sum to 1
    edge_index: Tensor  # [2, E], both ways
    labels: Tensor  # [N]
    train: Tensor
    val: Tensor
    test: Tensor


class DroppingGAT(GATConv):
    """`GATConv` with dropout on the values too."""

    def attend_over(
        self, edge_index: Any, query: Tensor, key: Tensor, value: Tensor, return_weights: bool, **options: Any
    ) -> tuple[Tensor, Tensor | None]:
        value = F.dropout(value, self.dropout, self.training)
        return super().attend_over(edge_index, query, key, value, return_weights, **options)


class DroppingGATv2(GATv2Conv):
    """`GATv2Conv` with dropout on the values too."""

    def attend_over(
        self, edge_index: Any, query: Tensor, key: Tensor, value: Tensor, return_weights: bool, **options: Any
    ) -> tuple[Tensor, Tensor | None]:
        value = F.dropout(value, self.dropout, self.training)
        return super().attend_over(edge_index, query, key, value, return_weights, **options)


LAYERS: dict[str, type[DroppingGAT] | type[DroppingGATv2]] = {"gat": DroppingGAT, "gatv2": DroppingGATv2}


class Classifier(nn.Module):
    """The two layers of the paper's transductive experiments."""

    def __init__(self, layer: type[DroppingGAT] | type[DroppingGATv2], words: int, classes: int) -> None:
        super().__init__()
        self.first = layer(words, 8, heads=8, dropout=0.6)
        self.second = layer(64, classes, heads=1, concat=False, dropout=0.6)

    def forward(self, features: Tensor, edge_index: Tensor) -> Tensor:
        hidden = F.elu(self.first(drop_words(features, 0.6, self.training), edge_index))
        out: Tensor = self.second(F.dropout(hidden, 0.6, self.training), edge_index)
        return out


def drop_words(features: Tensor, rate: float, training: bool) -> Tensor:
    """Dropout of a sparse matrix: a zero stays 0 whether it is dropped or not."""
    if not training:
        return features
    return same_places(features, F.dropout(features.values(), rate))


def same_places(matrix: Tensor, values: Tensor) -> Tensor:
    """A sparse matrix with other values."""
    return torch.sparse_coo_tensor(matrix.indices(), values, matrix.shape, is_coalesced=True, check_invariants=False)


# ---------------------------------------------------------------------------------------------------------- data
def read(folder: Path, dataset: str) -> Citations:
    """`cora.npz` or `citeseer.npz`; nothing in it is unpickled, and nothing is written."""
    import numpy

    path = folder / f"{dataset.lower()}.npz"
    if not path.is_file():
        raise FileNotFoundError(f"--data is {folder}, which holds no {path.name}")
    with numpy.load(path, allow_pickle=False) as held:
        arrays = {name: torch.from_numpy(held[name].astype(held[name].dtype.newbyteorder("="))) for name in held.files}
    lengths = arrays["x_indptr"].long().diff()
    row = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
    features = torch.sparse_coo_tensor(
        torch.stack([row, arrays["x_indices"].long()]), arrays["x_data"].float(), tuple(arrays["x_shape"].tolist()),
        check_invariants=True,
    )  # fmt: skip
    edges = arrays["edges"].long()
    parts = (arrays[name].long() for name in ("labels", "train", "val", "test"))
    return Citations(sum_to_one(features), torch.cat([edges, edges.flip(0)], dim=1), *parts)


def download(dataset: str) -> Citations:
    """The same by torch-geometric, into out/planetoid."""
    from torch_geometric.datasets import Planetoid

    data = Planetoid("out/planetoid", dataset)[0]
    masks = (mask.nonzero().flatten() for mask in (data.train_mask, data.val_mask, data.test_mask))
    return Citations(sum_to_one(data.x.to_sparse()), data.edge_index, data.y, *masks)


def sum_to_one(features: Tensor) -> Tensor:
    """Each row divided by its sum; a document without words stays 0."""
    features = features.coalesce()
    row = features.indices()[0]
    total = torch.zeros(features.shape[0]).index_add(0, row, features.values())
    return same_places(features, features.values() / total[row])


# ---------------------------------------------------------------------------------------------------------- training
class Run(NamedTuple):
    """One seed."""

    accuracy: float  # of the test documents
    epochs: int
    seconds: float  # an epoch, evaluation included


def train(data: Citations, model_name: str, seed: int, show: bool) -> Run:
    """Train from one seed; the test documents are read once, at the end."""
    torch.manual_seed(seed)
    classes = int(data.labels.max()) + 1
    model = Classifier(LAYERS[model_name], data.features.shape[1], classes)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005, weight_decay=5e-4)
    best_loss, best_accuracy, since, kept = float("inf"), 0.0, 0, copy.deepcopy(model.state_dict())
    start = time.perf_counter()
    for epoch in range(1, LONGEST + 1):
        model.train()
        out = model(data.features, data.edge_index)
        optimizer.zero_grad()
        F.cross_entropy(out[data.train], data.labels[data.train]).backward()
        optimizer.step()
        logits = predict(model, data)
        loss = F.cross_entropy(logits[data.val], data.labels[data.val]).item()
        accuracy = share_right(logits, data.labels, data.val)
        if loss <= best_loss and accuracy >= best_accuracy:
            kept = copy.deepcopy(model.state_dict())
        if loss <= best_loss or accuracy >= best_accuracy:
            best_loss, best_accuracy, since = min(loss, best_loss), max(accuracy, best_accuracy), 0
        else:
            since += 1
        if show and epoch % 10 == 0:
            print(f"\rseed {seed}  epoch {epoch}  validation {accuracy:.3f}", end="", file=sys.stderr, flush=True)
        if since == PATIENCE:
            break
    seconds = (time.perf_counter() - start) / epoch
    model.load_state_dict(kept)
    return Run(share_right(predict(model, data), data.labels, data.test), epoch, seconds)


@torch.no_grad()
def predict(model: Classifier, data: Citations) -> Tensor:
    """Logits of every document."""
    model.eval()
    logits: Tensor = model(data.features, data.edge_index)
    return logits


def share_right(logits: Tensor, labels: Tensor, part: Tensor) -> float:
    """Accuracy over some documents."""
    return float((logits[part].argmax(1) == labels[part]).float().mean())


# ---------------------------------------------------------------------------------------------------------- the script
def summary(runs: list[Run], dataset: str, model: str) -> dict[str, Any]:
    """What is reported: mean and standard deviation over seeds, between 0 and 1."""
    accuracy = [run.accuracy for run in runs]
    return {
        "mean": statistics.fmean(accuracy),
        "std": statistics.pstdev(accuracy),
        "accuracy": accuracy,
        "dataset": dataset,
        "model": model,
        "epochs": [run.epochs for run in runs],
        "seconds_per_epoch": statistics.median(run.seconds for run in runs),
    }


def write(report: dict[str, Any], path: Path) -> None:
    """JSON, renamed into place once it is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(report, indent=1) + "\n")
    partial.replace(path)


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m examples.planetoid", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--dataset", choices=tuple(PAPER), default="Cora")
    parser.add_argument("--model", choices=tuple(LAYERS), default="gat")
    parser.add_argument("--data", type=Path, help="the folder of cora.npz and citeseer.npz (default: download)")
    parser.add_argument("--seeds", type=int, default=10, help="how many seeds")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="where to write the figures")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(given)
    if options.seeds < 1:
        parser.error(f"--seeds is {options.seeds}; it must be 1 or more")
    return options


def main(given: list[str] | None = None) -> None:
    options = arguments(given)
    torch.set_num_threads(options.threads)
    try:
        data = download(options.dataset) if options.data is None else read(options.data, options.dataset)
    except FileNotFoundError as error:
        sys.exit(str(error))
    show = sys.stderr.isatty()
    runs = []
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        runs.append(train(data, options.model, seed, show))
        run = runs[-1]
        print(f"{chr(13) if show else ''}seed {seed}  test {100 * run.accuracy:.1f} %  after {run.epochs} epochs, "
              f"{1e3 * run.seconds:.1f} ms each")  # fmt: skip
    report = summary(runs, options.dataset, options.model)
    print(f"{options.dataset}, {options.model}: {100 * report['mean']:.1f} ± {100 * report['std']:.1f} % of the test "
          f"documents over {len(runs)} seeds; GAT in its paper: {PAPER[options.dataset]}")  # fmt: skip
    if options.json is not None:
        write(report, options.json)


if __name__ == "__main__":
    main()
