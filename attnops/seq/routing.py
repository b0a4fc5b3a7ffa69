"""Routing: which experts a token goes to, with what weight, and what is lost when an expert is full."""

from __future__ import annotations

import torch
from torch import Tensor


def choose_experts(
    scores: Tensor,
    top_k: int,
    *,
    bias: Tensor | None = None,
    groups: int = 1,
    keep_groups: int = 1,
    group_top: int = 2,
    normalize: bool = True,
    scaling: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """The `top_k` experts of each token and their weights; ties go to the expert of the lower number.

        chosen_t = topk_e(s_te + bias_e),  e in the keep_groups best groups
        w_te     = scaling · s_te / Σ_{e chosen} s_te

    The bias picks and does not weigh. A group that is not kept stays out whatever its scores are, negative ones too.

    Args:
        scores: `[T, E]`, not negative: softmax or sigmoid of the router's logits.
        top_k: experts of a token.
        bias: `[E]`, added for choosing alone.
        groups: the experts, in order, in so many groups of one size; `keep_groups`: how many of them a token may use.
        group_top: a group scores the sum of its so many best (2 in DeepSeek-V3, 1 in DeepSeek-V2).
        normalize: whether the weights of a token sum to `scaling`.
        scaling: a factor on all weights.

    Returns:
        experts int64 `[T, k]`, the best first, and weights `[T, k]`.

    Source: Jiang et al. 2024, arXiv:2401.04088; groups and bias: DeepSeek-AI 2024, arXiv:2412.19437, section 2.1.2.

    Example:
        >>> import torch
        >>> from attnops.seq.routing import choose_experts
        >>> experts, weights = choose_experts(torch.tensor([[0.1, 0.3, 0.3, 0.2]]), top_k=2)
        >>> experts.tolist(), weights.tolist()
        ([[1, 2]], [[0.5, 0.5]])
    """
    with torch.no_grad():
        choice = scores if bias is None else scores + bias
        if keep_groups < groups:
            by_group = choice.view(len(choice), groups, -1)
            best = by_group.topk(min(group_top, by_group.shape[-1]), -1).values.sum(-1)
            kept = _ranked(best)[:, :keep_groups]
            out = torch.ones_like(best, dtype=torch.bool).scatter(1, kept, False)
            choice = by_group.masked_fill(out.unsqueeze(-1), float("-inf")).flatten(1)
        experts = _ranked(choice)[:, :top_k]
    weights = scores.gather(1, experts)
    if normalize:
        weights = weights / weights.sum(-1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)
    return experts, weights * scaling


def _ranked(values: Tensor) -> Tensor:
    """Indices along the last axis, the largest first, equal ones in order (`topk` promises no order for them)."""
    return values.sort(dim=-1, descending=True, stable=True).indices


def within_capacity(experts: Tensor, real: Tensor, capacity_factor: float, num_experts: int) -> Tensor:
    """Which choices an expert has room for: bool `[T, k]`; a padded token takes no place and has none.

        capacity = ⌈factor · T_real · k / E⌉

    First choices go before second ones, and among these the earlier token goes first.

    Args:
        experts: `[T, k]`, as `choose_experts` returns them.
        real: bool `[T]`, False at padding.
        capacity_factor: 1 is just room enough for a balanced load.
        num_experts: E.

    Source: Fedus et al. 2022 (Switch), arXiv:2101.03961; first choices first: Lepikhin et al. 2021, arXiv:2006.16668.

    Example:
        >>> import torch
        >>> from attnops.seq.routing import within_capacity
        >>> experts, real = torch.tensor([[0], [0], [0], [1]]), torch.ones(4, dtype=torch.bool)
        >>> within_capacity(experts, real, capacity_factor=1.0, num_experts=2).flatten().tolist()
        [True, True, False, True]
    """
    top_k = experts.shape[1]
    capacity = torch.ceil(real.sum() * (capacity_factor * top_k / num_experts))
    queue = torch.where(real, experts.t(), num_experts).flatten()  # first choices, then second ones
    order = queue.argsort(stable=True)
    place = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
    first = torch.searchsorted(queue[order], queue)  # where the expert's own queue starts
    return ((place - first < capacity) & (queue < num_experts)).view(top_k, -1).t()
