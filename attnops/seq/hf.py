"""Transformers models on the one operator: `attn_implementation="attnops"`."""

from __future__ import annotations

import functools
import inspect
import sys
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from attnops.coords import Coords
from attnops.operator import attend
from attnops.patterns.base import Full, Pattern
from attnops.patterns.blocks import Mask
from attnops.patterns.intervals import Causal
from attnops.patterns.segments import SameSegment
from attnops.problem import UnsupportedError
from attnops.scores.dot import DotProduct
from attnops.states import AttentionOutput

NAME = "attnops"

# What an eager attention of transformers may read and `attention` serves; the window is in the mask already.
_SERVED = {
    "module",
    "query",
    "key",
    "value",
    "attention_mask",
    "scaling",
    "dropout",
    "softcap",
    "position_bias",
    "sliding_window",
}
_unserved_by: WeakKeyDictionary[type[nn.Module], frozenset[str]] = WeakKeyDictionary()


def register_hf() -> None:
    """Let any transformers model that is loaded with `attn_implementation="attnops"` run on `attend`.

    Grouped heads, padding, caches, sliding windows and chunks, packed sequences, sinks, softcaps, position biases and
    dropout are served, and `output_attentions=True` gives the weights. What a model's own eager attention reads and
    `attend` cannot serve raises, naming it; so does loading a model whose attention does not go through transformers'
    `AttentionInterface` (`attnops.seq.from_pretrained` reads some of those). May be called more than once.

    Raises:
        ImportError: no transformers of version 5 or later is installed.

    Example:
        >>> import torch, transformers
        >>> from attnops.seq import register_hf
        >>> register_hf()
        >>> config = transformers.LlamaConfig(
        ...     vocab_size=32, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
        ...     intermediate_size=32, attn_implementation="attnops")
        >>> transformers.LlamaForCausalLM(config)(torch.arange(4).view(1, 4)).logits.shape
        torch.Size([1, 4, 32])
    """
    try:
        from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
        from transformers.masking_utils import sdpa_mask
    except ImportError as error:
        raise ImportError("register_hf needs transformers 5 or later (pip install 'attnops[hf]')") from error
    AttentionInterface.register(NAME, attention)
    # Bool masks [B, 1, Nq, Nk], True = may attend, or None where causality alone, or nothing, is meant.
    AttentionMaskInterface.register(NAME, sdpa_mask)
    torch.compiler.assume_constant_result(_unserved)  # type: ignore[no-untyped-call]  # here: it loads torch._dynamo
    _refuse_own_attention(PreTrainedModel)


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    cu_seq_lens_q: Tensor | None = None,
    cu_seq_lens_k: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, Tensor | None]:
    """`attend`, with the arguments and the results of an attention function of transformers.

    Args:
        query: `[B, H, Nq, D]`; key `[B, Hkv, Nk, D]`; value `[B, Hkv, Nk, Dv]`.
        attention_mask: bool, True = may attend, or a float mask that is added; None for causal attention where the
            module is causal, and for all pairs where it is not.
        s_aux: sink logits `[H]`.
        position_bias: added to the logits, `[B or 1, H or 1, Nq, Nk]`.
        cu_seq_lens_q, cu_seq_lens_k: where the sequences packed into one row start, and the end, `[S + 1]`.

    Returns:
        `[B, Nq, H, Dv]`, and the weights `[B, H, Nq, Nk]` where they were asked for, else None.

    Raises:
        UnsupportedError: an argument that the model's eager attention reads and this function cannot serve.
    """
    unserved = _unserved(type(module)) & {name for name, given in others.items() if given is not None}
    if unserved:
        raise UnsupportedError(
            f"{type(module).__name__} reads {', '.join(sorted(unserved))}, which attend cannot serve"
        )
    if key.shape[0] != query.shape[0]:  # learned queries, of batch 1, over a batch of keys
        batch = max(query.shape[0], key.shape[0])
        query, key, value = (x.expand(batch, *x.shape[1:]) for x in (query, key, value))
    num_queries = query.shape[2]
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    causal = causal and attention_mask is None and num_queries > 1
    if causal and key.shape[2] > num_queries:  # a static cache that is still empty behind these tokens
        key, value = key[:, :, :num_queries], value[:, :, :num_queries]
        position_bias = None if position_bias is None else position_bias[..., :num_queries]

    pattern: Pattern = Causal() if causal else Full()
    bias: Tensor | None = position_bias
    if attention_mask is not None and attention_mask.dtype == torch.bool:
        pattern = Mask(attention_mask)
    elif attention_mask is not None:
        bias = attention_mask if bias is None else bias + attention_mask
    coords = None
    if cu_seq_lens_q is not None or cu_seq_lens_k is not None:
        pattern = pattern & SameSegment()
        coords = (_packed(cu_seq_lens_q, query, "q"), _packed(cu_seq_lens_k, key, "k"))

    result = attend(
        query,
        key,
        value,
        pattern=pattern,
        bias=bias,
        score=None if softcap is None else DotProduct(softcap),
        scale=scaling,
        coords=coords,
        dropout=dropout if module.training else 0.0,
        return_lse=s_aux is not None,
        return_weights=_weights_asked(others),
    )
    if not isinstance(result, AttentionOutput):
        return result.transpose(1, 2).contiguous(), None
    if s_aux is not None:
        result = _with_sinks(result, s_aux)
    return result.out.transpose(1, 2).contiguous(), result.weights


def _with_sinks(result: AttentionOutput, sinks: Tensor) -> AttentionOutput:
    """One more logit in the denominator, with no value: σ(lse - sink) of everything.

    The model holds the logits, and a `Sink` around them could not be made inside a traced call.
    """
    assert result.lse is not None
    share = torch.sigmoid(result.lse - sinks.flatten().to(result.lse.dtype).unsqueeze(-1)).unsqueeze(-1)
    weights = None if result.weights is None else (result.weights * share).to(result.weights.dtype)
    return AttentionOutput((result.out * share).to(result.out.dtype), None, weights)


def _packed(starts: Tensor | None, vectors: Tensor, side: str) -> Coords:
    """The number of the sequence that each token of a packed row belongs to."""
    if starts is None:
        raise ValueError(f"cu_seq_lens_{side} is None; with sequences packed, queries and keys need it")
    inner = starts[1:-1].to(vectors.device)
    token = torch.arange(vectors.shape[2], device=vectors.device)
    return Coords(segment=torch.bucketize(token, inner.to(token.dtype), right=True))


def _weights_asked(others: dict[str, Any]) -> bool:
    """Whether the caller wants weights; models that do not hand `output_attentions` down have it recorded by hooks."""
    if others.get("output_attentions"):
        return True
    from transformers.utils import output_capturing

    recorded = output_capturing._active_collector.get() or {}  # type: ignore[no-untyped-call]
    return any("attentions" in name for name in recorded)


def _unserved(kind: type[nn.Module]) -> frozenset[str]:
    """What the eager attention beside this class reads, and `attention` cannot serve."""
    if kind not in _unserved_by:
        eager = getattr(sys.modules.get(kind.__module__), "eager_attention_forward", None)
        parameters = [] if eager is None else inspect.signature(eager).parameters.values()
        _unserved_by[kind] = frozenset(p.name for p in parameters if p.kind is not p.VAR_KEYWORD) - _SERVED
    return _unserved_by[kind]


def _refuse_own_attention(base: type) -> None:
    """From now on, models that would run attention of their own under our name say so as they are loaded.

    Transformers takes any registered name for any model, and those that never ask its `AttentionInterface` would go on
    with their eager attention without a word.
    """
    check = base.get_correct_attn_implementation  # type: ignore[attr-defined]
    if getattr(check, "refuses_own_attention", False):
        return

    @functools.wraps(check)
    def checked(self: Any, requested_attention: str | None, *args: Any, **kwargs: Any) -> str:
        if requested_attention == NAME and not self._can_set_attn_implementation():
            raise UnsupportedError(
                f"{type(self).__name__} runs attention of its own, not transformers' AttentionInterface, so "
                f'attn_implementation="{NAME}" would change nothing (see attnops.seq.from_pretrained)'
            )
        name: str = check(self, requested_attention, *args, **kwargs)
        return name

    checked.refuses_own_attention = True  # type: ignore[attr-defined]
    base.get_correct_attn_implementation = checked  # type: ignore[attr-defined]
