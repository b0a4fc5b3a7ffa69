"""Linear attention: feature maps instead of the softmax, so that a state of fixed size replaces all past keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple, overload

import torch
from torch import Tensor
from torch.nn.functional import pad

from attnops.checks import require_flag
from attnops.coords import is_concrete

FeatureMap = Callable[[Tensor], Tensor]
CHUNK = 64  # pairs are laid out inside a chunk alone: memory is linear in N


class LinearState(NamedTuple):
    """What linear attention remembers of all past keys.

    Attributes:
        matrix: `[*B, H, F, Dv]`, Σ_j φ(k_j) v_jᵀ, each term decayed since; float32 at least. H are the key's heads, or
            the query's where `decay` differs between query heads that share a key head.
        normalizer: `[*B, H, F]`, Σ_j φ(k_j), decayed likewise.
    """

    matrix: Tensor
    normalizer: Tensor


@overload
def linear_attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    feature_map: str | FeatureMap | None = "elu",
    causal: bool = False,
    decay: float | Tensor | None = None,
    key_mask: Tensor | None = None,
    state: LinearState | None = None,
    return_state: Literal[False] = False,
    normalize: bool | None = None,
) -> Tensor: ...


@overload
def linear_attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    feature_map: str | FeatureMap | None = "elu",
    causal: bool = False,
    decay: float | Tensor | None = None,
    key_mask: Tensor | None = None,
    state: LinearState | None = None,
    *,
    return_state: Literal[True],
    normalize: bool | None = None,
) -> tuple[Tensor, LinearState]: ...


@overload
def linear_attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    feature_map: str | FeatureMap | None = "elu",
    causal: bool = False,
    decay: float | Tensor | None = None,
    key_mask: Tensor | None = None,
    state: LinearState | None = None,
    return_state: bool = False,
    normalize: bool | None = None,
) -> Tensor | tuple[Tensor, LinearState]: ...


def linear_attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    feature_map: str | FeatureMap | None = "elu",
    causal: bool = False,
    decay: float | Tensor | None = None,
    key_mask: Tensor | None = None,
    state: LinearState | None = None,
    return_state: bool = False,
    normalize: bool | None = None,
) -> Tensor | tuple[Tensor, LinearState]:
    """Attention whose similarity is φ(q_i)·φ(k_j), in time and memory linear in N.

        S_t = decay_t · S_{t-1} + φ(k_t) v_tᵀ       z_t = decay_t · z_{t-1} + φ(k_t)
        out_t = φ(q_t) S_t / (φ(q_t)·z_t)

    Causal queries read the state of their own step; the others read that of the last. A denominator of zero gives a row
    of zeros; a key or value that is not finite is not kept from earlier steps of its chunk, unless it is masked. The
    state may be carried from call to call: however a sequence is cut, outputs and final state are those
    of one pass. A masked step leaves the state as it was, without decay, and what its key and value hold reaches no
    output and no gradient. A decay of 1 is no decay. Products of decays are taken as exponentials of sums, never
    divided by, so long sequences and small decays neither overflow nor divide by zero. Sums are in float32 at least.

    Args:
        query: `[*B, H, N, D]`; `[H, N, D]` without a batch.
        key: `[*B, Hkv, Nk, D]`, H a multiple of Hkv; causal needs Nk = N, earlier keys come in as `state`.
        value: `[*B, Hkv, Nk, Dv]`.
        feature_map: `"elu"` (elu + 1), `"relu"`, `"identity"` or None, or a function of `[…, D]` to `[…, F]`.
        causal: whether step t hears steps up to t alone.
        decay: of causal attention: a number, `[H]`, or a tensor that broadcasts to `[*B, H, N]` (a gate; Hkv heads
            serve too), in (0, 1].
        key_mask: bool `[*B, Nk]`, True = real.
        state: what an earlier call returned; None is the zero state.
        return_state: also return the state after the last step.
        normalize: whether to divide by φ(q_t)·z_t. None: yes, unless the feature map is the identity (a function that
            returns its very argument counts as such), whose products may have either sign and cancel: that is gated
            linear attention, out_t = q_t S_t.

    Returns:
        `[*B, H, N, Dv]` in the query's dtype; with `return_state` a pair of it and a `LinearState`.

    Raises:
        ValueError: shapes, heads or devices that do not fit; an unknown feature map; a decay that is not causal or not
            in (0, 1] (read outside tracing, on a CPU).
        TypeError: dtypes that differ or are not real; a mask that is not bool; a state that is not a `LinearState`.

    Source: Katharopoulos et al., "Transformers are RNNs", ICML 2020; gates as in Yang et al., "Gated Linear Attention
    Transformers with Hardware-Efficient Training", ICML 2024.

    Example:
        >>> import torch, attnops
        >>> x = torch.randn(2, 5, 4)                                                  # [H, N, D]
        >>> whole = attnops.linear_attend(x, x, x, causal=True, decay=0.9)
        >>> _, state = attnops.linear_attend(*[x[:, :3]] * 3, causal=True, decay=0.9, return_state=True)
        >>> rest = attnops.linear_attend(*[x[:, 3:]] * 3, causal=True, decay=0.9, state=state)
        >>> torch.allclose(rest, whole[:, 3:], atol=1e-6)
        True
    """
    require_flag(causal=causal, return_state=return_state)
    _check_vectors(query, key, value, causal)
    batch, heads, key_heads, length = query.shape[:-3], query.shape[-3], key.shape[-3], key.shape[-2]
    groups = heads // key_heads
    dtype = torch.promote_types(query.dtype, torch.float32)

    # Heads are split into [Hkv, G]: G query heads read one key head, which broadcasts.
    real = None if key_mask is None else _read_mask(key_mask, batch, length)
    if real is not None:
        key, value = torch.where(real, key, 0), torch.where(real, value, 0)
    phi_query, phi_key, is_identity = _apply_feature_map(feature_map, query, key, dtype)
    if real is not None:
        phi_key = torch.where(real, phi_key, 0)  # φ(0) need not be 0
    phi_query = torch.unflatten(phi_query, -3, (key_heads, groups))
    phi_key, values = phi_key.unsqueeze(-3), value.to(dtype).unsqueeze(-3)
    log_decay = None
    if decay is not None:
        if not causal:
            raise ValueError("decay was given without causal=True; only an order of steps can decay")
        log_decay = _read_decay(decay, (*batch, heads, length), key_heads, dtype, query.device, real)
    state_heads = key_heads * (1 if log_decay is None else log_decay.shape[-2])
    start = _read_state(state, (*batch, state_heads, phi_key.shape[-1], value.shape[-1]), key_heads, dtype, query)

    with torch.autocast(query.device.type, enabled=False):
        run = _run_all if not causal else _run_step if length == 1 else _run_chunks
        summed, total, end = run(phi_query, phi_key, values, log_decay, start)
        if normalize if normalize is not None else not is_identity:
            nothing = total == 0
            summed = torch.where(nothing, 0, summed / torch.where(nothing, 1, total))
    out = summed.flatten(-4, -3).to(query.dtype)
    if not return_state:
        return out
    return out, LinearState(end.matrix.flatten(-4, -3), end.normalizer.flatten(-3, -2))


# Below: query [*B, Hkv, G, N, F], key and value [*B, Hkv, 1, N, ·], log_decay [*B, Hkv, 1 or G, N], state likewise.
# Each returns φ(q) S `[*B, Hkv, G, N, Dv]`, φ(q)·z `[*B, Hkv, G, N, 1]` and the last state.
Run = tuple[Tensor, Tensor, LinearState]


def _run_all(query: Tensor, key: Tensor, value: Tensor, _: Tensor | None, state: LinearState) -> Run:
    """Every query reads the state after every key."""
    end = LinearState(state.matrix + key.transpose(-1, -2) @ value, state.normalizer + key.sum(-2))
    return query @ end.matrix, query @ end.normalizer.unsqueeze(-1), end


def _run_step(query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor | None, state: LinearState) -> Run:
    """One step of the recurrence."""
    if log_decay is not None:
        kept = log_decay.exp()
        state = LinearState(kept.unsqueeze(-1) * state.matrix, kept * state.normalizer)
    return _run_all(query, key, value, None, state)


def _run_chunks(query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor | None, state: LinearState) -> Run:
    """Pairs inside each chunk at once, and what came before it through the state at its start."""
    length = key.shape[-2]
    size = min(CHUNK, max(1, length))
    fill = -length % size  # steps of no key and no decay change nothing

    def chunked(tensor: Tensor) -> Tensor:
        """`[…, N, D]` to `[…, n, C, D]`."""
        return torch.unflatten(pad(tensor, (0, 0, 0, fill)), -2, ((length + fill) // size, size))

    query, key, value = chunked(query), chunked(key), chunked(value)
    within = torch.ones(size, size, dtype=torch.bool, device=query.device).tril()
    scores = torch.where(within, torch.einsum("...gnif,...gnjf->...gnij", query, key), 0)
    ending, since, kept = key, query, None
    if log_decay is not None:
        steps = chunked(log_decay.unsqueeze(-1))
        # Entry i, j is the sum over steps j+1 … i, summed as such: a difference of running sums would lose its digits.
        later = torch.where(within.tril(-1), steps, 0).cumsum(-2)
        passed = torch.where(within, later, -torch.inf).exp()
        scores = scores * passed
        ending = key * passed[..., -1, :].unsqueeze(-1)
        from_start = steps.cumsum(-2).exp()
        since = query * from_start
        kept = from_start[..., -1, :]
    added = LinearState(ending.transpose(-1, -2) @ value, ending.sum(-2))
    starts, end = _scan(added, kept, state)
    summed = torch.einsum("...gnij,...gnje->...gnie", scores, value) + since @ starts.matrix
    total = scores.sum(-1, keepdim=True) + since @ starts.normalizer.unsqueeze(-1)
    return summed.flatten(-3, -2)[..., :length, :], total.flatten(-3, -2)[..., :length, :], end


def _scan(added: LinearState, kept: Tensor | None, state: LinearState) -> tuple[LinearState, LinearState]:
    """The state at the start of each chunk `[…, n, ·]` and after the last, from what each adds and keeps."""
    if kept is None:
        matrices = torch.cat([state.matrix.unsqueeze(-3), added.matrix], -3).cumsum(-3)
        normalizers = torch.cat([state.normalizer.unsqueeze(-2), added.normalizer], -2).cumsum(-2)
        starts = LinearState(matrices[..., :-1, :, :], normalizers[..., :-1, :])
        return starts, LinearState(matrices[..., -1, :, :], normalizers[..., -1, :])
    found = [state]
    for matrix, normalizer, keep in zip(
        added.matrix.unbind(-3), added.normalizer.unbind(-2), kept.unbind(-2), strict=True
    ):
        last = found[-1]
        found.append(LinearState(keep.unsqueeze(-1) * last.matrix + matrix, keep * last.normalizer + normalizer))
    if len(found) == 1:
        return LinearState(added.matrix, added.normalizer), state
    starts = LinearState(
        torch.stack([each.matrix for each in found[:-1]], -3), torch.stack([each.normalizer for each in found[:-1]], -2)
    )
    return starts, found[-1]


# ---------------------------------------------------------------------------------------------------- arguments
def _apply_feature_map(
    feature_map: str | FeatureMap | None, query: Tensor, key: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor, bool]:
    """φ(query) and φ(key) in `dtype`, and whether φ is the identity."""
    if feature_map is None or feature_map == "identity":
        return query.to(dtype), key.to(dtype), True
    if feature_map == "elu":
        return _elu_plus_one(query.to(dtype)), _elu_plus_one(key.to(dtype)), False
    if feature_map == "relu":
        return query.to(dtype).relu(), key.to(dtype).relu(), False
    if isinstance(feature_map, str):
        raise ValueError(f"feature_map is {feature_map!r}; it must be 'elu', 'relu', 'identity' or a function")
    if not callable(feature_map):
        raise TypeError(f"feature_map is {type(feature_map).__name__}; it must be a name, a function or None")
    mapped = feature_map(query), feature_map(key)
    for before, after, name in zip((query, key), mapped, ("query", "key"), strict=True):
        if after.shape[:-1] != before.shape[:-1] or after.shape[-1] != mapped[0].shape[-1]:
            raise ValueError(
                f"feature_map makes {list(after.shape)} of the {name} {list(before.shape)}; it may change the last "
                "axis alone, and of both alike"
            )
    return mapped[0].to(dtype), mapped[1].to(dtype), mapped[0] is query


def _elu_plus_one(x: Tensor) -> Tensor:
    """elu(x) + 1, which written so would be 0 below -17 in float32."""
    return torch.where(x > 0, x + 1, x.clamp(max=0).exp())


def _check_vectors(query: Tensor, key: Tensor, value: Tensor, causal: bool) -> None:
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name} is {type(tensor).__name__}; it must be a tensor [*B, H, N, D]")
        if tensor.layout != torch.strided:
            raise TypeError(f"{name} is {tensor.layout}; it must be a strided tensor [*B, H, N, D]")
        if not tensor.is_floating_point() or tensor.dtype != query.dtype:
            raise TypeError(f"{name} is {tensor.dtype}; query, key and value must share one real dtype ({query.dtype})")
        if tensor.ndim < 3 or tensor.shape[:-3] != query.shape[:-3]:
            raise ValueError(f"{name} has shape {list(tensor.shape)}; it must be [*B, H, N, D] with query's batch")
        if tensor.device != query.device:
            raise ValueError(f"{name} lies on {tensor.device}; it must lie on {query.device}, as query does")
    if key.shape[-1] != query.shape[-1]:
        raise ValueError(f"key has {key.shape[-1]} features; it must have {query.shape[-1]}, as query has")
    if key.shape[-3] == 0 or query.shape[-3] % key.shape[-3]:
        raise ValueError(f"query has {query.shape[-3]} heads; it must be a multiple of the {key.shape[-3]} of key")
    if value.shape[-3:-1] != key.shape[-3:-1]:
        raise ValueError(
            f"value has [H, N] = {list(value.shape[-3:-1])}; it must have {list(key.shape[-3:-1])}, as key"
        )
    if causal and key.shape[-2] != query.shape[-2]:
        raise ValueError(
            f"key has {key.shape[-2]} steps; with causal=True it must have {query.shape[-2]}, as query has (earlier "
            "keys come in as state)"
        )


def _read_mask(key_mask: Tensor, batch: torch.Size, length: int) -> Tensor:
    """`[*B, 1, Nk, 1]`, True = real."""
    if not isinstance(key_mask, Tensor) or key_mask.dtype != torch.bool:
        kind = key_mask.dtype if isinstance(key_mask, Tensor) else type(key_mask).__name__
        raise TypeError(f"key_mask is {kind}; it must be a bool tensor [*B, Nk], True = real")
    if not _broadcasts(key_mask.shape, (*batch, length)):
        raise ValueError(
            f"key_mask has shape {list(key_mask.shape)}; it must broadcast to {[*batch, length]} = [*B, Nk]"
        )
    return key_mask.expand(*batch, length).unsqueeze(-1).unsqueeze(-3)


def _read_decay(
    decay: float | Tensor,
    full: tuple[int, ...],
    key_heads: int,
    dtype: torch.dtype,
    device: torch.device,
    real: Tensor | None,
) -> Tensor:
    """The logarithm `[*B, Hkv, 1 or G, N]`, 0 at masked steps."""
    heads = full[-2]
    gate = torch.as_tensor(decay, dtype=dtype, device=None if isinstance(decay, Tensor) else device)
    if gate.device != device:
        raise ValueError(f"decay lies on {gate.device}; it must lie on {device}, as query does")
    if gate.ndim < 2:
        gate = gate.reshape(-1, 1)
    if not any(_broadcasts(gate.shape, (*full[:-2], count, full[-1])) for count in (heads, key_heads)):
        raise ValueError(
            f"decay has shape {list(decay.shape) if isinstance(decay, Tensor) else []}; it must be a number, [H] or "
            f"broadcast to {list(full)} = [*B, H, N]"
        )
    if real is not None:
        gate = torch.where(real.squeeze(-1), gate, 1)
    if is_concrete(gate) and gate.device.type == "cpu" and gate.numel() and not bool(((gate > 0) & (gate <= 1)).all()):
        raise ValueError(f"decay runs from {float(gate.min())} to {float(gate.max())}; it must be in (0, 1]")
    by_query_head = gate.shape[-2] == heads and heads != key_heads and heads != 1
    gate = gate.expand(*full[:-2], heads if by_query_head else key_heads, full[-1])
    # A gate that underflowed to 0 while traced acts as the smallest number there is, with a finite logarithm.
    gate = gate.clamp(min=torch.finfo(dtype).tiny)
    return torch.unflatten(gate.log(), -2, (key_heads, -1))


def _read_state(
    state: LinearState | None, full: tuple[int, ...], key_heads: int, dtype: torch.dtype, query: Tensor
) -> LinearState:
    """The state split into `[*B, Hkv, 1 or G, F, Dv]` and `[*B, Hkv, 1 or G, F]`."""
    split = (key_heads, full[-3] // key_heads)
    if state is None:
        shape = (*full[:-3], *split, *full[-2:])
        return LinearState(query.new_zeros(shape, dtype=dtype), query.new_zeros(shape[:-1], dtype=dtype))
    if not isinstance(state, LinearState):
        raise TypeError(f"state is {type(state).__name__}; it must be a LinearState, as return_state=True returns")
    for name, tensor, shape in (("matrix", state.matrix, full), ("normalizer", state.normalizer, full[:-1])):
        if tensor.shape != shape:
            raise ValueError(f"state.{name} has shape {list(tensor.shape)}; it must be {list(shape)}")
        if tensor.device != query.device:
            raise ValueError(f"state.{name} lies on {tensor.device}; it must lie on {query.device}, as query does")
    return LinearState(
        torch.unflatten(state.matrix.to(dtype), -3, split), torch.unflatten(state.normalizer.to(dtype), -2, split)
    )


def _broadcasts(shape: torch.Size | tuple[int, ...], full: tuple[int, ...]) -> bool:
    """Whether a tensor of `shape` expands to `full`."""
    return len(shape) <= len(full) and all(a in (1, b) for a, b in zip(reversed(shape), reversed(full), strict=False))
