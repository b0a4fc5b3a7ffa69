"""Tensor parallelism of sequence models by torch's own `parallelize_module`: a plan, and the two styles it needs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel

from attnops.biases.alibi import ALiBi
from attnops.distributed.all_to_all import heads_of
from attnops.seq.alibi import SlopedALiBi
from attnops.seq.attention import Attention, CrossAttention
from attnops.seq.feedforward import FeedForward


def tensor_parallel_plan(model: nn.Module) -> dict[str, ParallelStyle]:
    """The plan by which `parallelize_module` divides the heads and the feed-forward widths of a sequence model.

        mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tensor",))
        parallelize_module(model, mesh["tensor"], tensor_parallel_plan(model))

    Each rank then holds H/W query heads, Hkv/W key heads and 1/W of each feed-forward, and every layer sums what ranks
    have twice: behind attention and behind the feed-forward (Megatron's scheme). Embeddings, norms and the head stay
    whole on every rank. Outputs and gradients equal one process's.

    The fused layers (`qkv`, `key_value`, a gated `up`) are cut part by part, so their rows lie in the order of ranks;
    `whole_state_dict` gives one process's order back.

    Args:
        model: an `Encoder`, `Decoder` or `EncoderDecoder`.

    Raises:
        ValueError: parts whose parameters serve all heads at once, which would each need a sum of their own: learned
            biases a head (relative, Shaw, sinks), norms of queries and keys, latent attention, experts.

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
        elif type(module).__name__ in ("LatentAttention", "MixtureOfExperts"):
            raise ValueError(f"{name} is a {type(module).__name__}, which this plan does not divide")
    return plan


def _check_attention(name: str, module: Attention) -> None:
    terms = () if module.bias is None else module.bias.terms
    learned = [type(term).__name__ for term in terms if list(term.parameters())]
    if module.shared_bias:
        learned.append("RelativeBias")
    if module.query_norm is not None and list(module.query_norm.parameters()):
        learned.append("qk_norm")
    if learned:
        raise ValueError(
            f"{name} has {', '.join(learned)}: parameters of all heads at once, which this plan does not divide"
        )


class HeadsParallel(ParallelStyle):
    """An attention module that keeps its share of the heads."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        assert isinstance(module, Attention | CrossAttention)
        rank, world = device_mesh.get_local_rank(), device_mesh.size()
        for name, heads in (("heads", module.heads), ("kv_heads", module.kv_heads)):
            if heads % world:
                raise ValueError(f"{name} is {heads}; it must divide by the {world} ranks of the mesh")
        own = heads_of(module.heads, rank, world)
        if isinstance(module, Attention) and isinstance(module.bias, ALiBi):
            slopes = module.bias.slopes(torch.arange(module.heads), torch.float64)
            module.bias = SlopedALiBi(slopes[own].tolist())
        module.heads, module.kv_heads = module.heads // world, module.kv_heads // world
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
