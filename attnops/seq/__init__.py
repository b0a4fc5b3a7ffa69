"""Sequence models on the one operator: `Encoder`, `Decoder`, `EncoderDecoder`, and every part of them by its name."""

from __future__ import annotations

from attnops.seq.alibi import SlopedALiBi as SlopedALiBi
from attnops.seq.attention import Attention as Attention
from attnops.seq.attention import CrossAttention as CrossAttention
from attnops.seq.block import Block as Block
from attnops.seq.cache import Cache as Cache
from attnops.seq.cache import Held as Held
from attnops.seq.cache import KVCache as KVCache
from attnops.seq.config import TransformerConfig as TransformerConfig
from attnops.seq.context import Context as Context
from attnops.seq.context import Keys as Keys
from attnops.seq.decoder import Decoder as Decoder
from attnops.seq.decoding import generate as generate
from attnops.seq.decoding import stream as stream
from attnops.seq.embeddings import Embeddings as Embeddings
from attnops.seq.embeddings import LearnedPositions as LearnedPositions
from attnops.seq.embeddings import SinusoidalPositions as SinusoidalPositions
from attnops.seq.encoder import Encoder as Encoder
from attnops.seq.encoder_decoder import EncoderDecoder as EncoderDecoder
from attnops.seq.feedforward import FeedForward as FeedForward
from attnops.seq.heads import MaskedLanguageModel as MaskedLanguageModel
from attnops.seq.heads import MaskedTokenHead as MaskedTokenHead
from attnops.seq.heads import SentenceEmbedder as SentenceEmbedder
from attnops.seq.heads import SequenceClassifier as SequenceClassifier
from attnops.seq.heads import TokenClassifier as TokenClassifier
from attnops.seq.losses import causal_lm_loss as causal_lm_loss
from attnops.seq.losses import masked_lm_loss as masked_lm_loss
from attnops.seq.losses import sequence_loss as sequence_loss
from attnops.seq.masking import mask_tokens as mask_tokens
from attnops.seq.mla import LatentAttention as LatentAttention
from attnops.seq.mla import LatentConfig as LatentConfig
from attnops.seq.moe import ExpertsConfig as ExpertsConfig
from attnops.seq.moe import MixtureOfExperts as MixtureOfExperts
from attnops.seq.moe import Routing as Routing
from attnops.seq.moe import Routings as Routings
from attnops.seq.moe import routings as routings
from attnops.seq.norms import LayerNorm as LayerNorm
from attnops.seq.norms import RMSNorm as RMSNorm
from attnops.seq.packing import Packed as Packed
from attnops.seq.packing import pack as pack
from attnops.seq.rolling_cache import FirstTokens as FirstTokens
from attnops.seq.rolling_cache import RollingCache as RollingCache
from attnops.seq.scoring import perplexity as perplexity
from attnops.seq.temperature import AttentionTemperature as AttentionTemperature
