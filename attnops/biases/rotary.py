"""Rotary positions: queries and keys turn by an angle that grows with position, so that scores see differences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from attnops.biases.base import Bias
from attnops.biases.gaps import wide
from attnops.biases.precision import accumulation_dtype
from attnops.biases.rotary_scaling import RotaryScaling, require_positive_number
from attnops.checks import require_flag
from attnops.coords import Coords, is_concrete

KEPT_ANGLES, KEPT_TABLES = 1 << 18, 4  # positions times channels of a table that is kept, and how many are


class Rotary(Bias):
    """Pair j of channels turns by p·θ_j, θ_j = base^(-2j/dim): q_i·k_j then depends on p_i - p_j alone.

        (x₁, x₂) → (x₁·cos - x₂·sin, x₂·cos + x₁·sin) · magnitude

    Positions are integers or reals. Angles are float32 at least (float64 for float64 vectors or positions), whatever
    the dtype of the vectors and under autocast, and the turned vectors are rounded once, to their own dtype. The module
    holds no tensors, so casting it changes nothing.

    Args:
        dim: the channels that turn, the first of D; even.
        base: the slowest wave is about 2π·base positions long.
        scaling: a `RotaryScaling`, for texts longer than trained.
        interleaved: pairs are channels (2j, 2j + 1), as in GPT-J; else (j, j + dim/2), as in GPT-NeoX and Llama. The
            layouts differ by a permutation of channels, which a model's weights carry.

    Raises:
        ValueError: dim that is odd, not positive or above D; a base of 1 or less; a scaling that does not fit dim.

    Source: Su et al. 2021, arXiv:2104.09864.

    Example:
        >>> import torch, attnops
        >>> x = torch.randn(2, 5, 8)                                              # [H, N, D]
        >>> attnops.attend(x, x, x, bias=attnops.Rotary(8)).shape
        torch.Size([2, 5, 8])
        >>> here, later = (attnops.Coords(position=torch.arange(5) + start) for start in (0, 100))
        >>> torch.allclose(attnops.attend(x, x, x, bias=attnops.Rotary(8), coords=here),
        ...                attnops.attend(x, x, x, bias=attnops.Rotary(8), coords=later), atol=1e-4)
        True
    """

    def __init__(
        self, dim: int, base: float = 10000.0, scaling: RotaryScaling | None = None, interleaved: bool = False
    ) -> None:
        super().__init__()
        if isinstance(dim, bool) or not isinstance(dim, int) or dim < 2 or dim % 2:
            raise ValueError(f"dim is {dim!r}; it must be a positive even integer, for channels turn in pairs")
        require_positive_number(base=base)
        require_flag(interleaved=interleaved)
        if base <= 1:
            raise ValueError(f"base is {base}; it must exceed 1")
        if scaling is not None and not isinstance(scaling, RotaryScaling):
            raise TypeError(f"scaling is {type(scaling).__name__}; it must be a RotaryScaling, or None")
        self.dim, self.base, self.scaling, self.interleaved = dim, base, scaling, interleaved
        self._law = scaling or RotaryScaling()
        self._rows = self._law.rows(dim, base)
        self._kept: dict[tuple[torch.device, torch.dtype], Tensor] = {}
        self._turned: list[tuple[Tensor, torch.dtype, tuple[Tensor, Tensor]]] = []

    @staticmethod
    def from_hf(
        rope_dict: Mapping[str, Any] | None,
        dim: int,
        max_position_embeddings: int | None = None,
        interleaved: bool = False,
    ) -> Rotary:
        """The rotary embedding that a Hugging Face config describes.

        Args:
            rope_dict: `rope_parameters` of transformers 5, which holds `rope_theta` and `partial_rotary_factor`; or a
                whole config as a dict, with `rope_theta`, `rope_scaling` and so on, as transformers 4 writes it.
            dim: D, the head's dimension; `int(dim * partial_rotary_factor)` channels turn.
            max_position_embeddings: the config's; see `RotaryScaling.from_hf`.

        Raises:
            ValueError: an unknown type, or a key that is missing, unknown or of no use, naming it.

        Example:
            >>> import attnops
            >>> attnops.Rotary.from_hf({"rope_theta": 1e6, "partial_rotary_factor": 0.5}, dim=64)
            Rotary(dim=32, base=1000000.0, scaling=None, interleaved=False)
        """
        from attnops.biases.rotary_hf import read_rotary

        rotated, base, scaling = read_rotary(rope_dict, dim, max_position_embeddings)
        return Rotary(rotated, base, scaling, interleaved)

    @property
    def depends_on_length(self) -> bool:
        """Whether rotated keys change as the text grows, so that a cache must hold them unrotated."""
        return self._law.depends_on_length

    def rotate(self, query: Tensor, key: Tensor, coords: tuple[Coords, Coords]) -> tuple[Tensor, Tensor]:
        """Query `[B, H, Nq, D]` and key `[B, Hkv, Nk, D]`, turned by their positions, `[N]` or `[B or 1, N]`."""
        of_query, of_key = (side.data["position"] for side in coords)
        length = longest(of_query, of_key) if self.depends_on_length else None
        return self.turn(query, of_query, length), self.turn(key, of_key, length)

    def turn(self, vectors: Tensor, position: Tensor, length: Tensor | None = None) -> Tensor:
        """`vectors [B, H, N, D]` turned by `position`, `[N]` or `[B or 1, N]`; `length [B or 1]` where it matters."""
        if vectors.shape[-1] < self.dim:
            raise ValueError(f"dim is {self.dim}; it must be at most D = {vectors.shape[-1]} of query and key")
        position = position if position.ndim > 1 else position.unsqueeze(0)
        return turn_by(vectors, *self._tables(position, length, accumulation_dtype(vectors)), self.interleaved)

    def _tables(self, position: Tensor, length: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """`turning_waves` `[B or 1, 1, N, dim]`; small ones are kept, where evaluating them is dear."""
        small = length is None and position.numel() * self.dim <= KEPT_ANGLES and position.device.type == "cpu"
        if not small or position.requires_grad or not is_concrete(position):
            return self._turning(position, length, dtype)
        for known, of, tables in self._turned:
            if of == dtype and known.dtype == position.dtype and torch.equal(known, position):
                return tables
        with torch.inference_mode(False):
            known = position.clone()
            tables = self._turning(known, None, dtype)
        if all(is_concrete(table) for table in tables):
            self._turned = [(known, dtype, tables), *self._turned[: KEPT_TABLES - 1]]
        return tables

    def _turning(self, position: Tensor, length: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        cos, sin = self.turning_waves(position, length, dtype)
        return cos.unsqueeze(1).to(dtype), sin.unsqueeze(1).to(dtype)

    def turning_waves(
        self, position: Tensor, length: Tensor | None = None, dtype: torch.dtype = torch.float32
    ) -> tuple[Tensor, Tensor]:
        """`waves` of both channels of every pair, `[…, N, dim]`: cos, and sin with a minus at the first of a pair."""
        cos, sin = self.waves(position, length, dtype)
        if self.interleaved:
            return torch.stack((cos, cos), -1).flatten(-2), torch.stack((-sin, sin), -1).flatten(-2)
        return torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)

    def waves(
        self, position: Tensor, length: Tensor | None = None, dtype: torch.dtype = torch.float32
    ) -> tuple[Tensor, Tensor]:
        """cos and sin of the angles, times the magnitude, `[…, N, dim/2]` for `position […, N]`; `dtype` at least."""
        if position.is_floating_point():
            dtype = torch.promote_types(position.dtype, dtype)  # timestamps keep their precision
        theta = self._law.inv_freq(self._constants(position, dtype), length)
        angle = position.to(dtype).unsqueeze(-1) * (theta.unsqueeze(-2) if theta.ndim > 1 else theta)
        return angle.cos() * self._law.magnitude, angle.sin() * self._law.magnitude

    def inv_freq(
        self,
        length: Tensor | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> Tensor:
        """θ `[dim/2]`; `[B, dim/2]` for a law that depends on `length [B]`."""
        return self._law.inv_freq(torch.tensor(self._rows, dtype=dtype, device=device), length)

    def _constants(self, position: Tensor, dtype: torch.dtype) -> Tensor:
        """The law's numbers, beside `position`; kept where nothing is traced, since a copy to a GPU waits."""
        device = position.device
        if not is_concrete(position) or torch.is_inference_mode_enabled():
            return torch.tensor(self._rows, dtype=dtype, device=device)
        kept = self._kept.get((device, dtype))
        if kept is None:
            kept = torch.tensor(self._rows, dtype=dtype, device=device)
            if is_concrete(kept):
                self._kept[device, dtype] = kept
        return kept

    def extra_repr(self) -> str:
        return f"dim={self.dim}, base={self.base}, scaling={self.scaling}, interleaved={self.interleaved}"


def turn_by(vectors: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """The first channels of `vectors [.., D]` turned by `Rotary.turning_waves`, `[.., dim]`, rounded once."""
    dim = cos.shape[-1]
    wide = (vectors if dim == vectors.shape[-1] else vectors[..., :dim]).to(cos.dtype)
    if interleaved:
        partner = torch.unflatten(wide, -1, (-1, 2)).flip(-1).flatten(-2)
    else:
        partner = wide.roll(dim // 2, -1)
    out = torch.addcmul(wide * cos, partner, sin).to(vectors.dtype)
    return out if dim == vectors.shape[-1] else torch.cat((out, vectors[..., dim:]), -1)


def longest(*positions: Tensor) -> Tensor:
    """`[B or 1]`: 1 + the largest position of each batch row, over all that are given as `[N]` or `[B or 1, N]`."""
    largest = [wide(position.amax(-1), torch.float32) for position in positions if position.shape[-1]]
    if not largest:
        return positions[0].new_zeros(1)
    length = largest[0] + 1
    for other in largest[1:]:
        length = torch.maximum(length, other + 1)
    return length if length.ndim else length.unsqueeze(0)
