"""Whole models: stacks of GAT and GATv2 layers, and the graph transformer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnops.biases import EdgeBias
from attnops.checks import require_number, require_positive
from attnops.graph.adjacency import check_edge_attr, read_index
from attnops.graph.exphormer import ExphormerAttention, ExphormerGraph
from attnops.graph.gat_conv import GATConv
from attnops.graph.gatv2_conv import GATv2Conv
from attnops.graph.graphormer import CentralityEncoding, GraphormerBias, all_pairs
from attnops.graph.layer import require_dtype
from attnops.graph.linear import Linear
from attnops.graph.local_global import LocalGlobal
from attnops.graph.node_attention import NodeAttention, NodeBlock
from attnops.graph.packed import Packed, graph_of_edges, read_batch
from attnops.graph.positional import LaplacianEncoding
from attnops.patterns import Edges

Attention = Literal["graphormer", "local+global", "local+linear", "exphormer"]
ATTENTIONS = ("graphormer", "local+global", "local+linear", "exphormer")


class GAT(nn.Module):
    """A stack of `GATConv` layers, as `torch_geometric.nn.GAT` builds it, whose `state_dict` it reads.

        x ← dropout(act(GATConv(x)))   num_layers − 1 times,      out = GATConv(x)

    Heads are concatenated, hidden_channels wide together; where out_channels is given, the last layer averages them.

    Args:
        in_channels: of a node; -1 reads it off the first input.
        hidden_channels: of a layer, all heads together. num_layers: 1 or more.
        out_channels: of the last layer; None is hidden_channels, heads concatenated.
        dropout: rate on hidden features and on attention weights, in training.
        act: the activation: a name in `torch.nn.functional` ("elu" in the paper), a function, or None.
        heads: H. **kwargs: further arguments of the layers (`edge_dim`, `residual`, …).

    Raises:
        ValueError, TypeError: a bad argument, by name.

    Source: Veličković et al. 2018, arXiv:1710.10903; interface: torch-geometric 2.8.

    Example:
        >>> import torch
        >>> from attnops.graph import GAT
        >>> model = GAT(5, 64, num_layers=2, out_channels=7, heads=8, act="elu", dropout=0.6)
        >>> model(torch.randn(4, 5), torch.tensor([[0, 1, 2], [1, 2, 3]])).shape
        torch.Size([4, 7])
    """

    layer: type[GATConv] | type[GATv2Conv] = GATConv

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        num_layers: int,
        out_channels: int | None = None,
        dropout: float = 0.0,
        act: str | Callable[[Tensor], Tensor] | None = "relu",
        *,
        heads: int = 1,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        require_positive(hidden_channels=hidden_channels, num_layers=num_layers, heads=heads)
        if hidden_channels % heads:
            raise ValueError(f"hidden_channels is {hidden_channels}; it must be a multiple of heads = {heads}")
        if isinstance(act, str) and not callable(getattr(F, act, None)):
            raise ValueError(f"act is {act!r}; it must be the name of a function in torch.nn.functional")
        self.act = getattr(F, act) if isinstance(act, str) else act
        self.dropout = nn.Dropout(dropout)
        options = {"heads": heads, "dropout": dropout, **kwargs}
        self.convs = nn.ModuleList()
        for _ in range(num_layers - 1):
            self.convs.append(self.layer(in_channels, hidden_channels // heads, **options))
            in_channels = hidden_channels
        if out_channels is None:
            self.convs.append(self.layer(in_channels, hidden_channels // heads, **options))
        else:
            self.convs.append(self.layer(in_channels, out_channels, concat=False, **options))

    def reset_parameters(self) -> None:
        """Draw the parameters anew."""
        for conv in self.convs:
            conv.reset_parameters()  # type: ignore[operator]

    def forward(self, x: Tensor, edge_index: Any, *, edge_attr: Tensor | None = None) -> Tensor:
        """`[N, in_channels]` to `[N, out_channels]`; the graph in any form that the layers take."""
        for conv in self.convs[:-1]:
            x = conv(x, edge_index, edge_attr)
            x = x if self.act is None else self.act(x)
            x = self.dropout(x)
        x = self.convs[-1](x, edge_index, edge_attr)
        return x


class GATv2(GAT):
    """A stack of `GATv2Conv` layers, as `torch_geometric.nn.GAT(v2=True)` builds it; see `GAT`.

    Source: Brody et al. 2022, arXiv:2105.14491; interface: torch-geometric 2.8.

    Example:
        >>> import torch
        >>> from attnops.graph import GATv2
        >>> GATv2(5, 64, num_layers=3, heads=8)(torch.randn(4, 5), torch.tensor([[0, 1, 2], [1, 2, 3]])).shape
        torch.Size([4, 64])
    """

    layer = GATv2Conv


class GraphTransformer(nn.Module):
    """A transformer over graphs: one model, whose layers differ in who may attend whom and what is preferred.

    | attention | who may attend whom | what is preferred |
    | --- | --- | --- |
    | "graphormer" | every node of the graph | hops between the two, edges along the path; degrees enter the features |
    | "local+global" | neighbours, beside every node of the graph (GPS) | edge features |
    | "local+linear" | the same, the second by linear attention | edge features |
    | "exphormer" | neighbours, an expander, virtual nodes: one list of edges | which of the three, edge features |

    Graphs are packed: a batch gives what each graph alone gives. The numbering of nodes changes nothing, but for
    "exphormer", whose expander is random, by number. A node hears from the sources of the edges that enter it; for an
    undirected graph list both ways.

    Args:
        in_channels: of a node; -1 reads it off the first input. hidden_channels: the width, a multiple of heads.
        num_layers: how many layers. out_channels: of the output. heads: H.
        attention: see above.
        edge_dim: features of an edge; None where it has none.
        max_distance, max_path, max_degree: of Graphormer's three encodings.
        virtual_nodes, degree, merged: of Exphormer's virtual nodes and expander, and how the parts are run.
        laplacian, random_walk: how many of each positional encoding a node has (`add_encodings`), 0 for none.
        signs: what is done about the signs of eigenvectors, "invariant" or "flip" (`LaplacianEncoding`).
        readout: None gives an output a node; "mean" or "sum" one a graph.
        dropout: rate on what layers add. attention_dropout: rate on the weights.

    Raises:
        ValueError, TypeError: a bad argument, by name.

    Source: Graphormer: Ying et al. 2021, arXiv:2106.05234; GPS: Rampášek et al. 2022, arXiv:2205.12454; Exphormer:
    Shirzad et al. 2023, arXiv:2303.06147.

    Example:
        >>> import torch
        >>> from attnops.graph import GraphTransformer
        >>> x, edge_index = torch.randn(5, 3), torch.tensor([[0, 1, 1, 2, 3, 4], [1, 0, 2, 1, 4, 3]])
        >>> model = GraphTransformer(3, 16, num_layers=2, out_channels=1, heads=4, readout="mean")
        >>> model(x, edge_index, batch=torch.tensor([0, 0, 0, 1, 1])).shape
        torch.Size([2, 1])
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        num_layers: int,
        out_channels: int,
        heads: int = 8,
        *,
        attention: Attention = "graphormer",
        edge_dim: int | None = None,
        max_distance: int = 20,
        max_path: int = 5,
        max_degree: int = 64,
        virtual_nodes: int = 1,
        degree: int = 4,
        merged: bool = False,
        laplacian: int = 0,
        random_walk: int = 0,
        signs: Literal["invariant", "flip"] = "invariant",
        readout: Literal["mean", "sum"] | None = None,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        require_positive(hidden_channels=hidden_channels, num_layers=num_layers, out_channels=out_channels, heads=heads)
        require_number(dropout=dropout, attention_dropout=attention_dropout)
        if attention not in ATTENTIONS:
            raise ValueError(f"attention is {attention!r}; it must be one of {', '.join(ATTENTIONS)}")
        if readout not in (None, "mean", "sum"):
            raise ValueError(f"readout is {readout!r}; it must be 'mean', 'sum' or None")
        dim = hidden_channels
        self.attention, self.readout, self.edge_dim = attention, readout, edge_dim
        self.max_path, self.virtual_nodes, self.degree = max_path, virtual_nodes, degree
        self.embed = Linear(in_channels, dim)
        self.laplacian = LaplacianEncoding(laplacian, dim, signs) if laplacian else None
        self.random_walk = nn.Linear(random_walk, dim) if random_walk else None
        self.centrality = CentralityEncoding(dim, max_degree) if attention == "graphormer" else None
        self.virtual = nn.Embedding(max(1, virtual_nodes), dim) if attention == "exphormer" else None

        # Graphormer's bias is one for all layers, as in the paper
        self.bias = GraphormerBias(heads, max_distance, edge_dim, max_path) if attention == "graphormer" else None

        def layer() -> nn.Module:
            if attention == "graphormer":
                return NodeBlock(NodeAttention(dim, heads, None, attention_dropout), dropout)
            if attention == "exphormer":
                return NodeBlock(ExphormerAttention(dim, heads, edge_dim, merged, attention_dropout), dropout)
            bias = None if edge_dim is None else EdgeBias(edge_dim, heads)
            far: Literal["full", "linear"] = "full" if attention == "local+global" else "linear"
            return LocalGlobal(dim, heads, None, far, bias, dropout=dropout, attention_dropout=attention_dropout)

        self.layers = nn.ModuleList(layer() for _ in range(num_layers))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, out_channels)

    def forward(
        self,
        x: Tensor,
        edge_index: Tensor,
        edge_attr: Tensor | None = None,
        batch: Tensor | None = None,
        batch_size: int | None = None,
        *,
        laplacian: Tensor | None = None,
        random_walk: Tensor | None = None,
    ) -> Tensor:
        """`[N, in_channels]` to `[N, out_channels]`, or `[G, out_channels]` with a readout.

        Args:
            x: `[N, in_channels]`. edge_index: integer `[2, E]`, sources above targets. edge_attr: `[E, edge_dim]`.
            batch: integer `[N]`, ascending, the graph of each node; None is one graph. batch_size: G.
            laplacian, random_walk: `[N, K]`, as `add_encodings` makes them, where the model was built with them.
        """
        edge_index = read_index(edge_index)
        packed = read_batch(batch, x.shape[0], batch_size, x.device)
        edge_attr = self._check(x, edge_index, edge_attr)

        h = self.embed(x)
        h = self._add_positions(h, edge_index, laplacian, random_walk, packed)
        if self.attention == "graphormer":
            assert self.centrality is not None
            h = self.centrality(h, edge_index)
            pairs = all_pairs(edge_index, x.shape[0], batch, edge_attr, self.max_path, batch_size)
            for layer in self.layers:
                h = layer(h, pairs, None, self.bias)
        else:
            data = {} if edge_attr is None else {"attr": edge_attr}
            edges = Edges(edge_index, x.shape[0], x.shape[0], **data)
            if batch is not None:
                graph_of_edges(edge_index, packed)
            h = (
                self._run_exphormer(h, edges, packed)
                if self.attention == "exphormer"
                else self._run_gps(h, edges, packed)
            )
        out: Tensor = self.head(self._read_out(self.norm(h), packed))
        return out

    # ---------------------------------------------------------------------------------------------- the steps
    def _run_gps(self, h: Tensor, edges: Edges, packed: Packed) -> Tensor:
        for layer in self.layers:
            h = layer(h, edges, packed.batch, packed.sizes.shape[0])
        return h

    def _run_exphormer(self, h: Tensor, edges: Edges, packed: Packed) -> Tensor:
        assert self.virtual is not None
        graph = ExphormerGraph(edges, packed, self.virtual_nodes, self.degree)
        hubs = self.virtual.weight[: self.virtual_nodes].repeat(packed.sizes.shape[0], 1)
        h = torch.cat([h, hubs.to(h.dtype)])
        for layer in self.layers:
            h = layer(h, graph)
        return h[: graph.num_nodes]

    def _add_positions(
        self, h: Tensor, edge_index: Tensor, laplacian: Tensor | None, random_walk: Tensor | None, packed: Packed
    ) -> Tensor:
        for name, given, encoder in (
            ("laplacian", laplacian, self.laplacian),
            ("random_walk", random_walk, self.random_walk),
        ):
            if (given is None) != (encoder is None):
                wanted = (
                    "[N, K], as the model was built with it" if given is None else "None: the model was built without"
                )
                raise ValueError(f"{name} is {'None' if given is None else list(given.shape)}; it must be {wanted}")
        if laplacian is not None and self.laplacian is not None:
            h = h + self.laplacian(laplacian, edge_index, packed.batch, packed.sizes.shape[0])
        if random_walk is not None and self.random_walk is not None:
            h = h + self.random_walk(random_walk)
        return h

    def _read_out(self, h: Tensor, packed: Packed) -> Tensor:
        if self.readout is None:
            return h
        total = h.new_zeros(packed.sizes.shape[0], h.shape[1]).index_add(0, packed.batch, h)
        return total if self.readout == "sum" else total / packed.sizes.clamp(min=1).unsqueeze(1)

    def _check(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor | None) -> Tensor | None:
        if (edge_attr is None) != (self.edge_dim is None):
            given = None if edge_attr is None else list(edge_attr.shape)
            raise ValueError(f"edge_attr is {given}; the model has edge_dim={self.edge_dim}")
        wanted = self.embed.in_channels
        if x.ndim != 2 or (wanted > 0 and x.shape[1] != wanted):
            raise ValueError(f"x has shape {list(x.shape)}; it must be [N, in_channels = {wanted}]")
        require_dtype(self, x=x)
        if edge_attr is None:
            return None
        check_edge_attr(edge_attr, edge_index.shape[1], self.edge_dim)
        return edge_attr.unsqueeze(-1) if edge_attr.ndim == 1 else edge_attr
