"""How well a model predicts a text."""

from __future__ import annotations

import torch
from torch import Tensor

from attnops.checks import require_positive
from attnops.seq.decoder import Decoder
from attnops.seq.embeddings import check_ids
from attnops.seq.evaluating import Evaluating
from attnops.seq.losses import summed_loss


@torch.no_grad()
def perplexity(model: Decoder, ids: Tensor, window: int | None = None, stride: int | None = None) -> float:
    """exp of the mean of -log p(token | tokens before), each token but the first scored once.

    The model runs as in evaluation, without gradients, and is left as it was.

    Args:
        ids: `[N]`, or `[B, N]` texts of one length, scored together.
        window: how many tokens are looked at at once; None for all.
        stride: how far the window moves on (None: window / 2). A token is scored in the first window that holds it, so
            with window - stride tokens before it, or more; stride = window cuts the text into parts.

    Raises:
        TypeError: what is no `Decoder`; ids that are no integers. ValueError: ids out of range; no text, or fewer than
            two tokens; a stride above the window.

    Example:
        >>> import torch
        >>> from attnops.seq import Decoder, TransformerConfig, perplexity
        >>> model = Decoder(TransformerConfig(vocab_size=10, dim=16, layers=1, heads=2))
        >>> _ = model.embeddings.token.weight.data.zero_()                      # knows nothing
        >>> round(perplexity(model, torch.arange(10), window=4), 3)
        10.0
    """
    if isinstance(ids, Tensor) and ids.ndim == 1:
        ids = ids.unsqueeze(0)
    if not isinstance(model, Decoder):
        raise TypeError(f"model is {type(model).__name__}; it must be a Decoder")
    check_ids("ids", ids, model.config.vocab_size)
    if ids.shape[0] == 0:
        raise ValueError("ids has no rows; there must be one text or more")
    length = ids.shape[-1]
    if length < 2:
        raise ValueError(f"ids has {length} tokens; a perplexity needs 2 or more, for the first is not predicted")
    window = length if window is None else window
    require_positive(window=window)
    if window < 2:
        raise ValueError("window is 1; it must be 2 or more, for a token is predicted from one before it")
    stride = max(1, window // 2) if stride is None else stride
    require_positive(stride=stride)
    if stride > window:
        raise ValueError(f"stride is {stride}; it must be at most window = {window}, or tokens would be left out")
    total, scored = 0.0, 1  # the first token has nothing before it
    with Evaluating(model):
        for start in range(0, length, stride):
            end = min(start + window, length)
            if end > scored:
                read = ids[:, min(start, scored - 1) : end - 1]
                logits = model(read)[:, scored - end :]
                total += float(summed_loss(logits, ids[:, scored:end]))
                scored = end
    mean = torch.tensor(total / (ids.shape[0] * (length - 1)), dtype=torch.float64)
    return float(mean.exp())  # inf where it is too large, and no error
