"""The citation example: it reads and never writes its data, follows the protocol, and reports what it found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor

from examples import planetoid


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small cora.npz: two fields with words and citations of their own, one document without words or citations."""
    generator = numpy.random.default_rng(0)
    labels = numpy.arange(40) % 2
    words = (generator.random((40, 12)) < 0.2) | (
        (numpy.arange(12) % 2 == labels[:, None]) & (generator.random((40, 12)) < 0.5)
    )
    words[39] = False
    pairs = [(i, j) for i in range(39) for j in range(i) if labels[i] == labels[j] and generator.random() < 0.2]
    row, column = words.nonzero()
    data = tmp_path / "data"
    data.mkdir()
    numpy.savez(
        data / "cora.npz", edges=numpy.array(pairs, numpy.int32).T, labels=labels.astype(numpy.int8),
        train=numpy.arange(0, 10), val=numpy.arange(10, 24), test=numpy.arange(24, 40),
        x_indptr=numpy.searchsorted(row, numpy.arange(41)), x_indices=column.astype(numpy.int16),
        x_data=numpy.ones(len(row), numpy.float32), x_shape=numpy.array([40, 12]),
    )  # fmt: skip
    return data


def test_read(folder: Path) -> None:
    """Rows sum to 1, or are empty; citations go both ways."""
    data = planetoid.read(folder, "Cora")
    total = data.features.to_dense().sum(1)
    torch.testing.assert_close(total[:39], torch.ones(39))
    assert total[39] == 0 and data.features.shape == (40, 12)
    forth, back = data.edge_index.chunk(2, dim=1)
    assert torch.equal(forth.flip(0), back)
    assert [len(part) for part in (data.labels, data.train, data.val, data.test)] == [40, 10, 14, 16]


def test_dropout_of_words(folder: Path) -> None:
    """As dropout of the dense matrix: what stays is scaled, zeros stay zeros, evaluation changes nothing."""
    features = planetoid.read(folder, "Cora").features
    torch.manual_seed(0)
    dropped = torch.stack([planetoid.drop_words(features, 0.6, True).to_dense() for _ in range(500)])
    dense = features.to_dense()
    assert (dropped[:, dense == 0] == 0).all()
    torch.testing.assert_close(dropped.mean(0), dense, atol=0.15, rtol=0.3)
    assert ((dropped == 0) | torch.isclose(dropped, dense / 0.4)).all()
    assert planetoid.drop_words(features, 0.6, False) is features


@pytest.mark.parametrize("model", ["gat", "gatv2"])
def test_the_script(
    folder: Path, tmp_path: Path, model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It learns, writes what it found, and leaves the data as they were."""
    monkeypatch.setattr(planetoid, "LONGEST", 60)
    before = {path: path.read_bytes() for path in folder.iterdir()}
    report = tmp_path / "out" / "cora.json"
    planetoid.main(["--data", str(folder), "--model", model, "--seeds", "2", "--json", str(report)])
    found = json.loads(report.read_text())
    assert len(found["accuracy"]) == 2 and all(0 <= accuracy <= 1 for accuracy in found["accuracy"])
    assert found["mean"] == pytest.approx(sum(found["accuracy"]) / 2) and found["mean"] > 0.6
    assert found["std"] == pytest.approx(abs(found["accuracy"][0] - found["mean"]))
    assert {path: path.read_bytes() for path in folder.iterdir()} == before
    assert [path.name for path in report.parent.iterdir()] == ["cora.json"]
    assert "83.0 ± 0.7" in capsys.readouterr().out


def test_when_training_ends(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So many epochs after the last best of loss or accuracy; the weights are those where both were best."""
    data = planetoid.read(folder, "Cora")
    monkeypatch.setattr(planetoid, "PATIENCE", 20)
    epoch = 0
    best_of_both, best_of_one = 7, 12

    def predict(model: Any, data: planetoid.Citations) -> Tensor:
        nonlocal epoch
        epoch += 1
        with torch.no_grad():
            next(model.parameters()).fill_(epoch)
        return torch.zeros(40, 2)

    losses = {best_of_both: 0.5, best_of_one: 0.4}
    accuracies = {best_of_both: 0.9}
    monkeypatch.setattr(planetoid, "predict", predict)
    monkeypatch.setattr(planetoid, "share_right", lambda *a: accuracies.get(epoch, 0.8 if epoch > 1 else 0.85))
    kept: list[float] = []
    load = planetoid.Classifier.load_state_dict

    def load_state_dict(self: Any, state: dict[str, Tensor]) -> Any:
        kept.append(float(next(iter(state.values())).flatten()[0]))
        return load(self, state)

    monkeypatch.setattr(planetoid.Classifier, "load_state_dict", load_state_dict)
    right = torch.nn.functional.cross_entropy

    def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
        return (
            right(logits, labels)
            if logits.requires_grad
            else torch.tensor(losses.get(epoch, 1.0 if epoch > 1 else 0.9))
        )

    monkeypatch.setattr(planetoid.F, "cross_entropy", cross_entropy)
    run = planetoid.train(data, "gat", 0, show=False)
    assert run.epochs == best_of_one + 20
    assert kept == [best_of_both]


def test_bad_arguments(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"--data is .*, which holds no citeseer.npz"):
        planetoid.main(["--data", str(tmp_path), "--dataset", "Citeseer"])
    for wrong in (["--dataset", "Pubmed"], ["--model", "gcn"], ["--seeds", "0"]):
        with pytest.raises(SystemExit):
            planetoid.main(wrong)


def test_the_real_data(data_dir: Path) -> None:
    """The two data sets as their authors describe them."""
    for dataset, sizes in (("Cora", (2708, 1433, 10556)), ("Citeseer", (3327, 3703, 9104))):
        held = planetoid.read(data_dir / "planetoid", dataset)
        assert (*held.features.shape, held.edge_index.shape[1]) == sizes
        assert (len(held.val), len(held.test)) == (500, 1000)
