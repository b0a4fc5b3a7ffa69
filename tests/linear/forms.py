"""Linear attention by its definitions, slowly: all pairs laid out, one step after another, and in chunks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from attnops.linear import LinearState, linear_attend

D64 = torch.float64
MAPS = {"elu": lambda x: torch.nn.functional.elu(x) + 1, "relu": torch.relu, "identity": lambda x: x}


def rand(*shape: int, seed: int = 0, dtype: torch.dtype = D64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def naive(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    feature_map: str = "elu",
    causal: bool = False,
    decay: Tensor | None = None,
    key_mask: Tensor | None = None,
    normalize: bool | None = None,
) -> Tensor:
    """The quadratic form: every pair laid out, decays multiplied one by one."""
    phi = MAPS[feature_map]
    repeat = query.shape[-3] // key.shape[-3]
    key, value = key.repeat_interleave(repeat, -3), value.repeat_interleave(repeat, -3)
    weights = phi(query) @ phi(key).transpose(-1, -2)
    steps = torch.arange(key.shape[-2])
    real = torch.ones(key.shape[-2], dtype=torch.bool) if key_mask is None else key_mask
    weights = weights * real[..., None, None, :]
    if causal:
        weights = weights * (steps[:, None] >= steps)
        if decay is not None:
            gate = torch.where(real.unsqueeze(-2), decay, 1).expand(weights.shape[:-1])
            for later in steps:
                weights = torch.where(
                    (steps[:, None] >= later) & (later > steps), weights * gate[..., later, None, None], weights
                )
    total = weights.sum(-1, keepdim=True)
    if normalize is False or (normalize is None and feature_map == "identity"):
        return weights @ value
    return torch.where(total == 0, 0, weights @ value / torch.where(total == 0, 1, total))


def recurrence(query: Tensor, key: Tensor, value: Tensor, decay: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
    """S = decay_t S + k_t v_tᵀ; o_t = q_t S; a masked step is skipped."""
    state, outs = query.new_zeros(*key.shape[:-2], key.shape[-1], value.shape[-1]), []
    for step in range(key.shape[-2]):
        at = [tensor[..., step, :] for tensor in (query, key, value)]
        if real[step]:
            state = decay[..., step, None, None] * state + at[1].unsqueeze(-1) * at[2].unsqueeze(-2)
        outs.append((at[0].unsqueeze(-2) @ state).squeeze(-2))
    return torch.stack(outs, -2), state


def in_chunks(
    sizes: Sequence[int], tensors: Sequence[Tensor], decay: Any = None, key_mask: Tensor | None = None, **options: Any
) -> tuple[Tensor, LinearState | None]:
    outs, state, start = [], None, 0
    for size in sizes:
        cut = slice(start, start + size)
        out, state = linear_attend(
            *(tensor[..., cut, :] for tensor in tensors),
            causal=True,
            decay=decay[..., cut] if isinstance(decay, Tensor) and decay.ndim > 1 else decay,
            key_mask=None if key_mask is None else key_mask[..., cut],
            state=state,
            return_state=True,
            **options,
        )
        outs.append(out)
        start += size
    return torch.cat(outs, -2), state


def close(found: Tensor, expected: Tensor, tolerance: float = 1e-10) -> None:
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)
