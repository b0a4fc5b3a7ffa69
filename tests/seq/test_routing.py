"""Who meets which expert: the choice, ties, room and padding; and what balances it."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnops.seq.moe import ExpertsConfig, MixtureOfExperts, routings
from attnops.seq.routing import choose_experts, within_capacity
from tests.seq.mixtures import D64, D, experts, rand


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
