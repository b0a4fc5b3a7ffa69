"""Rotary settings as Hugging Face configs and vLLM's `--rope-scaling` write them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from attnops.biases.rotary_scaling import (
    NTK,
    DynamicNTK,
    Linear,
    Llama3,
    LongRoPE,
    MixedNTK,
    Proportional,
    RotaryScaling,
    Yarn,
    require_positive_number,
    yarn_magnitude,
)
from attnops.checks import require_positive

_SHARED_KEYS = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}
_CONFIG_KEYS = ("rope_theta", "partial_rotary_factor", "original_max_position_embeddings")


class Fields:
    """The values of one dict; remembers what was read, so that a key nobody reads is an error and not a silence."""

    def __init__(self, values: Mapping[str, Any], max_position_embeddings: int | None) -> None:
        self.values = {name: value for name, value in values.items() if value is not None}
        self.max_position_embeddings = max_position_embeddings
        self.kind = _kind(self.values)
        self.read = set(_SHARED_KEYS)

    def get(self, name: str, default: Any = None) -> Any:
        """A value that may be missing."""
        self.read.add(name)
        return self.values.get(name, default)

    def need(self, name: str) -> Any:
        """A value that may not."""
        if name not in self.values:
            raise ValueError(f"rope scaling of type {self.kind!r} lacks the key {name!r}")
        return self.get(name)

    def original_length(self) -> float:
        """The trained length: as written, or the config's `max_position_embeddings`."""
        length = self.get("original_max_position_embeddings", self.max_position_embeddings)
        if length is None:
            raise ValueError(
                f"rope scaling of type {self.kind!r} lacks the key 'original_max_position_embeddings', and "
                "max_position_embeddings is not given"
            )
        require_positive_number(original_max_position_embeddings=length)
        return float(length)

    def factor_or_ratio(self) -> float:
        """The factor as written, or the ratio of the config's `max_position_embeddings` to the trained length."""
        if "factor" in self.values:
            return float(_number(self, "factor"))
        if self.max_position_embeddings is None or "original_max_position_embeddings" not in self.values:
            raise ValueError(
                f"rope scaling of type {self.kind!r} lacks the key 'factor', and max_position_embeddings and the key "
                "'original_max_position_embeddings' are not both given, whose ratio it would be"
            )
        return self.max_position_embeddings / self.original_length()

    def finish(self) -> None:
        """Raise for a key that was not read."""
        unknown = sorted(set(self.values) - self.read)
        if unknown:
            raise ValueError(
                f"rope scaling of type {self.kind!r} has the unknown key {unknown[0]!r}; known are "
                f"{', '.join(sorted(self.read))}"
            )


def read_scaling(values: Mapping[str, Any] | None, max_position_embeddings: int | None) -> RotaryScaling:
    """The law in `values`; see `RotaryScaling.from_hf`."""
    _require_mapping(values)
    if max_position_embeddings is not None:
        require_positive_number(max_position_embeddings=max_position_embeddings)
    fields = Fields(values or {}, max_position_embeddings)
    if fields.kind not in _READERS:
        raise ValueError(f"rope scaling type is {fields.kind!r}; it must be one of {', '.join(_READERS)}")
    law = _READERS[fields.kind](fields)
    fields.finish()
    return law


def read_rotary(
    values: Mapping[str, Any] | None, head_dim: int, max_position_embeddings: int | None
) -> tuple[int, float, RotaryScaling | None]:
    """(rotated dim, base, law) of a rope dict, or of a whole config that holds one."""
    _require_mapping(values)
    require_positive(dim=head_dim)
    flat, length = _rope_dict(values or {}, max_position_embeddings)
    law = read_scaling(flat, length)
    base, share = flat.get("rope_theta"), flat.get("partial_rotary_factor")
    base, share = 10000.0 if base is None else base, 1.0 if share is None else share
    require_positive_number(rope_theta=base, partial_rotary_factor=share)
    if share > 1:
        raise ValueError(f"partial_rotary_factor is {share}; it must be at most 1")
    dim = head_dim if isinstance(law, Proportional) else int(head_dim * share)
    return dim, float(base), None if law == RotaryScaling() else law


def _require_mapping(values: object) -> None:
    if values is not None and not isinstance(values, Mapping):
        raise TypeError(f"the rope dict is a {type(values).__name__}; it must be a dict, or None")


def _rope_dict(values: Mapping[str, Any], max_position_embeddings: int | None) -> tuple[dict[str, Any], int | None]:
    """`values`, or from a whole config its rope dict with what transformers 4 keeps beside it."""
    if "rope_parameters" not in values and "rope_scaling" not in values:
        return dict(values), max_position_embeddings
    beside = {name: values[name] for name in _CONFIG_KEYS if values.get(name) is not None}
    rope = values.get("rope_parameters") or values.get("rope_scaling") or {}
    if not rope or _kind(rope) in ("default", "linear", "ntk", "dynamic", "proportional"):
        beside.pop("original_max_position_embeddings", None)  # of no use to these
    elif "original_max_position_embeddings" in beside:
        rope = {**rope, "original_max_position_embeddings": beside["original_max_position_embeddings"]}
    return {**beside, **rope}, max_position_embeddings or values.get("max_position_embeddings")


def _kind(values: Mapping[str, Any]) -> str:
    new, old = values.get("rope_type"), values.get("type")
    names = {_ALIASES.get(name, name) for name in (new, old) if name is not None}
    if len(names) > 1:
        raise ValueError(f"rope_type is {new!r} and type is {old!r}; they must agree")
    if not names and set(values) - _SHARED_KEYS:
        raise ValueError(f"rope scaling lacks the key 'rope_type'; it holds {', '.join(sorted(values))}")
    return str(names.pop()) if names else "default"


def _number(fields: Fields, name: str, default: float | None = None) -> float:
    value = fields.need(name) if default is None else fields.get(name, default)
    require_positive_number(**{name: value})
    return float(value)


def _plain(fields: Fields) -> RotaryScaling:
    return RotaryScaling()


def _linear(fields: Fields) -> RotaryScaling:
    return Linear(_number(fields, "factor"))


def _ntk(fields: Fields) -> RotaryScaling:
    return MixedNTK(_number(fields, "factor"), _number(fields, "mixed_b", 1.0))


def _dynamic(fields: Fields) -> RotaryScaling:
    if fields.get("alpha"):
        # Hunyuan's: a fixed base; its configs list these five, which no implementation reads beside alpha.
        fields.read |= {"factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"}
        return NTK(_number(fields, "alpha"))
    written = fields.get("original_max_position_embeddings")
    length = fields.max_position_embeddings or written  # as transformers: the config's length comes first
    if length is None:
        raise ValueError("max_position_embeddings is not given; rope scaling of type 'dynamic' needs it")
    return DynamicNTK(_number(fields, "factor"), float(length))


def _yarn(fields: Fields) -> RotaryScaling:
    fields.read.add("finetuned")  # a note, without effect
    factor = fields.factor_or_ratio()
    fast, slow = fields.get("beta_fast") or 32, fields.get("beta_slow") or 1
    if fields.get("extrapolation_factor", 1) != 1:
        raise ValueError(f"extrapolation_factor is {fields.get('extrapolation_factor')}; only 1 is supported")
    truncate = fields.get("truncate", True)
    if not isinstance(truncate, bool):
        raise ValueError(f"truncate is {truncate!r}; it must be true or false")
    return Yarn(factor, fields.original_length(), fast, slow, _yarn_attention_factor(fields, factor), truncate)


def _yarn_attention_factor(fields: Fields, factor: float) -> float:
    """A given magnitude is used as given; else from `mscale` and `mscale_all_dim` where both are; else the paper's."""
    given, times = fields.get("attention_factor"), fields.get("attn_factor")
    mscale, mscale_all_dim = fields.get("mscale"), fields.get("mscale_all_dim")
    applies = fields.get("apply_yarn_scaling", True)
    if given is not None:
        if times is not None:
            raise ValueError("rope scaling has both 'attention_factor' and 'attn_factor'; one of them must go")
        return float(_number(fields, "attention_factor"))
    if not applies:
        magnitude = 1.0
    elif mscale and mscale_all_dim:
        magnitude = yarn_magnitude(factor, mscale) / yarn_magnitude(factor, mscale_all_dim)
    else:
        magnitude = yarn_magnitude(factor)
    return magnitude * _number(fields, "attn_factor", 1.0)  # vLLM's attn_factor multiplies


def _llama3(fields: Fields) -> RotaryScaling:
    low, high = _number(fields, "low_freq_factor"), _number(fields, "high_freq_factor")
    return Llama3(_number(fields, "factor"), fields.original_length(), low, high)


def _longrope(fields: Fields) -> RotaryScaling:
    short, long = fields.need("short_factor"), fields.need("long_factor")
    for name, factors in (("short_factor", short), ("long_factor", long)):
        if not isinstance(factors, list | tuple):
            raise ValueError(f"{name} is {factors!r}; it must be a list of numbers, one for each pair of channels")
    short_mscale, long_mscale = fields.get("short_mscale"), fields.get("long_mscale")
    if short_mscale != long_mscale:
        raise ValueError(
            f"short_mscale is {short_mscale} and long_mscale {long_mscale}; they must be equal, for a magnitude that "
            "changes with the length is not supported"
        )
    magnitude = fields.get("attention_factor", short_mscale)
    factor = fields.get("factor")
    if factor is None and magnitude is None:
        factor = fields.factor_or_ratio()
    return LongRoPE(tuple(short), tuple(long), fields.original_length(), factor, magnitude)


def _proportional(fields: Fields) -> RotaryScaling:
    return Proportional(fields.get("partial_rotary_factor", 1.0), _number(fields, "factor", 1.0))


_ALIASES = {"su": "longrope"}
_READERS: dict[str, Callable[[Fields], RotaryScaling]] = {
    "default": _plain,
    "linear": _linear,
    "dynamic": _dynamic,
    "ntk": _ntk,
    "yarn": _yarn,
    "llama3": _llama3,
    "longrope": _longrope,
    "proportional": _proportional,
}
