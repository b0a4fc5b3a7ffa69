"""A Hugging Face config, read so that no option of it is passed over in silence."""

from __future__ import annotations

import dataclasses
from typing import Any

from attnops.biases.rotary import Rotary
from attnops.patterns.base import Pattern
from attnops.patterns.intervals import SlidingWindow

# What changes no number in evaluation: initialisers, dropout, special tokens, training's own, other heads' own.
_WITHOUT_EFFECT = frozenset(
    """
    initializer_range initializer_factor initializer_cutoff_factor init_device use_cache pretraining_tp
    pad_token_id bos_token_id eos_token_id cls_token_id sep_token_id decoder_start_token_id
    attention_dropout hidden_dropout resid_pdrop embd_pdrop attn_pdrop emb_pdrop dropout_rate hidden_dropout_prob
    attention_probs_dropout_prob embedding_dropout mlp_dropout classifier_dropout
    output_router_logits router_aux_loss_coef router_jitter_noise embedding_fraction norm_type no_bias
    summary_type summary_use_proj summary_activation summary_proj_to_labels summary_first_dropout
    max_position_embeddings reorder_and_upcast_attn slow_but_exact deterministic_flash_attn
    sparse_prediction sparse_pred_ignore_index classifier_pooling num_mtp_layers
    """.split()
)
_GATED = {
    "silu": "swiglu",
    "swish": "swiglu",
    "gelu": "geglu",
    "gelu_new": "geglu_tanh",
    "gelu_pytorch_tanh": "geglu_tanh",
    "relu": "reglu",
}
_PLAIN = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
}


class Settings:
    """The options of a transformers config; remembers which were read."""

    def __init__(self, config: Any) -> None:
        self.config = config
        self.kind: str = config.model_type
        self.read: set[str] = set()
        if getattr(config, "quantization_config", None) is not None:
            raise ValueError(f"{self.kind}: quantization_config is given; quantised weights are not supported")
        if getattr(config, "is_heterogeneous", False):
            raise ValueError(f"{self.kind}: per_layer_config is given; it is not supported")

    def __getitem__(self, name: str) -> Any:
        self.read.add(name)
        return getattr(self.config, name)

    def only(self, **supported: Any) -> None:
        """Raise, naming the option, where it has another value than the one supported."""
        for name, value in supported.items():
            self.read.add(name)
            given = getattr(self.config, name, value)
            if given != value:
                raise self.unsupported(name, given, f"{value!r} alone is")

    def unsupported(self, name: str, value: object, what: str = "it is not") -> ValueError:
        """The error that names an option."""
        return ValueError(f"{self.kind}: {name} is {value!r}, which is not supported; {what}")

    def finish(self) -> None:
        """Raise for an option that was not read, could change a number, and is not as by default."""
        from transformers import PreTrainedConfig

        shared = {field.name for field in dataclasses.fields(PreTrainedConfig)}
        for field in dataclasses.fields(self.config):
            if field.name in shared | self.read | _WITHOUT_EFFECT:
                continue
            value = getattr(self.config, field.name)
            if value != field.default:
                raise self.unsupported(field.name, value, f"{field.default!r} alone is")

    # ------------------------------------------------------------------------------- what several architectures share

    def activation(self, name: str, gated: bool) -> str:
        """Our name of the activation that option `name` holds."""
        given, names = self[name], _GATED if gated else _PLAIN
        if given not in names:
            raise self.unsupported(name, given, f"one of {', '.join(names)} is")
        return names[given]

    def rotary(self, head_dim: int, rope: dict[str, Any] | None = None) -> Rotary:
        """The rotation that `rope_parameters` (or `rope`, one of them) describes."""
        values = dict(self["rope_parameters"] if rope is None else rope)
        if values.pop("partial_rotary_factor", None) not in (None, 1.0):
            raise ValueError(f"{self.kind}: rope_parameters have a partial_rotary_factor; all of a head turns here")
        for name in ("mscale", "mscale_all_dim"):
            if values.get(name) == 0:  # as good as not given
                del values[name]
        length = getattr(self.config, "max_position_embeddings", None)
        try:
            return Rotary.from_hf(values, head_dim, length)
        except ValueError as error:
            raise ValueError(f"{self.kind}: rope_parameters: {error}") from error

    def patterns(self, layers: int) -> list[Pattern | None] | None:
        """One pattern a layer, from `layer_types` and `sliding_window`; None where every layer sees all."""
        window, kinds = self["sliding_window"], self["layer_types"]
        known: dict[str, Pattern | None] = {"full_attention": None}
        if window is not None:
            known["sliding_attention"] = SlidingWindow(window - 1)
        for kind in kinds:
            if kind not in known:
                raise self.unsupported("layer_types", kind, f"one of {', '.join(known)} is")
        if all(kind == "full_attention" for kind in kinds):
            return None
        return [known[kind] for kind in kinds[:layers]]


def rotation(rotary: Rotary) -> dict[str, Any]:
    """A `Rotary` as arguments of a `TransformerConfig`."""
    return {"rotary_base": rotary.base, "rotary_dim": rotary.dim, "rotary_scaling": rotary.scaling}
