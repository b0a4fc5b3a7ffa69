"""Mixture of experts: transformers' own blocks in numbers and gradients; what is dropped, padded or tied."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from attnops.seq import Decoder, KVCache, LatentConfig, TransformerConfig, causal_lm_loss, generate
from attnops.seq.grouped import grouped_linear
from attnops.seq.moe import ExpertsConfig, MixtureOfExperts, routings
from attnops.seq.routing import choose_experts, within_capacity

D, F, E = 16, 24, 8
D64 = torch.float64


def rand(*shape: int, seed: int = 0, dtype: torch.dtype = D64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def settled(module: nn.Module) -> nn.Module:
    """The module in float64 with every parameter and buffer drawn: theirs are left empty or zero."""
    module = module.double().eval()
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    for seed, (name, tensor) in enumerate(sorted(tensors.items())):
        with torch.no_grad():
            tensor.copy_(rand(*tensor.shape, seed=seed) * (0.5 if "bias" in name else 0.3))
    return module


def experts(**options: Any) -> MixtureOfExperts:
    return MixtureOfExperts(D, ExpertsConfig(E, ff_dim=F, **options)).double()


# ---------------------------------------------------------------------------------------- parity with transformers
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


# --------------------------------------------------------------------------------------------------------- the choice
def test_the_case_of_negative_scores_and_the_bias_that_only_picks(cases: ModuleType) -> None:
    given_, expected = cases.CASES["B45"]()
    found, weights = choose_experts(
        given_["score"],
        given_["top_k"],
        bias=given_["bias"],
        groups=given_["groups"],
        keep_groups=given_["keep_groups"],
        scaling=given_["scaling"],
    )
    order = found.argsort(-1)
    assert torch.equal(found.gather(1, order), expected["experts"])
    torch.testing.assert_close(weights.gather(1, order), expected["weights"])


def test_the_case_of_top_1(cases: ModuleType) -> None:
    given_, expected = cases.CASES["B47"]()
    logit = given_["logit"].clone().requires_grad_()
    found, weights = choose_experts(logit.softmax(-1), 1, normalize=False)
    assert torch.equal(found[:, 0], expected["expert"])
    torch.testing.assert_close(weights[:, 0].detach(), expected["weight_plain"])
    out = weights * given_["expert_output"][torch.arange(5), found[:, 0]]
    torch.testing.assert_close(out.detach(), expected["out_plain"])
    out.backward(given_["cot"])
    torch.testing.assert_close(logit.grad, expected["dlogit_plain"])
    _, ones = choose_experts(logit.softmax(-1), 1)
    torch.testing.assert_close(ones[:, 0].detach(), expected["weight_normalised"])
    with pytest.raises(ValueError, match="top_k=1"):
        ExpertsConfig(3, top_k=1, balance_coef=0.0)


def test_the_choice_is_the_best_of_the_best_groups() -> None:
    scores, bias = rand(50, 12).sigmoid(), rand(12, seed=1) - 3.0  # all biased scores are negative
    found, weights = choose_experts(scores, 3, bias=bias, groups=4, keep_groups=2, group_top=1, scaling=1.5)
    for row, (chosen, weight) in enumerate(zip(found.tolist(), weights, strict=True)):
        biased = (scores[row] + bias).tolist()
        best = sorted(range(4), key=lambda group: -max(biased[3 * group : 3 * group + 3]))[:2]
        members = sorted((e for e in range(12) if e // 3 in best), key=lambda e: -biased[e])[:3]
        assert chosen == members
        torch.testing.assert_close(weight, 1.5 * scores[row, members] / scores[row, members].sum())


def test_ties_go_to_the_lower_number() -> None:
    scores = torch.full((3, 64), 0.25)
    found, _ = choose_experts(scores, 4)
    assert torch.equal(found, torch.arange(4).expand(3, 4))
    found, _ = choose_experts(scores, 4, groups=8, keep_groups=2)
    assert torch.equal(found, torch.arange(4).expand(3, 4))


# ---------------------------------------------------------------------------------------------------- grouped products
@given(st.lists(st.integers(0, 5), min_size=1, max_size=5), st.sampled_from([(4, 8), (3, 5)]), st.booleans())
def test_a_grouped_product_is_one_product_a_row(sizes: list[int], widths: tuple[int, int], half: bool) -> None:
    dtype = torch.float32 if half else D64
    rows, weight = rand(sum(sizes), widths[0], dtype=dtype), rand(len(sizes), widths[1], widths[0], seed=1, dtype=dtype)
    bias = rand(len(sizes), widths[1], seed=2, dtype=dtype)
    tensors = [tensor.requires_grad_() for tensor in (rows, weight, bias)]
    copies = [tensor.detach().clone().requires_grad_() for tensor in tensors]
    ends = torch.tensor(sizes).cumsum(0).to(torch.int32)
    found = grouped_linear(rows, weight, ends, bias)
    group = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    expected = torch.einsum("ri,roi->ro", copies[0], copies[1][group]) + copies[2][group]
    tolerance = 1e-5 if half else 1e-12
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)
    cotangent = rand(*found.shape, seed=3, dtype=dtype)
    for a, b in zip(
        torch.autograd.grad(found, tensors, cotangent), torch.autograd.grad(expected, copies, cotangent), strict=True
    ):
        torch.testing.assert_close(a, b, atol=tolerance, rtol=tolerance)


# ------------------------------------------------------------------------------------------------- padding and capacity
FAMILIES: list[dict[str, Any]] = [
    {"top_k": 2},
    {"top_k": 1, "normalize": False, "capacity_factor": 1.0},
    {"top_k": 2, "capacity_factor": 0.5, "bias": True},
    {"top_k": 3, "score": "sigmoid", "groups": 4, "keep_groups": 2, "balance_bias": True, "shared": 1},
    {"top_k": 1, "score": "sigmoid", "normalize": False, "weigh": "input", "bias": True, "shared": 1},
]


@pytest.mark.parametrize("options", FAMILIES, ids=lambda options: "-".join(map(str, options)))
def test_padding_is_as_if_it_were_not_there(options: dict[str, Any]) -> None:
    layer = experts(**options)
    real = torch.tensor([[False, False, True, True, True, True], [True] * 6])
    x = rand(2, 6, D)
    garbage = torch.where(real.unsqueeze(-1), x, float("nan"))
    with routings() as padded:
        out = layer(garbage, real)
    out.square().sum().backward()
    with routings() as alone:
        expected = layer(x[real].unsqueeze(0))
    assert torch.equal(out[~real], torch.zeros(2, D, dtype=D64))
    torch.testing.assert_close(out[real], expected[0])
    for name in ("load", "dropped", "balance", "z"):
        torch.testing.assert_close(getattr(padded[0], name), getattr(alone[0], name))
    grads = [parameter.grad.clone() for parameter in layer.parameters()]  # type: ignore[union-attr]
    layer.zero_grad()
    expected.square().sum().backward()
    for found, parameter in zip(grads, layer.parameters(), strict=True):
        torch.testing.assert_close(found, parameter.grad)


@given(
    st.lists(st.lists(st.integers(0, 3), min_size=2, max_size=2, unique=True), max_size=12),
    st.sampled_from([0.25, 0.5, 1.0, 1.25, 4.0]),
    st.randoms(use_true_random=False),
)
def test_capacity_is_a_queue(chosen: list[list[int]], factor: float, random: Any) -> None:
    table = torch.tensor(chosen, dtype=torch.int64).view(-1, 2)
    real = torch.tensor([random.random() < 0.8 for _ in chosen], dtype=torch.bool)
    kept = within_capacity(table, real, factor, 4)
    room = [-(-int(real.sum() * 2 * factor * 1000) // 4000)] * 4
    for place in range(2):
        for token in range(len(chosen)):
            expert = chosen[token][place]
            fits = bool(real[token]) and room[expert] > 0
            room[expert] -= fits
            assert bool(kept[token, place]) == fits


def test_a_full_expert_is_passed_by_in_training_alone() -> None:
    layer = experts(top_k=1, normalize=False, capacity_factor=1.0)
    with torch.no_grad():
        layer.router.weight.zero_()  # a tie: all tokens want expert 0
    x = rand(1, 16, D)
    with routings() as seen:
        out = layer(x)
    assert (out[0].abs().sum(-1) > 0).tolist() == [True] * 2 + [False] * 14
    assert seen[0].dropped == 14 / 16
    assert (layer.eval()(x)[0].abs().sum(-1) > 0).all()


# -------------------------------------------------------------------------------------------------------------- losses
def test_balance_loss_is_that_of_transformers() -> None:
    from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

    layer, x = experts(top_k=2, balance_coef=1.0), rand(2, 9, D)
    real = rand(2, 9, seed=5) > -0.5
    with routings() as seen:
        layer(x, real)
    logits = layer.router(x.reshape(-1, D))
    expected = load_balancing_loss_func((logits,), E, 2, real.long())
    torch.testing.assert_close(seen.loss() * 2, expected.double(), atol=1e-6, rtol=1e-6)  # they count k, we count 1


def test_z_loss_counts_real_tokens() -> None:
    layer, x = experts(balance_coef=0.0, z_coef=1.0), rand(2, 9, D)
    real = rand(2, 9, seed=5) > -0.5
    with routings() as seen:
        layer(x, real)
    torch.testing.assert_close(seen.loss(), layer.router(x)[real].logsumexp(-1).square().mean())


def test_losses_are_counted_per_layer() -> None:
    """Two layers that each prefer another expert are unbalanced both, though their sum is even."""
    config = ExpertsConfig(2, top_k=1, ff_dim=4, normalize=False, balance_coef=1.0)
    layers = [MixtureOfExperts(1, config) for _ in range(2)]
    for layer, sign in zip(layers, (50.0, -50.0), strict=True):
        layer.router.weight.data = torch.tensor([[sign], [-sign]])
    with routings() as seen:
        for layer in layers:
            layer(torch.ones(1, 4, 1))
    assert [each.load.tolist() for each in seen] == [[1.0, 0.0], [0.0, 1.0]]
    torch.testing.assert_close(seen.loss(), torch.tensor(4.0))


def test_losses_train_the_router_and_no_expert() -> None:
    layer = experts(z_coef=0.1)
    with routings() as seen:
        layer(rand(1, 9, D))
    seen.loss().backward()
    assert layer.router.weight.grad is not None and layer.router.weight.grad.abs().sum() > 0
    assert layer.up.grad is None and layer.down.grad is None
    with pytest.raises(ValueError, match="routings"), routings() as nothing:
        nothing.loss()


def test_biases_balance_the_load() -> None:
    layer, x = experts(top_k=2, score="sigmoid", balance_bias=True, balance_coef=0.0), rand(1, 256, D)
    with torch.no_grad():
        layer.router.weight[0] = 0.0
        x[..., 0] = 1.0
        layer.router.weight[0, 0] = 4.0  # all like expert 0
    spreads = []
    for _ in range(100):
        with routings() as seen:
            layer(x)
        seen.balance_biases(0.01)
        spreads.append(float(seen[0].load.max()))
    assert spreads[0] == 0.5 and max(spreads[-5:]) < 0.2, spreads  # even is 0.125
    assert layer.choice_bias is not None and not layer.choice_bias.requires_grad


# --------------------------------------------------------------------------------------------------------- as a module
def test_the_same_bits_each_time() -> None:
    layer, x = MixtureOfExperts(D, ExpertsConfig(E, ff_dim=F)), rand(3, 40, D, dtype=torch.float32)

    def run() -> list[Tensor]:
        layer.zero_grad()
        out = layer(x)
        out.square().sum().backward()
        return [out, *(parameter.grad.clone() for parameter in layer.parameters())]  # type: ignore[union-attr]

    assert all(torch.equal(a, b) for a, b in zip(run(), run(), strict=True))


def test_compiles_to_one_graph() -> None:
    layer = MixtureOfExperts(D, ExpertsConfig(E, ff_dim=F, capacity_factor=1.0))
    x, real = rand(2, 8, D, dtype=torch.float32), rand(2, 8, seed=1) > 0

    def step(x: Tensor) -> tuple[Tensor, Tensor]:
        with routings() as seen:
            out = layer(x, real)
        return out, seen.loss()

    traced = torch.compile(step, fullgraph=True, backend="aot_eager")
    for found, expected in zip(traced(x), step(x), strict=True):
        torch.testing.assert_close(found, expected)


def test_autocast_computes_experts_in_half_and_the_choice_in_full() -> None:
    layer, x = MixtureOfExperts(D, ExpertsConfig(E, ff_dim=F, shared=1)), rand(1, 64, D, dtype=torch.float32)
    with routings() as full:
        expected = layer(x)
    with torch.autocast("cpu", torch.bfloat16), routings() as half:
        found = layer(x)
    assert torch.equal(full[0].load, half[0].load)
    assert not torch.equal(found.float(), expected)
    torch.testing.assert_close(found.float(), expected, atol=0.05, rtol=0.05)


def test_no_tokens() -> None:
    layer = experts(capacity_factor=1.0, shared=1)
    with routings() as seen:
        assert layer(torch.zeros(2, 0, D, dtype=D64)).shape == (2, 0, D)
        layer(rand(1, 3, D), torch.zeros(1, 3, dtype=torch.bool))
    assert torch.isfinite(seen.loss())


# ----------------------------------------------------------------------------------------------------------- in a model
MODELS: list[dict[str, Any]] = [
    {"experts": ExpertsConfig(4, top_k=2, ff_dim=8, bias=True, activation="clamped_swiglu")},
    {"experts": [None, ExpertsConfig(4, top_k=1, normalize=False, capacity_factor=1.0, shared=1)]},
    {"experts": ExpertsConfig(4, top_k=1, score="sigmoid", normalize=False, weigh="input"), "activation": "relu"},
    {
        "experts": ExpertsConfig(8, groups=4, keep_groups=2, score="sigmoid", balance_bias=True),
        "latent": LatentConfig(8),
    },
]


def decoder(options: dict[str, Any]) -> Decoder:
    config = TransformerConfig(vocab_size=20, dim=16, layers=2, heads=2, ff_dim=16, **options)
    model = Decoder(config)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


@pytest.mark.parametrize("options", MODELS)
@torch.no_grad()
def test_a_decoder_with_experts_and_a_cache_is_one_pass(options: dict[str, Any]) -> None:
    model = decoder(options).double().eval()
    ids = torch.randint(20, (2, 10))
    mask = torch.tensor([[0, 0, 0] + [1] * 7, [1] * 10])
    for attention_mask in (None, mask):
        cache, cuts = KVCache(), [0, 5, 6, 7, 10]
        steps = [
            model(ids[:, a:b], None if attention_mask is None else attention_mask[:, :b], cache)
            for a, b in pairwise(cuts)
        ]
        real = (torch.ones_like(ids) if attention_mask is None else attention_mask).bool()
        whole = model(ids, attention_mask)
        torch.testing.assert_close(torch.cat(steps, 1)[real], whole[real], atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(whole[0, 3:], model(ids[:1, 3:])[0], atol=1e-6, rtol=1e-6)  # padding is as not there
    written = [generate(model, ids, 6, mask, cache=cache) for cache in ("none", "full", "paged")]
    assert torch.equal(written[0], written[1]) and torch.equal(written[0], written[2])


@pytest.mark.parametrize("options", MODELS)
def test_a_decoder_with_experts_learns(options: dict[str, Any]) -> None:
    model, ids = decoder(options), torch.randint(20, (4, 10))
    optimizer, losses = torch.optim.Adam(model.parameters(), lr=1e-2), []
    for _ in range(40):
        with routings() as seen:
            logits = model(ids)
        loss = causal_lm_loss(logits, ids)
        optimizer.zero_grad()
        (loss + seen.loss()).backward()
        optimizer.step()
        seen.balance_biases()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
    assert len(seen) == sum(isinstance(block.feedforward, MixtureOfExperts) for block in model.blocks)


def test_checkpointing_changes_no_gradient() -> None:
    layer, x = experts(capacity_factor=1.0, bias=True), rand(2, 9, D).requires_grad_()

    def grads(run: Callable[[Tensor], Tensor]) -> list[Tensor]:
        with routings() as seen:
            out = run(x)
        return list(torch.autograd.grad(out.square().sum() + seen.loss(), [x, *layer.parameters()]))

    plain, kept = grads(layer), grads(lambda x: checkpoint(layer, x, use_reentrant=False))
    assert all(torch.equal(a, b) for a, b in zip(plain, kept, strict=True))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"top_k": 9}, "top_k is 9"),
        ({"top_k": 0}, "top_k"),
        ({"groups": 3}, "groups is 3"),
        ({"groups": 4, "keep_groups": 5}, "keep_groups is 5"),
        ({"top_k": 5, "groups": 4, "keep_groups": 2}, "hold 4 of the 8"),
        ({"score": "tanh"}, "score is 'tanh'"),
        ({"weigh": "both"}, "weigh is 'both'"),
        ({"capacity_factor": 0.0}, "capacity_factor is 0.0"),
        ({"shared": -1}, "shared is -1"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_a_bad_option_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ExpertsConfig(E, **options)


def test_a_bad_call_is_named() -> None:
    layer = experts()
    with pytest.raises(ValueError, match="real is torch"):
        layer(rand(2, 3, D), torch.ones(2, 4, dtype=torch.bool))
    with pytest.raises(ValueError, match="ff_dim is None"):
        MixtureOfExperts(D, ExpertsConfig(E))
