"""Tensor parallelism of sequence models by torch's own `parallelize_module`: a plan, and the two styles it needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel

from attnops.biases.alibi import ALiBi
from attnops.biases.base import Bias, BiasSum
from attnops.biases.relative import RelativeBias, RelativeKeys
from attnops.biases.sink import Sink
from attnops.distributed.all_to_all import heads_of
from attnops.seq.alibi import SlopedALiBi
from attnops.seq.attention import Attention, CrossAttention
from attnops.seq.feedforward import FeedForward


def tensor_parallel_plan(model: nn.Module) -> dict[str, ParallelStyle]:
    """The plan by which `parallelize_module` divides the heads and the feed-forward widths of a sequence model.

        mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tensor",))
        parallelize_module(model, mesh["tensor"], tensor_parallel_plan(model))

    Each rank then holds H/W query heads, Hkv/W key heads and 1/W of each feed-forward, and every layer sums what ranks
    have twice: behind attention and behind the feed-forward (Megatron's scheme). Learned biases a head (relative, Shaw,
    sinks) are divided with the heads. Embeddings, norms and the head stay whole on every rank; so do the norms of
    queries and keys, whose gradient is summed over ranks. Outputs and gradients equal one process's.

    The fused layers (`qkv`, `key_value`, a gated `up`) are cut part by part, so their rows lie in the order of ranks;
    `whole_state_dict` gives one process's order back.

    Args:
        model: an `Encoder`, `Decoder` or `EncoderDecoder`.

    Raises:
        ValueError: parts that work on all heads at once: norms of queries and keys over all heads (`qk_norm="full"`),
            latent attention, experts; a learned bias of another kind.

    Source: Shoeybi et al. 2019, arXiv:1909.08053.

    Example:
        >>> from attnops.distributed import tensor_parallel_plan
        >>> from attnops.seq import Decoder, TransformerConfig
        >>> plan = tensor_parallel_plan(Decoder(TransformerConfig(vocab_size=10, dim=16, layers=1, heads=2)))
        >>> sorted(plan)[:3]
        ['blocks.0.attention', 'blocks.0.attention.out', 'blocks.0.attention.qkv']
    """
    plan: dict[str, ParallelStyle] = {}
    for name, module in model.named_modules():
        if isinstance(module, Attention):
            _check_attention(name, module)
            if module.query_norm is not None and list(module.query_norm.parameters()):
                plan[f"{name}.query_norm"] = plan[f"{name}.key_norm"] = SummedGradient()
            query, key = module.heads * module.head_dim, module.kv_heads * module.head_dim
            plan[name] = HeadsParallel()
            plan[f"{name}.qkv"] = FusedColwiseParallel((query, key, key))
            plan[f"{name}.out"] = RowwiseParallel()
        elif isinstance(module, CrossAttention):
            key = module.kv_heads * module.head_dim
            plan[name] = HeadsParallel()
            plan[f"{name}.query"] = ColwiseParallel()
            plan[f"{name}.key_value"] = FusedColwiseParallel((key, key))
            plan[f"{name}.out"] = RowwiseParallel()
        elif isinstance(module, FeedForward):
            width = module.down.in_features
            plan[f"{name}.up"] = FusedColwiseParallel((width, width) if module.gated else (width,))
            plan[f"{name}.down"] = RowwiseParallel()
        elif type(module) in SHARES:
            plan[name] = HeadsOfBias()
        elif type(module).__name__ in ("LatentAttention", "MixtureOfExperts"):
            raise ValueError(f"{name} is a {type(module).__name__}, which this plan does not divide")
    return plan


def _check_attention(name: str, module: Attention) -> None:
    terms = () if module.bias is None else module.bias.terms
    refused = [type(term).__name__ for term in terms if list(term.parameters()) and type(term) not in SHARES]
    if module.qk_norm == "full":
        refused.append("qk_norm='full'")
    if refused:
        raise ValueError(f"{name} has {', '.join(refused)}: all heads at once, which this plan does not divide")


class HeadsParallel(ParallelStyle):
    """An attention module that keeps its share of the heads."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        assert isinstance(module, Attention | CrossAttention)
        rank, world = device_mesh.get_local_rank(), device_mesh.size()
        for name, heads in (("heads", module.heads), ("kv_heads", module.kv_heads)):
            if heads % world:
                raise ValueError(f"{name} is {heads}; it must divide by the {world} ranks of the mesh")
        own = heads_of(module.heads, rank, world)
        if isinstance(module, Attention) and module.bias is not None:
            terms = tuple(_sloped(term, own) if isinstance(term, ALiBi) else term for term in module.bias.terms)
            module.bias = terms[0] if len(terms) == 1 else BiasSum(terms, module.bias.pattern)
        module.heads, module.kv_heads = module.heads // world, module.kv_heads // world
        return module


def _sloped(bias: ALiBi, own: slice) -> ALiBi:
    """The slopes of a rank's own heads."""
    assert bias.heads is not None
    return SlopedALiBi(bias.slopes(torch.arange(bias.heads), torch.float64)[own].tolist())


class _LocalHeads:
    """Mixed into a bias whose parameters are DTensors: its own methods read this rank's heads."""

    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)  # type: ignore[misc]
        return found.to_local() if isinstance(found, DTensor) else found


class LocalRelativeBias(_LocalHeads, RelativeBias):
    """T5's buckets for a rank's own heads."""


class LocalRelativeKeys(_LocalHeads, RelativeKeys):
    """Shaw's keys for a rank's own heads."""


class LocalSink(_LocalHeads, Sink):
    """The sinks of a rank's own heads."""


# What each kind is called on a rank, and the axis of its weight that counts heads.
SHARES: dict[type[Bias], tuple[type[Bias], int]] = {
    RelativeBias: (LocalRelativeBias, 1),
    RelativeKeys: (LocalRelativeKeys, 0),
    Sink: (LocalSink, 0),
}


class HeadsOfBias(ParallelStyle):
    """A learned bias that keeps its share of the heads."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        assert isinstance(module, RelativeBias | RelativeKeys | Sink)
        local, axis = SHARES[type(module)]
        if module.heads % device_mesh.size():
            raise ValueError(f"heads is {module.heads}; it must divide by the {device_mesh.size()} ranks of the mesh")
        weight = distribute_tensor(module.weight.detach(), device_mesh, [Shard(axis)])
        # In place, as fully_shard does: a model holds one bias in several layers.
        learns = module.weight.requires_grad
        module.__class__ = local  # type: ignore[assignment]
        module.weight = nn.Parameter(weight, requires_grad=learns)
        module.heads = module.heads // device_mesh.size()
        return module


class SummedGradient(ParallelStyle):
    """A module whose parameters serve the heads of all ranks: whole on each, their gradient summed over ranks."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        group = device_mesh.get_group()

        def summed(gradient: Tensor) -> Tensor:
            total = gradient.clone()
            dist.all_reduce(total, group=group)
            return total

        for parameter in module.parameters():
            parameter.register_hook(summed)  # type: ignore[no-untyped-call]
        return module


class FusedColwiseParallel(ColwiseParallel):
    """`ColwiseParallel` of a linear layer whose output is several parts side by side: each rank gets its share of each.

    Args:
        sizes: the width of each part.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__()
        self.sizes = tuple(sizes)

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        rows = rows_by_rank(self.sizes, device_mesh.size())
        with torch.no_grad():
            for parameter in module.parameters(recurse=False):
                parameter.copy_(parameter[rows.to(parameter.device)])
        applied: nn.Module = super()._apply(module, device_mesh)
        applied._rows_by_rank = rows
        return applied


def rows_by_rank(sizes: Sequence[int], world: int) -> Tensor:
    """The rows of the parts, in the order in which ranks hold them.

    Raises:
        ValueError: a part that does not divide.
    """
    parts, start = [], 0
    for size in sizes:
        if size % world:
            raise ValueError(f"a part of a fused layer has {size} rows; they must divide by the {world} ranks")
        parts.append(torch.arange(start, start + size).view(world, -1))
        start += size
    return torch.cat(parts, 1).flatten()


def whole_state_dict(model: nn.Module) -> dict[str, Tensor]:
    """The state dict that one process would have, on every rank: parameters whole, fused rows in their own order."""
    rows = {name: module._rows_by_rank for name, module in model.named_modules() if hasattr(module, "_rows_by_rank")}
    state = {}
    for name, tensor in model.state_dict().items():
        whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        order = rows.get(name.rpartition(".")[0])
        state[name] = whole if order is None else whole[order.argsort()]
    return state
