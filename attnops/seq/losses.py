"""What models are trained to make small."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from attnops.checks import require_number
from attnops.coords import is_concrete

IGNORED = -100
"""A label that no loss counts, as in Hugging Face's data."""


def causal_lm_loss(
    logits: Tensor, ids: Tensor, attention_mask: Tensor | None = None, segments: Tensor | None = None
) -> Tensor:
    """Mean of -log p(next token): `logits[:, i]` predicts `ids[:, i + 1]`.

    Args:
        logits: `[B, N, V]`. ids: `[B, N]`, -100 where a token is not to be predicted.
        attention_mask: `[B, N]`, 0 for padding, which is neither predicted nor predicts.
        segments: `[B, N]` of packed documents; the first token of one is not predicted from the one before.

    Raises:
        TypeError: labels that are no integers. ValueError: shapes that do not fit; a label out of the vocabulary.

    Example:
        >>> import torch
        >>> from attnops.seq import causal_lm_loss
        >>> causal_lm_loss(torch.zeros(1, 3, 4), torch.tensor([[0, 1, 2]])).exp()      # one of four
        tensor(4.)
    """
    _check("ids", ids, logits)
    _check_labels("ids", ids, logits)
    target = ids[:, 1:]
    if attention_mask is not None:
        _check("attention_mask", attention_mask, logits)
        target = target.masked_fill((attention_mask[:, 1:] == 0) | (attention_mask[:, :-1] == 0), IGNORED)
    if segments is not None:
        _check("segments", segments, logits)
        target = target.masked_fill(segments[:, 1:] != segments[:, :-1], IGNORED)
    return _mean_loss(logits[:, :-1], target)


def masked_lm_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean of -log p(label) where `labels [B, N]` is not -100; `logits [B, N, V]`. See `mask_tokens`.

    Raises:
        TypeError: labels that are no integers. ValueError: shapes that do not fit; a label out of the vocabulary.

    Example:
        >>> import torch
        >>> from attnops.seq import masked_lm_loss
        >>> masked_lm_loss(torch.zeros(1, 3, 4), torch.tensor([[-100, 1, -100]])).exp()
        tensor(4.)
    """
    _check("labels", labels, logits)
    _check_labels("labels", labels, logits)
    return _mean_loss(logits, labels)


def sequence_loss(logits: Tensor, labels: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Mean over labels that are not -100 of (1 - ε) · -log p(label) + ε · mean over the vocabulary of -log p.

    Args:
        logits: `[B, M, V]`, from a decoder that read the target shifted right. labels: `[B, M]`.
        label_smoothing: ε.

    Raises:
        TypeError: labels that are no integers. ValueError: shapes that do not fit; a label out of the vocabulary; ε
            below 0 or above 1.

    Source: label smoothing: Szegedy et al. 2016, arXiv:1512.00567, with ε = 0.1 in Vaswani et al. 2017.

    Example:
        >>> import torch
        >>> from attnops.seq import sequence_loss
        >>> sequence_loss(torch.zeros(1, 3, 4), torch.tensor([[0, 1, -100]]), label_smoothing=0.1).exp()
        tensor(4.)
    """
    require_number(label_smoothing=label_smoothing)
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"label_smoothing is {label_smoothing}; it must lie in 0 … 1")
    _check("labels", labels, logits)
    _check_labels("labels", labels, logits)
    return _mean_loss(logits, labels, label_smoothing)


def summed_loss(logits: Tensor, target: Tensor, smoothing: float = 0.0) -> Tensor:
    """Σ -log p(target) over targets that are not -100, in float32 at least."""
    if logits.dtype in (torch.float16, torch.bfloat16):
        logits = logits.float()
    return F.cross_entropy(
        logits.flatten(0, 1), target.flatten().long(), ignore_index=IGNORED, reduction="sum", label_smoothing=smoothing
    )


def _mean_loss(logits: Tensor, target: Tensor, smoothing: float = 0.0) -> Tensor:
    """0, with zero gradients, where no label counts."""
    return summed_loss(logits, target, smoothing) / (target != IGNORED).sum().clamp(min=1)


def _check(name: str, ids: Tensor, logits: Tensor) -> None:
    for which, given in (("logits", logits), (name, ids)):
        if not isinstance(given, Tensor):
            raise TypeError(f"{which} is {type(given).__name__}; it must be a tensor")
    if not logits.is_floating_point():
        raise TypeError(f"logits is {logits.dtype}; it must hold real numbers")
    if logits.ndim != 3:
        raise ValueError(f"logits has shape {list(logits.shape)}; it must be [B, N, V]")
    if ids.shape != logits.shape[:2]:
        raise ValueError(f"{name} has shape {list(ids.shape)}; it must be {list(logits.shape[:2])}, as logits")


def _check_labels(name: str, labels: Tensor, logits: Tensor) -> None:
    """Raise unless labels are ids of the vocabulary, or -100."""
    if labels.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"{name} is {labels.dtype}; it must be an integer tensor [B, N]")
    if is_concrete(labels):
        wrong = labels[((labels < 0) & (labels != IGNORED)) | (labels >= logits.shape[-1])]
        if wrong.numel():
            raise ValueError(
                f"{name} holds {int(wrong[0])}; a label must lie in 0 … {logits.shape[-1] - 1}, or be {IGNORED}"
            )
