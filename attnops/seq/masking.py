"""Masked tokens: what BERT learns from."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from attnops.checks import require_index, require_number, require_positive
from attnops.seq.context import read_mask
from attnops.seq.embeddings import check_ids
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
        TypeError: ids or a mask_id that are no integers. ValueError: a rate that is not in 0 … 1; a mask_id or an id
            out of range; a mask of another shape.

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
    require_positive(vocab_size=vocab_size)
    require_index(vocab_size, mask_id=mask_id)
    check_ids("ids", ids, vocab_size)

    def draw() -> Tensor:
        return torch.rand(ids.shape, generator=generator, device=ids.device)

    chosen = draw() < rate
    real = read_mask(attention_mask, *ids.shape)
    if real is not None:
        chosen = chosen & real
    for special in special_ids:
        chosen = chosen & (ids != special)
    labels = ids.masked_fill(~chosen, IGNORED)
    fate = draw()
    random = torch.randint(0, vocab_size, ids.shape, generator=generator, device=ids.device, dtype=ids.dtype)
    inputs = torch.where(chosen & (fate < 0.8), mask_id, ids)
    inputs = torch.where(chosen & (fate >= 0.9), random, inputs)
    return inputs, labels
