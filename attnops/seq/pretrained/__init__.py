"""Trained models: read from transformers, or from a folder in Hugging Face's format, with the same numbers."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from attnops.seq.decoder import Decoder
from attnops.seq.encoder import Encoder
from attnops.seq.encoder_decoder import EncoderDecoder
from attnops.seq.pretrained.bert import BERT, ROFORMER
from attnops.seq.pretrained.bloom import BLOOM
from attnops.seq.pretrained.deepseek_v3 import DEEPSEEK_V3
from attnops.seq.pretrained.falcon import FALCON
from attnops.seq.pretrained.family import Family
from attnops.seq.pretrained.gemma2 import GEMMA2
from attnops.seq.pretrained.gpt2 import GPT2
from attnops.seq.pretrained.gpt_oss import GPT_OSS
from attnops.seq.pretrained.llama import LLAMA, MISTRAL, MIXTRAL, QWEN3
from attnops.seq.pretrained.llama4 import LLAMA4
from attnops.seq.pretrained.modernbert import MODERNBERT
from attnops.seq.pretrained.mpt import MPT
from attnops.seq.pretrained.settings import Settings
from attnops.seq.pretrained.source import read_folder, read_model, require_known
from attnops.seq.pretrained.t5 import T5
from attnops.seq.pretrained.weights import has_other_head, load

FAMILIES: dict[str, Family] = {
    "llama": LLAMA,
    "mistral": MISTRAL,
    "qwen3": QWEN3,
    "gemma2": GEMMA2,
    "gpt2": GPT2,
    "falcon": FALCON,
    "bloom": BLOOM,
    "mpt": MPT,
    "mixtral": MIXTRAL,
    "deepseek_v3": DEEPSEEK_V3,
    "gpt_oss": GPT_OSS,
    "llama4_text": LLAMA4,
    "bert": BERT,
    "modernbert": MODERNBERT,
    "roformer": ROFORMER,
    "t5": T5,
}


def from_pretrained(source: nn.Module | str | os.PathLike[str]) -> Decoder | Encoder | EncoderDecoder:
    """A trained model of transformers as one of ours, in evaluation mode, with the same numbers.

    Reads Llama, Mistral, Qwen3, Gemma 2, GPT-2, Falcon, BLOOM, MPT, Mixtral, DeepSeek-V3, gpt-oss and Llama 4 (text) as
    `Decoder`; BERT, ModernBERT and RoFormer as `Encoder`; T5 as `EncoderDecoder`. An encoder that predicts masked
    tokens has its `head`: `encoder.head(encoder(ids), encoder.embeddings.token.weight)` are the logits. Weights are
    copied and keep their dtype. Dropout rates are left behind, and so are pooling layers.

    Args:
        source: a model of transformers, or a folder with `config.json` and safetensors, in one file or in shards.

    Raises:
        ValueError: an architecture, class, option or rope type that is not supported, a weight that is missing, of
            another shape or read by nothing, a damaged file; each by its name.
        FileNotFoundError: no such folder, or one without config.json or safetensors.
        TypeError: a source that is neither.

    Example:
        >>> import torch, transformers
        >>> from attnops.seq import from_pretrained
        >>> config = transformers.GPT2Config(vocab_size=32, n_embd=16, n_layer=1, n_head=2, n_positions=8)
        >>> theirs = transformers.GPT2LMHeadModel(config).eval()
        >>> ours, ids = from_pretrained(theirs), torch.tensor([[3, 1, 4, 1, 5]])
        >>> torch.allclose(ours(ids), theirs(ids).logits, atol=1e-5)
        True
    """
    name: str | None
    if isinstance(source, nn.Module):
        kind = getattr(getattr(source, "config", None), "model_type", None)
        if kind is None:
            raise TypeError(f"source is a {type(source).__name__}; it must be a model of transformers, or a folder")
        require_known(kind, FAMILIES)
        config, name, tensors = read_model(source)
    elif isinstance(source, str | os.PathLike):
        config, name, tensors = read_folder(Path(source), FAMILIES)
    else:
        raise TypeError(f"source is a {type(source).__name__}; it must be a model of transformers, or a folder")
    family = FAMILIES[config.model_type]
    if family.stored is not None and not isinstance(source, nn.Module):
        tensors = family.stored(tensors)
    return _build(family, config, name or family.classes[0], tensors)


def _build(family: Family, config: Any, name: str, tensors: dict[str, Any]) -> Decoder | Encoder | EncoderDecoder:
    if name not in family.classes:
        raise ValueError(f"{name} is not supported; of {config.model_type}, {' and '.join(family.classes)} are")
    if family.model is Decoder and not getattr(config, "is_causal", True):
        raise ValueError(f"{config.model_type}: is_causal is False, which is not supported")
    settings = Settings(config)
    ours = family.config(settings)
    names = family.names(ours)
    if has_other_head(tensors, family.head, names["embeddings.token.weight"], family.prefix):
        if family.model is Encoder:
            raise ValueError(f"{family.head} differs from the table of tokens, which alone can be the head here")
        ours = replace(ours, tie_embeddings=False)
    bias = family.head.replace(".weight", ".bias")
    if "head.bias" in names and has_other_head(tensors, bias, names["head.bias"], family.prefix):
        raise ValueError(f"{bias} differs from {names['head.bias']}; a head has one bias")
    with torch.device("meta"):  # no weight is drawn only to be thrown away
        model = family.model(ours)
        if family.change is not None:
            family.change(model, settings, name)
    settings.finish()
    load(model, tensors, family.names(ours), family.ignored, family.prefix)
    return model.eval()
