"""Mixture of experts beside transformers' own blocks: the same numbers, gradients and balance loss."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from attnops.seq.moe import MixtureOfExperts, routings
from tests.seq.mixtures import D, E, F, experts, rand


def settled(module: nn.Module) -> nn.Module:
    """The module in float64 with every parameter and buffer drawn: theirs are left empty or zero."""
    module = module.double().eval()
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    for seed, (name, tensor) in enumerate(sorted(tensors.items())):
        with torch.no_grad():
            tensor.copy_(rand(*tensor.shape, seed=seed) * (0.5 if "bias" in name else 0.3))
    return module


def mixtral() -> tuple[nn.Module, MixtureOfExperts, dict[str, Tensor]]:
    from transformers import MixtralConfig
    from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock

    config = MixtralConfig(hidden_size=D, intermediate_size=F, num_local_experts=E, num_experts_per_tok=2)
    theirs = settled(MixtralSparseMoeBlock(config))
    w = dict(theirs.named_parameters())
    mapped = {"router.weight": w["gate.weight"], "up": w["experts.gate_up_proj"], "down": w["experts.down_proj"]}
    return theirs, experts(top_k=2), mapped


def deepseek() -> tuple[nn.Module, MixtureOfExperts, dict[str, Tensor]]:
    from transformers import DeepseekV3Config
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3MoE

    config = DeepseekV3Config(
        hidden_size=D,
        moe_intermediate_size=F,
        n_routed_experts=E,
        num_local_experts=E,
        n_shared_experts=2,
        num_experts_per_tok=3,
        n_group=4,
        topk_group=2,
        routed_scaling_factor=2.5,
        norm_topk_prob=True,
    )
    theirs = settled(DeepseekV3MoE(config))
    w = {**dict(theirs.named_parameters()), **dict(theirs.named_buffers())}
    ours = experts(
        top_k=3, score="sigmoid", groups=4, keep_groups=2, scaling=2.5, balance_bias=True, shared=2, balance_coef=0.0
    )
    return (
        theirs,
        ours,
        {
            "router.weight": w["gate.weight"],
            "choice_bias": w["gate.e_score_correction_bias"],
            "up": w["experts.gate_up_proj"],
            "down": w["experts.down_proj"],
            "shared.up.weight": torch.cat([w["shared_experts.gate_proj.weight"], w["shared_experts.up_proj.weight"]]),
            "shared.down.weight": w["shared_experts.down_proj.weight"],
        },
    )


def gpt_oss() -> tuple[nn.Module, MixtureOfExperts, dict[str, Tensor]]:
    from transformers import GptOssConfig
    from transformers.models.gpt_oss.modeling_gpt_oss import GptOssMLP

    config = GptOssConfig(hidden_size=D, intermediate_size=F, num_local_experts=E, num_experts_per_tok=4)
    theirs = settled(GptOssMLP(config))
    w = dict(theirs.named_parameters())

    def halves(tensor: Tensor) -> Tensor:  # gates and ups come interleaved
        return torch.cat([tensor[..., ::2], tensor[..., 1::2]], -1)

    return (
        theirs,
        experts(top_k=4, bias=True, activation="clamped_swiglu"),
        {
            "router.weight": w["router.weight"],
            "router.bias": w["router.bias"],
            "up": halves(w["experts.gate_up_proj"]).transpose(1, 2),
            "up_bias": halves(w["experts.gate_up_proj_bias"]),
            "down": w["experts.down_proj"].transpose(1, 2),
            "down_bias": w["experts.down_proj_bias"],
        },
    )


def llama4() -> tuple[nn.Module, MixtureOfExperts, dict[str, Tensor]]:
    from transformers import Llama4TextConfig
    from transformers.models.llama4.modeling_llama4 import Llama4TextMoe

    config = Llama4TextConfig(hidden_size=D, intermediate_size=F, num_local_experts=E, num_experts_per_tok=1)
    theirs = settled(Llama4TextMoe(config))
    w = dict(theirs.named_parameters())
    return (
        theirs,
        experts(top_k=1, score="sigmoid", normalize=False, weigh="input", shared=1),
        {
            "router.weight": w["router.weight"],
            "up": w["experts.gate_up_proj"].transpose(1, 2),
            "down": w["experts.down_proj"].transpose(1, 2),
            "shared.up.weight": torch.cat([w["shared_expert.gate_proj.weight"], w["shared_expert.up_proj.weight"]]),
            "shared.down.weight": w["shared_expert.down_proj.weight"],
        },
    )


@pytest.mark.parametrize("family", [mixtral, deepseek, gpt_oss, llama4], ids=lambda family: family.__name__)
def test_equals_transformers(family: Callable[[], tuple[nn.Module, MixtureOfExperts, dict[str, Tensor]]]) -> None:
    theirs, ours, mapped = family()
    assert set(mapped) == set(ours.state_dict()), "the map must say where each of our parameters comes from"
    ours.load_state_dict(mapped)
    x = rand(2, 11, D, seed=99) * 2  # large enough for gpt-oss to clamp
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    expected, found = theirs(a), ours(b)
    expected = expected[0] if isinstance(expected, tuple) else expected
    expected = expected.view(found.shape)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-6)  # their routers compute in float32
    cotangent = rand(*found.shape, seed=98)
    expected.backward(cotangent)
    found.backward(cotangent)
    torch.testing.assert_close(b.grad, a.grad, atol=1e-5, rtol=1e-5)
    for name, source in mapped.items():
        if name in dict(ours.named_parameters()) and source.is_leaf and source.requires_grad:
            torch.testing.assert_close(ours.get_parameter(name).grad, source.grad, atol=1e-5, rtol=1e-5)


def test_balance_loss_is_that_of_transformers() -> None:
    from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

    layer, x = experts(top_k=2, balance_coef=1.0), rand(2, 9, D)
    real = rand(2, 9, seed=5) > -0.5
    with routings() as seen:
        layer(x, real)
    logits = layer.router(x.reshape(-1, D))
    expected = load_balancing_loss_func((logits,), E, 2, real.long())
    torch.testing.assert_close(seen.loss() * 2, expected.double(), atol=1e-6, rtol=1e-6)  # they count k, we count 1
