"""Where a node stands in its graph: eigenvectors of the Laplacian and random walks, by torch-geometric's transforms."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

from attnops.checks import require_count, require_positive
from attnops.graph.adjacency import read_index
from attnops.graph.packed import read_batch
from attnops.patterns import Edges


def add_encodings(data: Any, laplacian: int = 0, random_walk: int = 0) -> Any:
    """PyG's `Data` with `laplacian [N, K]` and `random_walk [N, K]`, as much as is asked for, in a copy.

    By torch-geometric's `AddLaplacianEigenvectorPE` and `AddRandomWalkPE`. A graph with fewer than K + 1 nodes has
    fewer eigenvectors, and zeros in the other columns, so that graphs batch. The sign of an eigenvector is arbitrary
    (the transform draws it), and so is the basis where eigenvalues are equal: `LaplacianEncoding` deals with the sign;
    nothing here does with the basis. Random walks have neither ambiguity.

    Args:
        data: `torch_geometric.data.Data`, one graph. laplacian: K eigenvectors, of the smallest eigenvalues but the
            first. random_walk: K, the probability to be back after 1 … K steps.

    Raises:
        TypeError: no `Data`. ValueError: a negative K. ImportError: no torch-geometric.

    Source: Dwivedi et al. 2020, arXiv:2003.00982, and 2021, arXiv:2110.07875.

    Example:
        >>> import torch
        >>> from torch_geometric.data import Data
        >>> from attnops.graph import add_encodings
        >>> path = Data(edge_index=torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]), num_nodes=3)
        >>> path = add_encodings(path, laplacian=4, random_walk=2)
        >>> path.laplacian.shape, path.random_walk[:, 1]              # back after two steps
        (torch.Size([3, 4]), tensor([0.5000, 1.0000, 0.5000]))
    """
    if not hasattr(data, "edge_index") or not hasattr(data, "num_nodes") or hasattr(data, "edge_types"):
        raise TypeError(f"data is {type(data).__name__}; it must be torch_geometric.data.Data")
    require_count(laplacian=laplacian, random_walk=random_walk)
    import numpy
    from torch_geometric.transforms import AddLaplacianEigenvectorPE, AddRandomWalkPE

    num_nodes = int(data.num_nodes)
    if laplacian:
        known = max(0, min(laplacian, num_nodes - 1))
        encoding = torch.zeros(num_nodes, laplacian)
        if known:
            start = numpy.random.default_rng(0).standard_normal(num_nodes)  # of scipy's iteration: the same each time
            add = AddLaplacianEigenvectorPE(known, "laplacian", data.is_undirected(), v0=start)
            encoding[:, :known] = add(data).laplacian
        data = data.clone()
        data.laplacian = encoding.to(data.edge_index.device)
    if random_walk:
        data = AddRandomWalkPE(random_walk, "random_walk")(data)
    return data


class LaplacianEncoding(nn.Module):
    """A learned map of Laplacian eigenvectors that does not depend on their signs.

        "invariant":   ρ([φ(v_1) + φ(−v_1), …, φ(v_K) + φ(−v_K)])       φ(v)_i = b(a(v_i) + Σ_{j → i} a(v_j))
        "flip":        W [s_1 v_1, …, s_K v_K]                          in training s_k = ±1 at random, for each graph

    "invariant" is SignNet: exact. Its φ hears from neighbours, since a φ of one entry at a time would see no more than
    |v_i|: which nodes lie on the same side would be lost. "flip" teaches the model that signs mean nothing, and costs
    nothing; in evaluation the signs are those given, so outputs still depend on them. Neither removes the ambiguity of
    the basis where eigenvalues are equal.

    Args:
        count: K, the eigenvectors. dim: of a node. signs: "invariant" or "flip". hidden: width of a and b.

    Raises:
        ValueError, TypeError: a bad argument, by name.

    Source: sign-invariant networks: Lim et al. 2022, arXiv:2202.13013; random flips: Dwivedi et al. 2020,
    arXiv:2003.00982.

    Example:
        >>> import torch
        >>> from attnops.graph import LaplacianEncoding
        >>> encode, vectors, edge_index = LaplacianEncoding(2, 16), torch.randn(3, 2), torch.tensor([[0, 1], [1, 2]])
        >>> torch.equal(encode(vectors, edge_index), encode(-vectors, edge_index))
        True
    """

    def __init__(
        self, count: int, dim: int, signs: Literal["invariant", "flip"] = "invariant", hidden: int = 16
    ) -> None:
        super().__init__()
        require_positive(count=count, dim=dim, hidden=hidden)
        if signs not in ("invariant", "flip"):
            raise ValueError(f"signs is {signs!r}; it must be 'invariant' or 'flip'")
        self.count, self.signs = count, signs
        if signs == "invariant":
            self.own = nn.Sequential(nn.Linear(1, hidden), nn.ReLU(), nn.Linear(hidden, hidden))
            self.heard = nn.Sequential(nn.ReLU(), nn.Linear(hidden, hidden))
            self.rho = nn.Sequential(nn.Linear(count * hidden, dim), nn.ReLU(), nn.Linear(dim, dim))
        else:
            self.rho = nn.Sequential(nn.Linear(count, dim))

    def forward(
        self, vectors: Tensor, edge_index: Tensor, batch: Tensor | None = None, batch_size: int | None = None
    ) -> Tensor:
        """`[N, K]` to `[N, dim]`; `batch [N]` is PyG's, ascending."""
        if vectors.ndim != 2 or vectors.shape[1] != self.count:
            raise ValueError(f"vectors has shape {list(vectors.shape)}; it must be [N, K = {self.count}]")
        if self.signs == "invariant":
            edges = Edges(read_index(edge_index), vectors.shape[0], vectors.shape[0])  # checks the ends
            vectors = (self._phi(vectors, edges) + self._phi(-vectors, edges)).flatten(1)
        elif self.training:
            packed = read_batch(batch, vectors.shape[0], batch_size, vectors.device)
            signs = torch.randint(0, 2, (packed.sizes.shape[0], self.count), device=vectors.device) * 2 - 1
            vectors = vectors * signs[packed.batch]
        out: Tensor = self.rho(vectors)
        return out

    def _phi(self, vectors: Tensor, edges: Edges) -> Tensor:
        """`[N, K]` to `[N, K, hidden]`, each eigenvector by itself."""
        own = self.own(vectors.unsqueeze(-1))
        out: Tensor = self.heard(own.index_add(0, edges.target, own[edges.source]))
        return out

    def extra_repr(self) -> str:
        return f"{self.count}, signs={self.signs!r}"
