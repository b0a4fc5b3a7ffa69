"""What a transformer is made of: one dataclass, from the 2017 model to today's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from attnops.biases.rotary import Rotary
from attnops.biases.rotary_scaling import RotaryScaling
from attnops.checks import require_count, require_flag, require_number, require_positive
from attnops.patterns.base import Pattern
from attnops.seq.feedforward import check_activation

if TYPE_CHECKING:
    from attnops.seq.mla import LatentConfig
    from attnops.seq.moe import ExpertsConfig
    from attnops.seq.temperature import AttentionTemperature

Item = TypeVar("Item")

NORMS = ("rms", "layer")
NORM_POSITIONS = ("pre", "post", "both", "parallel")
POSITIONS = ("sinusoidal", "learned", "rotary", "alibi", "relative", "shaw", "none")
QK_NORMS = (False, True, "full", "unit")
PER_LAYER = ("position", "rotary_scaling", "pattern", "experts", "qk_norm", "temperature", "rotary_base")


@dataclass
class TransformerConfig:
    """Every choice of a transformer; what may differ from layer to layer is one value, or a list of one per layer.

    Args:
        vocab_size, dim, layers, heads: V, the width of the stream, the depth, H.
        kv_heads: Hkv; None for H (multi-head), 1 for multi-query, between them grouped-query attention.
        head_dim: D; None for dim / heads.
        ff_dim: the inner width of the feed-forward; None for 4·dim, or 8/3·dim where the activation has a gate, so that
            both have as many parameters.
        norm: "rms" or "layer". norm_position: "pre" x + f(n(x)), "post" n(x + f(x)), "both" x + n(f(n(x))) (Gemma),
            "parallel" x + attention(n(x)) + feedforward(n(x)) (GPT-J, Falcon).
        activation: "relu", "gelu", "gelu_tanh", "silu", or gated: "swiglu", "geglu", "geglu_tanh", "reglu".
        position: "sinusoidal", "learned", "rotary", "alibi", "relative" (T5), "shaw" or "none"; one per layer lets
            rotary layers stand beside layers without ("none"), as in iRoPE.
        max_length: how many positions a learned table has.
        rotary_scaling: a `RotaryScaling`. rotary_base, rotary_dim, rotary_interleaved: as `Rotary` has them.
        pattern: a Pattern, or one per layer (None: no limit). A decoder cuts it to the past, unless `causal` is False.
        latent: multi-head latent attention in place of keys and values a head.
        experts: a mixture of experts in place of the feed-forward; one per layer, None for a dense layer.
        qk_norm: True for an RMS norm of each head's query and key (Qwen 3), "full" for one over all heads (OLMo 2),
            "unit" for one without parameters after the rotation (Llama 4).
        softcap: of attention logits. sinks: a learned logit a head with no value. scale: of logits; None for 1/√D.
        temperature: attention that sharpens with length, on layers without positions (Llama 4).
        tie_embeddings: the head is the token table. dropout: on embeddings, attention weights and sublayers.
        encoder_layers: the depth of an `EncoderDecoder`'s encoder; None for `layers`. A list of one per layer serves
            both sides, or names the encoder's layers first, then the decoder's: encoder_layers + layers of them.

    Example:
        >>> from attnops.seq import TransformerConfig
        >>> llama = TransformerConfig(vocab_size=512, dim=64, layers=5, heads=8, kv_heads=4)
        >>> llama.head_dim, llama.ff_dim
        (8, 176)
    """

    vocab_size: int
    dim: int
    layers: int
    heads: int
    kv_heads: int | None = None
    head_dim: int | None = None
    ff_dim: int | None = None
    norm: str = "rms"
    norm_position: str = "pre"
    activation: str = "swiglu"
    position: str | Sequence[str] = "rotary"
    max_length: int = 2048
    rotary_scaling: RotaryScaling | Sequence[RotaryScaling | None] | None = None
    pattern: Pattern | Sequence[Pattern | None] | None = None
    latent: LatentConfig | None = None
    experts: ExpertsConfig | Sequence[ExpertsConfig | None] | None = None
    qk_norm: bool | str | Sequence[bool | str] = False
    softcap: float | None = None
    sinks: bool = False
    tie_embeddings: bool = True
    dropout: float = 0.0
    # positions
    rotary_base: float | Sequence[float] = 10000.0
    rotary_dim: int | None = None
    rotary_interleaved: bool = False
    relative_buckets: int = 32
    relative_distance: int = 128
    shaw_distance: int = 16
    learned_offset: int = 0
    alibi_slopes: Sequence[float] | None = None
    # attention
    scale: float | None = None
    temperature: AttentionTemperature | Sequence[AttentionTemperature | None] | None = None
    attention_bias: bool = False
    output_bias: bool = False
    qkv_clip: float | None = None
    causal: bool = True
    # norms and feed-forward
    norm_eps: float = 1e-5
    norm_bias: bool = True
    parallel_norms: int = 1
    first_norm: bool = True
    ff_bias: bool = False
    # embeddings and head
    embedding_scale: float | None = None
    embedding_norm: bool = False
    token_types: int = 0
    final_norm: bool | None = None
    final_softcap: float | None = None
    head_bias: bool = False
    logit_scale: float | None = None
    # encoder-decoder
    encoder_layers: int | None = None

    def __post_init__(self) -> None:
        require_positive(vocab_size=self.vocab_size, dim=self.dim, layers=self.layers, heads=self.heads)
        require_positive(max_length=self.max_length)
        if self.kv_heads is None:
            self.kv_heads = self.heads
        require_positive(kv_heads=self.kv_heads)
        if self.heads % self.kv_heads:
            raise ValueError(f"kv_heads is {self.kv_heads}; it must divide the {self.heads} heads")
        if self.head_dim is None:
            if self.dim % self.heads:
                raise ValueError(f"dim is {self.dim}; it must be a multiple of heads = {self.heads}, or name head_dim")
            self.head_dim = self.dim // self.heads
        _require_one_of("norm", self.norm, NORMS)
        _require_one_of("norm_position", self.norm_position, NORM_POSITIONS)
        check_activation(self.activation)
        if self.ff_dim is None:
            self.ff_dim = gated_width(self.dim) if "glu" in self.activation else 4 * self.dim
        require_positive(head_dim=self.head_dim, ff_dim=self.ff_dim)
        require_number(dropout=self.dropout, norm_eps=self.norm_eps)
        if not 0.0 <= self.dropout < 1.0:
            raise ValueError(f"dropout is {self.dropout}; it must be at least 0 and below 1")
        require_flag(
            sinks=self.sinks, tie_embeddings=self.tie_embeddings, causal=self.causal, ff_bias=self.ff_bias,
            attention_bias=self.attention_bias, output_bias=self.output_bias, head_bias=self.head_bias,
        )  # fmt: skip
        require_flag(
            norm_bias=self.norm_bias, first_norm=self.first_norm, embedding_norm=self.embedding_norm,
            **({} if self.final_norm is None else {"final_norm": self.final_norm}),
        )  # fmt: skip
        self._check_numbers()
        if self.parallel_norms not in (1, 2):
            raise ValueError(f"parallel_norms is {self.parallel_norms}; it must be 1 or 2")
        for name in PER_LAYER:
            self._check_length(name)
        for position in self._each("position"):
            _require_one_of("position", position, POSITIONS)
        if self.has_position("learned") and self.has_position("sinusoidal"):
            raise ValueError("position lists 'learned' and 'sinusoidal'; tokens are given positions of one kind alone")
        for qk_norm in self._each("qk_norm"):
            _require_one_of("qk_norm", qk_norm, QK_NORMS)
        for pattern in self._each("pattern"):
            if pattern is not None and not isinstance(pattern, Pattern):
                raise TypeError(f"pattern is {type(pattern).__name__}; it must be a Pattern, None, or a list of them")
        self._check_kinds()

    def _check_length(self, name: str) -> None:
        """One value, or as many as there are layers; where an encoder is as deep as it likes, its layers come first."""
        value, encoder = getattr(self, name), self.encoder_layers
        lengths = [self.layers] if encoder in (None, self.layers) else []
        lengths += [] if encoder is None else [encoder + self.layers]
        if isinstance(value, list | tuple) and len(value) not in lengths:
            raise ValueError(
                f"{name} lists {len(value)} layers; it must be one value or list {' or '.join(map(str, lengths))}"
                + ("" if encoder is None else f" (encoder_layers = {encoder}, then layers = {self.layers})")
            )

    def _check_numbers(self) -> None:
        for name in ("scale", "embedding_scale", "logit_scale"):
            if getattr(self, name) is not None:
                require_number(**{name: getattr(self, name)})
        for name in ("softcap", "final_softcap", "qkv_clip"):
            value = getattr(self, name)
            if value is not None:
                require_number(**{name: value})
                if not value > 0:
                    raise ValueError(f"{name} is {value}; it must be positive, or None for none")
        if self.norm_eps < 0:
            raise ValueError(f"norm_eps is {self.norm_eps}; it must be 0 or more")
        require_count(learned_offset=self.learned_offset, token_types=self.token_types)
        if self.rotary_dim is not None:
            require_positive(rotary_dim=self.rotary_dim)
            if self.rotary_dim % 2 or self.rotary_dim > self.head_dim:  # type: ignore[operator]
                raise ValueError(
                    f"rotary_dim is {self.rotary_dim}; it must be even, and at most head_dim = {self.head_dim}"
                )
        if self.encoder_layers is not None:
            require_positive(encoder_layers=self.encoder_layers)
        if self.alibi_slopes is not None:
            require_number(**{f"alibi_slopes[{h}]": slope for h, slope in enumerate(self.alibi_slopes)})
            if len(self.alibi_slopes) != self.heads:
                raise ValueError(f"alibi_slopes holds {len(self.alibi_slopes)} slopes; it must hold {self.heads}")

    def _check_kinds(self) -> None:
        from attnops.seq.mla import LatentConfig
        from attnops.seq.moe import ExpertsConfig
        from attnops.seq.temperature import AttentionTemperature

        if self.latent is not None and not isinstance(self.latent, LatentConfig):
            raise TypeError(f"latent is {type(self.latent).__name__}; it must be a LatentConfig, or None")
        for name, kind in (("experts", ExpertsConfig), ("temperature", AttentionTemperature)):
            for value in self._each(name):
                if value is not None and not isinstance(value, kind):
                    raise TypeError(
                        f"{name} is {type(value).__name__}; it must be an {kind.__name__}, None, or a list of them"
                    )

    def at(self, name: str, layer: int) -> Any:
        """What layer number `layer` has for the argument `name`; of an encoder-decoder, the decoder's layer."""
        value = getattr(self, name)
        return value[layer - self.layers] if isinstance(value, list | tuple) else value

    def of_encoder(self) -> TransformerConfig:
        """The config of an encoder-decoder's encoder."""
        depth = self.encoder_layers or self.layers
        lists = {
            name: getattr(self, name)[:depth] for name in PER_LAYER if isinstance(getattr(self, name), list | tuple)
        }
        return replace(self, layers=depth, encoder_layers=None, **lists)

    def _each(self, name: str) -> Sequence[Any]:
        """The value that all layers have, or each of those listed."""
        value = getattr(self, name)
        return value if isinstance(value, list | tuple) else (value,)

    def rotary(self, layer: int, dim: int | None = None) -> Rotary:
        """The rotation of a layer's queries and keys, of `dim` channels where that is not the config's own."""
        width = dim or self.rotary_dim or self.head_dim or self.dim // self.heads
        scaling = self.at("rotary_scaling", layer)
        if self.at("qk_norm", layer) == "unit" and scaling is not None:  # it takes away what a magnitude gives
            scaling = scaling.without_magnitude()
        return Rotary(width, self.at("rotary_base", layer), scaling, self.rotary_interleaved)

    def has_position(self, scheme: str) -> bool:
        """Whether some layer takes its positions from `scheme`."""
        return scheme in self._each("position")[-self.layers :]


def gated_width(dim: int) -> int:
    """8/3·dim, rounded up to a multiple of 8: three matrices of it hold what two of 4·dim do (Shazeer 2020)."""
    return -(-8 * dim // 24) * 8


def _require_one_of(name: str, value: object, choices: tuple[object, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} is {value!r}; it must be one of {', '.join(map(repr, choices))}")
