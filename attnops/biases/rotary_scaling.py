"""Laws that stretch rotary frequencies to longer texts, one class a law."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

Row = tuple[float, ...]


@dataclass(frozen=True)
class RotaryScaling:
    """How rotary frequencies θ_j, j = 0 … dim/2 - 1, change for texts longer than trained; itself, they do not change.

    Plain: θ_j = base^(-2j/dim). With factor s, trained length L₀ and current length L:

    - `linear(s)`: θ_j / s (Chen et al. 2023, arXiv:2306.15595).
    - `ntk(s)`: base · s^(dim/(dim-2)) in place of base (NTK-aware; bloc97 2023).
    - `ntk_by_parts(s, L₀)`: θ_j / s where a channel turns less than `beta_slow` times within L₀, θ_j where it turns
      more than `beta_fast` times, a line between (Peng et al. 2023, arXiv:2309.00071, §3.2).
    - `dynamic_ntk(s, L₀)`: base · (s·L/L₀ - (s - 1))^(dim/(dim-2)) once L > L₀.
    - `yarn(s, L₀)`: as `ntk_by_parts`, and cos and sin times a magnitude, 0.1·ln s + 1 unless given (arXiv:2309.00071).
    - `llama3(s, L₀)`: θ_j / s for waves longer than L₀/`low_freq_factor`, θ_j for those shorter than
      L₀/`high_freq_factor`, smooth between (Llama 3.1).
    - `longrope(short, long, L₀)`: θ_j / short_j up to length L₀, θ_j / long_j beyond, and a magnitude
      √(1 + ln s / ln L₀) unless given (Ding et al. 2024, arXiv:2402.13753).

    `dynamic_ntk` and `longrope` depend on the length, which is 1 + the largest position of the batch row, over queries
    and keys. `magnitude` multiplies cos and sin, so a query's and a key's once each.

    Raises:
        ValueError: a factor or length that is not positive, and the like, naming the argument.

    Example:
        >>> import attnops
        >>> attnops.RotaryScaling.yarn(4.0, original_length=4096).magnitude
        1.138629436111989
        >>> attnops.RotaryScaling.from_hf({"rope_type": "linear", "factor": 2.0}) == attnops.RotaryScaling.linear(2.0)
        True
    """

    @property
    def magnitude(self) -> float:
        """What cos and sin are multiplied by."""
        return 1.0

    def without_magnitude(self) -> RotaryScaling:
        """The same angles, with cos and sin as they are."""
        return self if self.magnitude == 1 else replace(self, attention_factor=1.0)  # type: ignore[call-arg]

    @property
    def depends_on_length(self) -> bool:
        """Whether rotated keys change as the text grows, so that a cache must hold them unrotated."""
        return False

    def rows(self, dim: int, base: float) -> tuple[Row, ...]:
        """The numbers that `inv_freq` combines, each row `dim/2` long; θ alone where nothing depends on the length."""
        return (plain(dim, base),)

    def inv_freq(self, rows: Tensor, length: Tensor | None) -> Tensor:
        """θ: `[dim/2]`, or `[B, dim/2]` for `length [B]`; `rows` as a tensor `[rows, dim/2]`."""
        return rows[0]

    @staticmethod
    def linear(factor: float) -> RotaryScaling:
        """θ_j / factor: positions interpolated."""
        return Linear(factor)

    @staticmethod
    def ntk(factor: float) -> RotaryScaling:
        """A larger base, so that the slowest channel is stretched by `factor` and the fastest not at all."""
        return NTK(factor)

    @staticmethod
    def ntk_by_parts(
        factor: float, original_length: float, beta_fast: float = 32, beta_slow: float = 1
    ) -> RotaryScaling:
        """Slow channels interpolated, fast ones kept: YaRN without its magnitude."""
        return Yarn(factor, original_length, beta_fast, beta_slow, attention_factor=1.0)

    @staticmethod
    def dynamic_ntk(factor: float, original_length: float) -> RotaryScaling:
        """`ntk` with a stretch that grows with the length."""
        return DynamicNTK(factor, original_length)

    @staticmethod
    def yarn(
        factor: float,
        original_length: float,
        beta_fast: float = 32,
        beta_slow: float = 1,
        attention_factor: float | None = None,
    ) -> RotaryScaling:
        """`ntk_by_parts` and a magnitude; `attention_factor` is used as given."""
        return Yarn(factor, original_length, beta_fast, beta_slow, attention_factor)

    @staticmethod
    def llama3(
        factor: float, original_length: float, low_freq_factor: float = 1, high_freq_factor: float = 4
    ) -> RotaryScaling:
        """Llama 3.1's: long waves interpolated, short ones kept, by wavelength."""
        return Llama3(factor, original_length, low_freq_factor, high_freq_factor)

    @staticmethod
    def longrope(
        short_factor: Sequence[float],
        long_factor: Sequence[float],
        original_length: float,
        factor: float | None = None,
        attention_factor: float | None = None,
    ) -> RotaryScaling:
        """A factor a channel, one list up to `original_length` and one beyond; without `factor`, no magnitude."""
        for name, factors in (("short_factor", short_factor), ("long_factor", long_factor)):
            if not isinstance(factors, Sequence) or isinstance(factors, str):
                raise TypeError(f"{name} is a {type(factors).__name__}; it must be a sequence of numbers")
        return LongRoPE(tuple(short_factor), tuple(long_factor), original_length, factor, attention_factor)

    @staticmethod
    def from_hf(values: Mapping[str, Any] | None, max_position_embeddings: int | None = None) -> RotaryScaling:
        """The law that a Hugging Face config or vLLM's `--rope-scaling` holds.

        Args:
            values: `rope_parameters` (transformers 5), `rope_scaling` (transformers 4) or None. Types `default`,
                `linear`, `dynamic`, `ntk` (vLLM's, with `mixed_b`), `yarn`, `llama3`, `longrope` (`su`) and
                `proportional`.
            max_position_embeddings: the config's, read where `values` lack the trained length or the factor.

        Raises:
            ValueError: an unknown type, or a key that is missing, unknown or of no use, naming it.
        """
        from attnops.biases.rotary_hf import read_scaling

        return read_scaling(values, max_position_embeddings)


@dataclass(frozen=True)
class Linear(RotaryScaling):
    """Position interpolation: θ_j / factor."""

    factor: float

    def __post_init__(self) -> None:
        require_positive_number(factor=self.factor)

    def rows(self, dim: int, base: float) -> tuple[Row, ...]:
        return (tuple(theta / self.factor for theta in plain(dim, base)),)


@dataclass(frozen=True)
class NTK(RotaryScaling):
    """NTK-aware: a larger base in place of longer waves."""

    factor: float

    def __post_init__(self) -> None:
        require_positive_number(factor=self.factor)

    def rows(self, dim: int, base: float) -> tuple[Row, ...]:
        changes = zip(plain(dim, base), base_powers(dim), strict=True)
        return (tuple(theta * self.factor**power for theta, power in changes),)


@dataclass(frozen=True)
class MixedNTK(RotaryScaling):
    """θ_j · exp(-ln s · ((j + 1)/(dim/2))^b): vLLM's `ntk`, with `mixed_b` as b (kexue.fm 9706)."""

    factor: float
    power: float = 1.0

    def __post_init__(self) -> None:
        require_positive_number(factor=self.factor, mixed_b=self.power)

    def rows(self, dim: int, base: float) -> tuple[Row, ...]:
        shares = [((j + 1) / (dim // 2)) ** self.power for j in range(dim // 2)]
        return (tuple(t * self.factor**-share for t, share in zip(plain(dim, base), shares, strict=True)),)


@dataclass(frozen=True)
class DynamicNTK(RotaryScaling):
    """NTK-aware with a base that grows with the length."""

    factor: float
    original_length: float

    def __post_init__(self) -> None:
        require_positive_number(factor=self.factor, original_length=self.original_length)

    @property
    def depends_on_length(self) -> bool:
        return True

    def rows(self, dim: int, base: float) -> tuple[Row, ...]:
        return plain(dim, base), base_powers(dim)

    def inv_freq(self, rows: Tensor, length: Tensor | None) -> Tensor:
        if length is None:
            return rows[0]
        stretch = self.factor * (length.to(rows.dtype) / self.original_length).clamp(min=1) - (self.factor - 1)
        return rows[0] * stretch.unsqueeze(-1) ** rows[1]


@dataclass(frozen=True)
class Yarn(RotaryScaling):
    """NTK by parts, with a magnitude of cos and sin."""

    factor: float
    original_length: float
    beta_fast: float = 32
    beta_slow: float = 1
    attention_factor: float | None = None
    truncate: bool = True  # whole channels as the ends of the ramp

    def __post_init__(self) -> None:
        require_positive_number(
            factor=self.factor, original_length=self.original_length, beta_fast=self.beta_fast, beta_slow=self.beta_slow
        )
        require_magnitude(self.attention_factor)
        if self.beta_fast < self.beta_slow:
            raise ValueError(f"beta_fast is {self.beta_fast}; it must be at least beta_slow, {self.beta_slow}")

    @property
    def magnitude(self) -> float:
        return yarn_magnitude(self.factor) if self.attention_factor is None else self.attention_factor

    def rows(self, dim: int, base: float) -> tuple[Row, ...]:
        low, high = self._channel(self.beta_fast, dim, base), self._channel(self.beta_slow, dim, base)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, dim - 1)
        if low == high:
            high += 0.001
        slowness = [min(max((j - low) / (high - low), 0.0), 1.0) for j in range(dim // 2)]  # 0 kept … 1 interpolated
        theta = zip(plain(dim, base), slowness, strict=True)
        return (tuple(t * (1 - slow) + t / self.factor * slow for t, slow in theta),)

    def _channel(self, turns: float, dim: int, base: float) -> float:
        """The (real) channel that turns so many times within the trained length."""
        return dim * math.log(self.original_length / (turns * 2 * math.pi)) / (2 * math.log(base))


@dataclass(frozen=True)
class Llama3(RotaryScaling):
    """Llama 3.1's blend of long and short waves."""

    factor: float
    original_length: float
    low_freq_factor: float = 1
    high_freq_factor: float = 4

    def __post_init__(self) -> None:
        require_positive_number(
            factor=self.factor,
            original_length=self.original_length,
            low_freq_factor=self.low_freq_factor,
            high_freq_factor=self.high_freq_factor,
        )
        if self.high_freq_factor < self.low_freq_factor:
            raise ValueError(
                f"high_freq_factor is {self.high_freq_factor}; it must be low_freq_factor, {self.low_freq_factor}, "
                "or more"
            )

    def rows(self, dim: int, base: float) -> tuple[Row, ...]:
        return (tuple(self._scaled(theta) for theta in plain(dim, base)),)

    def _scaled(self, theta: float) -> float:
        turns = self.original_length * theta / (2 * math.pi)
        width = self.high_freq_factor - self.low_freq_factor
        if width == 0:  # no waves between long and short (Llama 4 Scout)
            return theta if turns >= self.high_freq_factor else theta / self.factor
        smooth = min(max((turns - self.low_freq_factor) / width, 0.0), 1.0)
        return (1 - smooth) * theta / self.factor + smooth * theta


@dataclass(frozen=True)
class LongRoPE(RotaryScaling):
    """A factor a channel, one list for short texts and one for long."""

    short_factor: Row = field(repr=False)
    long_factor: Row = field(repr=False)
    original_length: float
    factor: float | None = None
    attention_factor: float | None = None

    def __post_init__(self) -> None:
        for name in ("short_factor", "long_factor"):
            for value in getattr(self, name):
                require_positive_number(**{name: value})
        if len(self.short_factor) != len(self.long_factor):
            counts = f"{len(self.short_factor)} and {len(self.long_factor)}"
            raise ValueError(f"short_factor and long_factor have {counts} numbers; they must have as many")
        require_positive_number(original_length=self.original_length)
        if self.factor is not None:
            require_positive_number(factor=self.factor)
        require_magnitude(self.attention_factor)
        if self.attention_factor is None and (self.factor or 1) > 1 and self.original_length <= 1:
            raise ValueError(f"original_length is {self.original_length}; it must exceed 1 for a magnitude from factor")

    @property
    def magnitude(self) -> float:
        if self.attention_factor is not None:
            return self.attention_factor
        if self.factor is None or self.factor <= 1:
            return 1.0
        return math.sqrt(1 + math.log(self.factor) / math.log(self.original_length))

    @property
    def depends_on_length(self) -> bool:
        return True

    def rows(self, dim: int, base: float) -> tuple[Row, ...]:
        if len(self.short_factor) != dim // 2:
            count = len(self.short_factor)
            raise ValueError(f"short_factor and long_factor have {count} numbers; they must have dim/2 = {dim // 2}")
        theta, lists = plain(dim, base), (self.short_factor, self.long_factor)
        return tuple(tuple(t / s for t, s in zip(theta, factors, strict=True)) for factors in lists)

    def inv_freq(self, rows: Tensor, length: Tensor | None) -> Tensor:
        if length is None:
            return rows[0]
        return torch.where(length.unsqueeze(-1) > self.original_length, rows[1], rows[0])


@dataclass(frozen=True)
class Proportional(RotaryScaling):
    """θ_j / s for the first `share` of the channels, and 0 for the rest (Hugging Face's `proportional`)."""

    share: float
    factor: float = 1.0

    def __post_init__(self) -> None:
        require_positive_number(factor=self.factor)

    def rows(self, dim: int, base: float) -> tuple[Row, ...]:
        turning = int(self.share * dim // 2)
        return (tuple(t / self.factor if j < turning else 0.0 for j, t in enumerate(plain(dim, base))),)


def plain(dim: int, base: float) -> Row:
    """θ_j = base^(-2j/dim)."""
    return tuple(base ** (-2 * j / dim) for j in range(dim // 2))


def base_powers(dim: int) -> Row:
    """-2j/(dim - 2): what θ_j is multiplied by, as a power of s, when base becomes base · s^(dim/(dim-2))."""
    return tuple(-2 * j / max(dim - 2, 1) for j in range(dim // 2))


def yarn_magnitude(factor: float, mscale: float = 1.0) -> float:
    """0.1 · mscale · ln factor + 1, and 1 where nothing is stretched."""
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def require_positive_number(**arguments: object) -> None:
    """Raise `ValueError` for an argument that is not a positive, finite number."""
    for name, value in arguments.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise ValueError(f"{name} is {value!r}; it must be a positive number")


def require_magnitude(attention_factor: object) -> None:
    """Raise `ValueError` for a magnitude that is given and not positive."""
    if attention_factor is not None:
        require_positive_number(attention_factor=attention_factor)
