"""What is read from an encoder: masked tokens, a class of a text, a class a token, a vector of a text."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnops.checks import require_positive
from attnops.seq.config import TransformerConfig
from attnops.seq.context import read_mask
from attnops.seq.encoder import Encoder
from attnops.seq.feedforward import activate
from attnops.seq.linear import apply_linear, linear
from attnops.seq.norms import make_norm


class MaskedTokenHead(nn.Module):
    """Hidden vectors to logits of the token that was masked: norm(σ(W x)) times the token table, plus a bias.

    Args:
        bias: whether W has one.

    Source: Devlin et al. 2019, arXiv:1810.04805.

    Example:
        >>> import torch
        >>> from attnops.seq import Encoder, MaskedTokenHead, TransformerConfig
        >>> config = TransformerConfig(vocab_size=10, dim=16, layers=1, heads=2, activation="gelu")
        >>> encoder, head = Encoder(config), MaskedTokenHead(config)
        >>> head(encoder(torch.tensor([[1, 2, 3]])), encoder.embeddings.token.weight).shape
        torch.Size([1, 3, 10])
    """

    def __init__(self, config: TransformerConfig, bias: bool = True) -> None:
        super().__init__()
        self.activation = config.activation
        self.dense = nn.Linear(config.dim, config.dim, bias=bias)
        self.norm = make_norm(config.norm, config.dim, config.norm_eps, config.norm_bias)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        """`x [B, N, dim]`; `tokens [V, dim]`, the token table."""
        return linear(self.norm(activate(apply_linear(self.dense, x), self.activation)), tokens, self.bias)


class MaskedLanguageModel(nn.Module):
    """An encoder that predicts masked tokens: ids `[B, N]` to logits `[B, N, V]`. See `mask_tokens`.

    Raises:
        TypeError: what is no `Encoder`.

    Source: Devlin et al. 2019, arXiv:1810.04805.

    Example:
        >>> import torch
        >>> from attnops.seq import Encoder, MaskedLanguageModel, TransformerConfig
        >>> model = MaskedLanguageModel(Encoder(TransformerConfig(vocab_size=10, dim=16, layers=1, heads=2)))
        >>> model(torch.tensor([[1, 9, 3]])).shape
        torch.Size([1, 3, 10])
    """

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        _check(encoder)
        self.encoder, self.head = encoder, MaskedTokenHead(encoder.config)

    def forward(self, ids: Tensor, attention_mask: Tensor | None = None, *, types: Tensor | None = None) -> Tensor:
        return self.head(self.encoder(ids, attention_mask, types=types), self.encoder.embeddings.token.weight)  # type: ignore[no-any-return]


class SequenceClassifier(nn.Module):
    """A class for each text, from the mean of its real tokens, or from its first token.

    Args:
        pool: "mean", or "first" (BERT's [CLS]; the first real one where the left is padding).

    Raises:
        TypeError: what is no `Encoder`. ValueError: another pool; fewer than one class.

    Example:
        >>> import torch
        >>> from attnops.seq import Encoder, SequenceClassifier, TransformerConfig
        >>> encoder = Encoder(TransformerConfig(vocab_size=10, dim=16, layers=1, heads=2))
        >>> SequenceClassifier(encoder, classes=3)(torch.tensor([[1, 2, 3], [4, 5, 6]])).shape
        torch.Size([2, 3])
    """

    def __init__(self, encoder: Encoder, classes: int, pool: str = "mean") -> None:
        super().__init__()
        if pool not in ("mean", "first"):
            raise ValueError(f"pool is {pool!r}; it must be 'mean' or 'first'")
        _check(encoder)
        require_positive(classes=classes)
        self.encoder, self.pool = encoder, pool
        self.dropout = nn.Dropout(encoder.config.dropout)
        self.head = nn.Linear(encoder.config.dim, classes)

    def forward(self, ids: Tensor, attention_mask: Tensor | None = None, *, types: Tensor | None = None) -> Tensor:
        """Logits `[B, classes]`."""
        x, real = self.encoder(ids, attention_mask, types=types), read_mask(attention_mask, ids.shape[0], ids.shape[1])
        text = mean_pool(x, real) if self.pool == "mean" else first_real(x, real)
        return self.head(self.dropout(text))  # type: ignore[no-any-return]


class TokenClassifier(nn.Module):
    """A class for each token: ids `[B, N]` to logits `[B, N, classes]`.

    Raises:
        TypeError: what is no `Encoder`. ValueError: fewer than one class.

    Example:
        >>> import torch
        >>> from attnops.seq import Encoder, TokenClassifier, TransformerConfig
        >>> encoder = Encoder(TransformerConfig(vocab_size=10, dim=16, layers=1, heads=2))
        >>> TokenClassifier(encoder, classes=3)(torch.tensor([[1, 2], [4, 5]])).shape
        torch.Size([2, 2, 3])
    """

    def __init__(self, encoder: Encoder, classes: int) -> None:
        super().__init__()
        _check(encoder)
        require_positive(classes=classes)
        self.encoder = encoder
        self.dropout = nn.Dropout(encoder.config.dropout)
        self.head = nn.Linear(encoder.config.dim, classes)

    def forward(self, ids: Tensor, attention_mask: Tensor | None = None, *, types: Tensor | None = None) -> Tensor:
        return self.head(self.dropout(self.encoder(ids, attention_mask, types=types)))  # type: ignore[no-any-return]


class SentenceEmbedder(nn.Module):
    """A vector for each text: the mean of its real tokens, of length 1 where `normalize`; near texts, near vectors.

    Source: Reimers and Gurevych 2019, arXiv:1908.10084.

    Example:
        >>> import torch
        >>> from attnops.seq import Encoder, SentenceEmbedder, TransformerConfig
        >>> encoder = Encoder(TransformerConfig(vocab_size=10, dim=16, layers=1, heads=2))
        >>> SentenceEmbedder(encoder)(torch.tensor([[1, 2, 3], [4, 5, 6]])).shape
        torch.Size([2, 16])
    """

    def __init__(self, encoder: Encoder, normalize: bool = True) -> None:
        super().__init__()
        _check(encoder)
        self.encoder, self.normalize = encoder, normalize

    def forward(self, ids: Tensor, attention_mask: Tensor | None = None, *, types: Tensor | None = None) -> Tensor:
        """Vectors `[B, dim]`."""
        x, real = self.encoder(ids, attention_mask, types=types), read_mask(attention_mask, ids.shape[0], ids.shape[1])
        text = mean_pool(x, real)
        return F.normalize(text, dim=-1) if self.normalize else text


def _check(encoder: object) -> None:
    if not isinstance(encoder, Encoder):
        raise TypeError(f"encoder is {type(encoder).__name__}; it must be an Encoder")


def mean_pool(x: Tensor, real: Tensor | None) -> Tensor:
    """The mean over real tokens, `[B, N, dim]` to `[B, dim]`; 0 for a row of padding."""
    if real is None:
        return x.mean(1)
    total = torch.where(real.unsqueeze(-1), x, 0).sum(1)
    return total / real.sum(1, keepdim=True).clamp(min=1)


def first_real(x: Tensor, real: Tensor | None) -> Tensor:
    """The first real token of each row, `[B, N, dim]` to `[B, dim]`."""
    if real is None:
        return x[:, 0]
    first = real.long().argmax(1)
    return x[torch.arange(len(first), device=x.device), first]
