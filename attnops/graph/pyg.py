"""Torch-geometric's attention layers inside of a model, swapped for the ones here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import nn

from attnops.graph.gat_conv import GATConv
from attnops.graph.gatv2_conv import GATv2Conv
from attnops.graph.hgt_conv import HGTConv
from attnops.graph.layer import AttentionLayer
from attnops.graph.rgat_conv import RGATConv
from attnops.graph.self_loops import DEFAULT
from attnops.graph.transformer_conv import TransformerConv

Model = TypeVar("Model", bound=nn.Module)
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks", "_state_dict_hooks",
         "_forward_hooks_with_kwargs", "_forward_pre_hooks_with_kwargs", "_forward_hooks_always_called",
         "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks", "_is_full_backward_hook",
         "_message_forward_hooks", "_message_forward_pre_hooks")  # fmt: skip


def replace(model: Model) -> Model:
    """Every `GATConv`, `GATv2Conv`, `TransformerConv`, `HGTConv` and `RGATConv` of torch-geometric's swapped for ours.

    The model is changed in place and returned; where it is such a layer itself, ours is returned. Parameters are the
    very same objects, so that optimizers and saved states go on; names, modes, hooks and shared layers stay. Layers of
    a subclass of the user's own are left alone.

    Args:
        model: a model, whatever holds its layers: `Sequential`, `HeteroConv`, what `to_hetero` made, lists and dicts.

    Returns:
        The model with its layers swapped.

    Raises:
        TypeError: model is not a module.

    Example:
        >>> import torch, torch_geometric
        >>> from attnops.graph import pyg
        >>> model = torch_geometric.nn.GAT(8, 16, num_layers=2, heads=4)
        >>> parameters = list(model.parameters())
        >>> swapped = pyg.replace(model)
        >>> type(swapped.convs[0]).__module__, all(a is b for a, b in zip(parameters, swapped.parameters()))
        ('attnops.graph.gat_conv', True)
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model is {type(model).__name__}; it must be a torch.nn.Module")
    from torch_geometric import nn as peers

    builders = {getattr(peers, name): build for name, build in BUILDERS.items()}
    swapped: dict[nn.Module, nn.Module] = {}
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):
            if child is not None and type(child) in builders:
                if child not in swapped:
                    swapped[child] = _swap(child, builders[type(child)])
                parent._modules[name] = swapped[child]
    if type(model) in builders:
        return _swap(model, builders[type(model)])  # type: ignore[return-value]
    return model


def _swap(theirs: nn.Module, build: Callable[[Any], AttentionLayer]) -> AttentionLayer:
    with torch.random.fork_rng(devices=[]):  # the values drawn are replaced: leave the program's random numbers alone
        ours = build(theirs)
    ours.load_state_dict(theirs.state_dict())  # sizes that were read off an input
    for name, parameter in theirs.named_parameters(remove_duplicate=False):
        path, _, last = name.rpartition(".")
        ours.get_submodule(path)._parameters[last] = parameter
    for name in HOOKS:
        if hasattr(theirs, name):
            setattr(ours, name, getattr(theirs, name))
    return ours.train(theirs.training)


def _options(theirs: Any) -> dict[str, Any]:
    """Options of `MessagePassing`."""
    simple = theirs.aggr in ("add", "sum", "mean")
    return {"aggr": theirs.aggr if simple else theirs.aggr_module, "flow": theirs.flow}


def _build_gat(theirs: Any) -> AttentionLayer:
    return GATConv(
        theirs.in_channels, theirs.out_channels, theirs.heads, theirs.concat, theirs.negative_slope, theirs.dropout,
        DEFAULT if theirs.add_self_loops else False, theirs.edge_dim, theirs.fill_value, theirs.bias is not None,
        theirs.residual, **_options(theirs),
    )  # fmt: skip


def _build_gatv2(theirs: Any) -> AttentionLayer:
    return GATv2Conv(
        theirs.in_channels, theirs.out_channels, theirs.heads, theirs.concat, theirs.negative_slope, theirs.dropout,
        DEFAULT if theirs.add_self_loops else False, theirs.edge_dim, theirs.fill_value, theirs.bias is not None,
        theirs.share_weights, theirs.residual, **_options(theirs),
    )  # fmt: skip


def _build_transformer(theirs: Any) -> AttentionLayer:
    return TransformerConv(
        theirs.in_channels, theirs.out_channels, theirs.heads, theirs.concat, theirs.beta, theirs.dropout,
        theirs.edge_dim, theirs.lin_key.bias is not None, theirs.root_weight, **_options(theirs),
    )  # fmt: skip


def _build_hgt(theirs: Any) -> AttentionLayer:
    metadata = (theirs.node_types, theirs.edge_types)
    return HGTConv(dict(theirs.in_channels), theirs.out_channels, metadata, theirs.heads, flow=theirs.flow)


def _build_rgat(theirs: Any) -> AttentionLayer:
    return RGATConv(
        theirs.in_channels, theirs.out_channels, theirs.num_relations, theirs.num_bases, theirs.num_blocks, theirs.mod,
        theirs.attention_mechanism, theirs.attention_mode, theirs.heads, theirs.dim, theirs.concat,
        theirs.negative_slope, theirs.dropout, theirs.edge_dim, theirs.bias is not None, **_options(theirs),
    )  # fmt: skip


BUILDERS: dict[str, Callable[[Any], AttentionLayer]] = {
    "GATConv": _build_gat,
    "GATv2Conv": _build_gatv2,
    "TransformerConv": _build_transformer,
    "HGTConv": _build_hgt,
    "RGATConv": _build_rgat,
}
