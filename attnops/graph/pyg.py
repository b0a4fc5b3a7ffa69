"""Torch-geometric's attention layers inside of a model, swapped for the ones here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter

from attnops.graph.gat_conv import GATConv
from attnops.graph.gatv2_conv import GATv2Conv
from attnops.graph.hgt_conv import HGTConv
from attnops.graph.layer import AttentionLayer
from attnops.graph.linear import Linear
from attnops.graph.rgat_conv import RGATConv
from attnops.graph.self_loops import DEFAULT
from attnops.graph.transformer_conv import TransformerConv

Model = TypeVar("Model", bound=nn.Module)
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks", "_state_dict_hooks",
         "_forward_hooks_with_kwargs", "_forward_pre_hooks_with_kwargs", "_forward_hooks_always_called",
         "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks", "_is_full_backward_hook",
         "_message_forward_hooks", "_message_forward_pre_hooks")  # fmt: skip
CALL_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
STATE = ("explain", "_edge_mask", "_loop_mask", "_apply_sigmoid")  # of an explanation
LOST_HOOKS = tuple(f"_{step}_forward_{kind}hooks" for kind in ("", "pre_")
                   for step in ("propagate", "aggregate", "message_and_aggregate", "edge_update"))  # fmt: skip
PLAIN = ("torch_geometric.nn.", "torch.nn.modules.")  # modules as a layer makes them; a parametrized one is not


def replace(model: Model) -> Model:
    """Every `GATConv`, `GATv2Conv`, `TransformerConv`, `HGTConv` and `RGATConv` of torch-geometric's swapped for ours.

    The model is changed in place and returned; where it is such a layer itself, ours is returned. Parameters are the
    very same objects, so that optimizers and saved states go on; names, modes, hooks and shared layers stay. So do the
    hooks and parametrizations of the linear maps inside of a layer, whose modules are then taken over as they are.
    Layers of a subclass of the user's own are left alone.

    Args:
        model: a model, whatever holds its layers: `Sequential`, `HeteroConv`, what `to_hetero` made, lists and dicts.

    Returns:
        The model with its layers swapped.

    Raises:
        TypeError: model is not a module. ValueError: a hook or parametrization that would be lost, with the layer's
            name; nothing is swapped then.

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
    places: list[tuple[nn.Module, str, nn.Module]] = []
    for path, parent in model.named_modules():
        for name, child in parent._modules.items():
            if child is not None and type(child) in builders:
                if child not in swapped:
                    swapped[child] = _swap(f"{path}.{name}".lstrip("."), child, builders[type(child)])
                places.append((parent, name, swapped[child]))
    if type(model) in builders:
        return _swap(type(model).__name__, model, builders[type(model)])  # type: ignore[return-value]
    for parent, name, ours in places:
        parent._modules[name] = ours
    return model


def _swap(name: str, theirs: nn.Module, build: Callable[[Any], AttentionLayer]) -> AttentionLayer:
    with torch.random.fork_rng(devices=[]):  # the values drawn are replaced: leave the program's random numbers alone
        ours = build(theirs)
    for hooks in LOST_HOOKS:
        if getattr(theirs, hooks, None):
            raise ValueError(
                f"the layer {name!r} has {hooks[1:]}, which the layers here do not call; remove them first"
            )
    _take_changed(name, theirs, ours)
    if _names(ours) != _names(theirs):
        lost = ", ".join(sorted(_names(ours) ^ _names(theirs)))
        raise ValueError(f"the layer {name!r} has other parameters or buffers than its class makes: {lost}")
    for path, parameter in theirs.named_parameters(remove_duplicate=False):
        of, _, last = path.rpartition(".")
        ours.get_submodule(of)._parameters[last] = parameter
    for module in ours.modules():  # sizes that were read off an input
        if isinstance(module, Linear) and not _has_no_size(module):
            module.in_channels = module.weight.shape[1]
    for attribute in (*HOOKS, *STATE):
        if hasattr(theirs, attribute):
            setattr(ours, attribute, getattr(theirs, attribute))
    return ours.train(theirs.training)


def _take_changed(name: str, theirs: nn.Module, ours: AttentionLayer) -> None:
    """Take over the linear maps that the user has hooked into, as they are; raise where that does not go."""
    taken: list[str] = []
    for path, module in theirs.named_modules(remove_duplicate=False):
        if not path or not _changed(module) or any(path.startswith(f"{each}.") for each in taken):
            continue
        of, _, last = path.rpartition(".")
        place = ours.get_submodule(of) if path in dict(ours.named_modules(remove_duplicate=False)) else None
        mine = None if place is None else place._modules[last]
        if mine is module:  # an aggregation, which is shared
            continue
        read_alone = last == "lin_edge" and isinstance(ours, GATConv | RGATConv)  # its weight; it is never called
        if place is None or not isinstance(mine, Linear) or read_alone or _has_no_size(module):
            raise ValueError(
                f"the layer {name!r} has hooks, parametrizations or a module of yours at {path!r}, which would be "
                "lost; remove them first, call a layer of unknown sizes once, or leave this layer as it is"
            )
        place._modules[last] = module
        taken.append(path)


def _changed(module: nn.Module) -> bool:
    """Whether a submodule is no longer as the layer made it: hooked into, parametrized, or another."""
    hooks = [hook for name in CALL_HOOKS for hook in getattr(module, name).values()]
    by_others = [hook for hook in hooks if getattr(hook, "__self__", None) is not module]  # theirs reads sizes by one
    return bool(by_others) or "forward" in vars(module) or not type(module).__module__.startswith(PLAIN)


def _names(layer: nn.Module) -> set[str]:
    tensors = (layer.named_parameters(remove_duplicate=False), layer.named_buffers(remove_duplicate=False))
    return {name for named in tensors for name, _ in named}


def _has_no_size(module: nn.Module) -> bool:
    return any(isinstance(parameter, UninitializedParameter) for parameter in module.parameters())


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
