"""Masked tokens: what BERT learns from."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from attnops.checks import require_number
from attnops.seq.losses import IGNORED


def mask_tokens(
    ids: Tensor,
    mask_id: int,
    vocab_size: int,
    rate: float = 0.15,
    special_ids: Sequence[int] = (),
    attention_mask: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """Choose tokens to predict; of those 80% become `mask_id`, 10% a random id, 10% stay.

    Args:
        ids: `[B, N]`. rate: the share of tokens that is chosen.
        special_ids: ids that are never chosen. attention_mask: `[B, N]`, 0 for padding, which is never chosen.
        generator: of the draws.

    Returns:
        (inputs, labels), both `[B, N]`; labels are -100 where nothing is to be predicted.

    Raises:
        ValueError: a rate that is not in 0 … 1, a mask_id out of range.

    Source: Devlin et al. 2019, arXiv:1810.04805.

    Example:
        >>> import torch
        >>> from attnops.seq import mask_tokens
        >>> inputs, labels = mask_tokens(torch.full((1, 1000), 5), mask_id=9, vocab_size=10)
        >>> bool(((labels == 5) | (labels == -100)).all()), bool((inputs[labels == -100] == 5).all())
        (True, True)
    """
    require_number(rate=rate)
    if not 0 <= rate <= 1:
        raise ValueError(f"rate is {rate}; it must lie in 0 … 1")
    if not 0 <= mask_id < vocab_size:
        raise ValueError(f"mask_id is {mask_id}; it must lie in 0 … {vocab_size - 1}")

    def draw() -> Tensor:
        return torch.rand(ids.shape, generator=generator, device=ids.device)

    chosen = draw() < rate
    if attention_mask is not None:
        chosen = chosen & (attention_mask != 0)
    for special in special_ids:
        chosen = chosen & (ids != special)
    labels = ids.masked_fill(~chosen, IGNORED)
    fate = draw()
    random = torch.randint(0, vocab_size, ids.shape, generator=generator, device=ids.device, dtype=ids.dtype)
    inputs = torch.where(chosen & (fate < 0.8), mask_id, ids)
    inputs = torch.where(chosen & (fate >= 0.9), random, inputs)
    return inputs, labels
