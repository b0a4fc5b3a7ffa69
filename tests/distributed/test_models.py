"""Encoders and decoders divided over processes: one process's loss and gradients."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import parallelize_module

from attnops import SlidingWindow
from attnops.distributed import (
    DisagreementError,
    shard_inputs,
    shard_sequence,
    tensor_parallel_plan,
    unshard_sequence,
    whole_state_dict,
)
from attnops.seq import Decoder, Encoder, EncoderDecoder, ExpertsConfig, LatentConfig, TransformerConfig
from attnops.seq.losses import IGNORED, summed_loss

VOCABULARY, LENGTH = 11, 13
BASE: dict[str, Any] = {"vocab_size": VOCABULARY, "dim": 16, "layers": 2, "heads": 4}
CONFIGS: dict[str, dict[str, Any]] = {
    "rotary, grouped heads": {"kv_heads": 2},
    "alibi": {"position": "alibi"},
    "relative": {"position": "relative"},
    "learned, window": {"position": "learned", "pattern": SlidingWindow(4)},
    "shaw, sinks": {"position": "shaw", "sinks": True},
    "latent": {"latent": LatentConfig(rank=8)},
    "norms of heads, softcap": {"qk_norm": True, "softcap": 5.0, "norm_position": "both"},
}


def batch(what: str) -> dict[str, Tensor]:
    ids = torch.randint(0, VOCABULARY, (2, LENGTH), generator=torch.Generator().manual_seed(5))
    if what == "padding":
        mask = torch.ones_like(ids)
        mask[1, :4] = 0
        return {"ids": ids, "attention_mask": mask}
    if what == "documents":
        return {"ids": ids, "segments": (torch.arange(LENGTH) // 5).expand(2, -1)}
    return {"ids": ids}


def targets(ids: Tensor, mask: Tensor | None) -> Tensor:
    """The next token of each; none behind the last, and none for padding."""
    target = torch.cat([ids[:, 1:], torch.full_like(ids[:, :1], IGNORED)], 1)
    return target if mask is None else target.masked_fill(mask == 0, IGNORED)


def build(kind: type[nn.Module], config: dict[str, Any]) -> nn.Module:
    torch.manual_seed(0)
    model = kind(TransformerConfig(**{**BASE, **config})).double()  # type: ignore[call-arg]
    for parameter in model.parameters():  # priors and norms too, which start at 0 and 1
        parameter.data = parameter.data + 0.05 * torch.randn_like(parameter)
    return model


def loss_of(model: nn.Module, out: Tensor, target: Tensor) -> Tensor:
    """Summed over tokens; of an encoder, whose output has no vocabulary, any function of each token."""
    return summed_loss(out, target) if isinstance(model, Decoder) else (out * out.cos()).sum()


def whole_gradients(model: nn.Module) -> dict[str, Tensor]:
    grads = {name: parameter.grad for name, parameter in model.named_parameters()}
    return {
        name: grad.full_tensor() if isinstance(grad, DTensor) else grad
        for name, grad in grads.items()
        if grad is not None
    }


def same(got: dict[str, Tensor], want: dict[str, Tensor]) -> None:
    assert got.keys() == want.keys()
    for name, grad in want.items():
        torch.testing.assert_close(got[name], grad, rtol=1e-9, atol=1e-11, msg=lambda m, name=name: f"{name}: {m}")


def over_context(group: Any, kind: type[nn.Module], config: dict[str, Any], what: str, order: str, method: str) -> None:
    """Sequence divided and parameters sharded over the same ranks."""
    inputs = batch(what)
    target = targets(inputs["ids"], inputs.get("attention_mask"))
    alone, model = build(kind, config), build(kind, config)
    out = alone(**inputs)
    loss = loss_of(alone, out, target)
    loss.backward()

    mesh = DeviceMesh.from_group(group, "cpu")
    for block in model.blocks:  # type: ignore[union-attr]
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    ids, context = shard_inputs(model, **inputs, mesh=group, order=order, method=method)
    mine = model(ids, context=context)
    own_loss = loss_of(model, mine, shard_sequence(target, group, dim=1, order=order))
    (own_loss * group.size()).backward()  # fully_shard averages over ranks

    total = own_loss.detach().clone()
    torch.distributed.all_reduce(total, group=group)
    torch.testing.assert_close(total, loss.detach(), rtol=1e-10, atol=1e-10)
    together = unshard_sequence(mine.detach(), group, dim=1, order=order)
    real = torch.ones_like(inputs["ids"]) if "attention_mask" not in inputs else inputs["attention_mask"]
    torch.testing.assert_close(together[real.bool()], out.detach()[real.bool()], rtol=1e-9, atol=1e-11)
    if what != "padding" or kind is Decoder:
        same(whole_gradients(model), whole_gradients(alone))


@pytest.mark.parametrize("name", CONFIGS)
def test_a_decoder_over_a_ring_under_fully_shard(ranks: Any, name: str) -> None:
    ranks(over_context, Decoder, CONFIGS[name], "plain", "zigzag", "ring")


@pytest.mark.parametrize("what", ["padding", "documents"])
@pytest.mark.parametrize("world", [2, 3])
def test_padding_and_documents(ranks: Any, what: str, world: int) -> None:
    ranks(over_context, Decoder, {}, what, "zigzag", "ring", world=world)
    ranks(over_context, Encoder, {"position": "alibi"}, what, "contiguous", "ring", world=world)


def test_exchanged_heads(ranks: Any) -> None:
    ranks(over_context, Decoder, {"kv_heads": 2}, "plain", "zigzag", "all_to_all")
    ranks(over_context, Encoder, {"position": "relative", "sinks": True}, "padding", "contiguous", "all_to_all")


# ------------------------------------------------------------------------------------------------------ tensor parallel


def over_tensor(group: Any, kind: type[nn.Module], config: dict[str, Any]) -> None:
    """Heads and widths divided over the ranks."""
    inputs = batch("padding")
    if kind is EncoderDecoder:
        inputs = {"ids": inputs["ids"], "decoder_ids": inputs["ids"].flip(1)}
    alone, model = build(kind, config), build(kind, config)
    state = {name: tensor.clone() for name, tensor in alone.state_dict().items()}
    parallelize_module(model, DeviceMesh.from_group(group, "cpu"), tensor_parallel_plan(model))
    same(whole_state_dict(model), state)
    outs = []
    for each in (alone, model):
        out = each(*inputs.values())
        (out * out.cos()).sum().backward()
        outs.append(out.detach())
    torch.testing.assert_close(outs[1], outs[0], rtol=1e-9, atol=1e-11)
    grads = copy.copy(whole_gradients(model))
    for name, module in model.named_modules():
        rows = getattr(module, "_rows_by_rank", None)
        for each in ("weight", "bias"):
            if rows is not None and f"{name}.{each}" in grads:
                grads[f"{name}.{each}"] = grads[f"{name}.{each}"][rows.argsort()]
    same(grads, whole_gradients(alone))


TENSOR: dict[str, tuple[type[nn.Module], dict[str, Any]]] = {
    "decoder": (Decoder, {}),
    "grouped heads, biases": (Decoder, {"kv_heads": 2, "attention_bias": True, "output_bias": True, "ff_bias": True}),
    "alibi, no gate": (Decoder, {"position": "alibi", "activation": "gelu"}),
    "encoder": (Encoder, {"position": "learned", "norm_position": "post", "qk_norm": "unit"}),
    "encoder-decoder": (EncoderDecoder, {"kv_heads": 2, "position": "sinusoidal"}),
    "relative": (Decoder, {"position": "relative"}),
    "relative, both sides": (EncoderDecoder, {"position": "relative", "kv_heads": 2}),
    "shaw, sinks": (Decoder, {"position": "shaw", "sinks": True}),
    "alibi, sinks": (Encoder, {"position": "alibi", "sinks": True}),
    "norms of heads": (Decoder, {"qk_norm": True, "kv_heads": 2}),
}


@pytest.mark.parametrize("name", TENSOR)
def test_tensor_parallel_equals_one_process(ranks: Any, name: str) -> None:
    ranks(over_tensor, *TENSOR[name])


REFUSED = {
    "qk_norm='full'": {"qk_norm": "full"},
    "LatentAttention": {"latent": LatentConfig(rank=8)},
    "MixtureOfExperts": {"experts": ExpertsConfig(4)},
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_the_plan_does_not_divide_is_refused(what: str) -> None:
    with pytest.raises(ValueError, match=what):
        tensor_parallel_plan(Decoder(TransformerConfig(**{**BASE, **REFUSED[what]})))


def too_few_heads(group: Any) -> None:
    model = build(Decoder, {"kv_heads": 1})
    with pytest.raises(ValueError, match="must divide by the 2 ranks"):
        parallelize_module(model, DeviceMesh.from_group(group, "cpu"), tensor_parallel_plan(model))


def test_heads_that_do_not_divide(ranks: Any) -> None:
    ranks(too_few_heads)


# --------------------------------------------------------------------------------------------------------------- faults


def other_inputs(group: Any, what: str) -> str:
    odd = group.rank() == 1
    model = build(Decoder, {"layers": 3} if odd and what == "config" else {})
    inputs = batch("padding")
    if odd and what == "ids":
        inputs["ids"] = inputs["ids"].flip(1)
    if odd and what == "attention_mask":
        del inputs["attention_mask"]
    if odd and what == "training":
        model.eval()
    with pytest.raises(DisagreementError) as caught:
        shard_inputs(model, **inputs, mesh=group)
    return str(caught.value)


@pytest.mark.parametrize("what", ["ids", "attention_mask", "config", "training"])
def test_ranks_with_other_batches_or_models_learn_it_at_once(ranks: Any, what: str) -> None:
    for message in ranks(other_inputs, what, seconds=10):
        assert what in message


def bad_ids(group: Any) -> None:
    ids = batch("plain")["ids"].float() if group.rank() == 1 else batch("plain")["ids"]
    with pytest.raises(TypeError if group.rank() == 1 else DisagreementError, match="ids"):
        shard_inputs(build(Decoder, {}), ids, mesh=group)


def test_bad_ids_on_one_rank(ranks: Any) -> None:
    ranks(bad_ids, seconds=10)
