"""Mini-batches under DistributedDataParallel."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from attnops.distributed import loaders, neighbor_loader, seeds_of_rank
from attnops.graph import GATv2Conv


@pytest.fixture
def can_sample() -> bool:
    typing = pytest.importorskip("torch_geometric.typing", reason="the loaders are torch-geometric's")
    return bool(typing.WITH_PYG_LIB or typing.WITH_TORCH_SPARSE)


def dealt(group: Any, count: int, seed: int) -> list[int]:
    seeds: list[int] = seeds_of_rank(10 * torch.arange(count), group=group, seed=seed).tolist()
    return seeds


def test_seeds_are_dealt_out_evenly(ranks: Any) -> None:
    for count in (0, 1, 2, 12, 13):
        shares = ranks(dealt, count, 0, world=3)
        assert len({len(share) for share in shares}) == 1
        assert {seed for share in shares for seed in share} == set(range(0, 10 * count, 10))
        assert sum(map(len, shares)) < count + 3
    assert ranks(dealt, 12, 0, world=3) != ranks(dealt, 12, 1, world=3)
    with pytest.raises(ValueError, match="seed is 'a'"):
        seeds_of_rank(torch.arange(3), seed="a")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="seeds is"):
        seeds_of_rank(torch.zeros(2, 3))


def graph() -> Any:
    from torch_geometric.data import Data  # late, so that ranks that need it not do not wait for it

    generator = torch.Generator().manual_seed(0)
    return Data(
        x=torch.randn(30, 5, generator=generator),
        edge_index=torch.randint(0, 30, (2, 120), generator=generator),
        y=torch.randint(0, 3, (30,), generator=generator),
    )


def test_without_a_sampler_the_error_says_what_to_install(can_sample: bool) -> None:
    from torch_geometric.loader import NeighborLoader

    if can_sample:
        pytest.skip("torch-geometric's sampler is installed")
    with pytest.raises(ImportError, match=r"pip install pyg-lib.*data.pyg.org.*--no-build-isolation torch-sparse"):
        neighbor_loader(graph(), [4], torch.arange(30))
    with pytest.warns(UserWarning, match="pyg-lib"), pytest.raises(ImportError, match="pyg-lib"):
        next(iter(NeighborLoader(graph(), [4], input_nodes=torch.arange(30))))


def sampled(group: Any) -> set[int]:
    loader = neighbor_loader(graph(), [4, 4], torch.arange(30) % 2 == 0, group=group, batch_size=4)
    return {int(node) for batch in loader for node in batch.n_id[: batch.batch_size]}


def test_each_rank_samples_around_its_own_seeds(can_sample: bool, ranks: Any) -> None:
    if not can_sample:
        pytest.skip("torch-geometric's sampler, pyg-lib or torch-sparse, is not installed")
    first, second = ranks(sampled)
    assert first | second == set(range(0, 30, 2)) and len(first & second) <= 1


def test_input_nodes_that_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sampler reads outside of its memory for them."""
    pytest.importorskip("torch_geometric", reason="the loaders are torch-geometric's")
    monkeypatch.setattr(loaders, "_loader", lambda: lambda data, sizes, input_nodes, **_: input_nodes)
    given = neighbor_loader(graph(), [4], torch.arange(30) % 2 == 0)
    assert torch.equal(given.sort().values, torch.arange(0, 30, 2))
    for nodes, words in (
        (None, "input_nodes is NoneType"),
        ("paper", "input_nodes is str"),
        (torch.arange(3.0), "input_nodes is .3. in torch.float32"),
        (torch.ones(3, dtype=torch.bool), "a mask of 3 nodes; the graph has 30"),
        (torch.tensor([0, 30]), "the nodes 0 to 30; they must be from 0 to 29"),
        (torch.tensor([-1]), "the nodes -1 to -1"),
    ):
        with pytest.raises((TypeError, ValueError), match=words):
            neighbor_loader(graph(), [4], nodes)  # type: ignore[arg-type]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = GATv2Conv(5, 4, heads=2), GATv2Conv(8, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        out: Tensor = self.second(self.first(x, edge_index).relu(), edge_index)
        return out


def graphs() -> list[Any]:
    """Small graphs, as many as four batches of two."""
    from torch_geometric.data import Data

    whole, parts = graph(), []
    for first in range(0, 24, 3):
        edge_index = whole.edge_index[:, first : first + 5] % 3
        parts.append(Data(x=whole.x[first : first + 3], edge_index=edge_index, y=whole.y[first : first + 3]))
    return parts


def steps(model: nn.Module, batches: list[list[Any]]) -> list[Tensor]:
    """SGD over mini-batches, each the mean of the losses of some; the parameters afterwards."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for together in batches:
        losses = [nn.functional.cross_entropy(model(batch.x, batch.edge_index), batch.y) for batch in together]
        optimizer.zero_grad()
        torch.stack(losses).mean().backward()
        optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


def trained(group: Any) -> list[Tensor]:
    from torch_geometric.loader import DataLoader

    torch.manual_seed(1)
    model = DistributedDataParallel(Model().double(), process_group=group)
    parts = graphs()
    mine = seeds_of_rank(torch.arange(len(parts)), group=group)
    batches = list(DataLoader([parts[i] for i in mine.tolist()], batch_size=2))
    for batch in batches:
        batch.x = batch.x.double()
    return steps(model, [[batch] for batch in batches])


def test_layers_train_under_ddp_as_on_one_process(can_sample: bool, ranks: Any) -> None:
    from torch_geometric.loader import DataLoader

    torch.manual_seed(1)
    model, parts = Model().double(), graphs()
    order = torch.randperm(len(parts), generator=torch.Generator().manual_seed(0)).tolist()
    loaders = [list(DataLoader([parts[i] for i in order[rank::2]], batch_size=2)) for rank in range(2)]
    for batch in (batch for batches in loaders for batch in batches):
        batch.x = batch.x.double()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    want = steps(model, [list(together) for together in zip(*loaders, strict=True)])
    assert not any(torch.equal(old, new) for old, new in zip(before, want, strict=True))
    for got in ranks(trained):
        for mine, theirs in zip(got, want, strict=True):
            assert torch.allclose(mine, theirs, rtol=1e-12, atol=1e-14)
