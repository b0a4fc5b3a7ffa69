"""Torch's scaled_dot_product_attention: pattern and bias laid out once as a mask, or none where none is needed."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from attnops import lowering
from attnops.flash import flash
from attnops.pairs import Pairs
from attnops.problem import Call, Estimate, NotFiniteError, Problem, Result

FOLDED_ROWS = 16  # up to here, grouped heads share one call even under a mask
KEPT_MASKS, KEPT_BYTES = (
    32,
    1 << 20,
)  # masks of constant priors that are kept, where laying them out costs more than the call
_kept: dict[tuple[object, ...], Tensor] = {}


class Sdpa:
    """Torch's fused kernel. Causal and unmasked problems lay out no mask; grouped keys are not copied."""

    name = "sdpa"

    def needs_finite(self, problem: Problem) -> bool:
        return True

    def unavailable(self) -> str | None:
        return None

    def refuse(self, problem: Problem) -> list[str]:
        reasons = []
        if problem.score != "dot":
            reasons.append(f"torch's fused attention knows only the plain dot product, not {problem.score}")
        if problem.weights:
            reasons.append("torch's fused attention does not return weights")
        if problem.num_edges is not None and problem.unique_edges is not True:
            what = "which a dense mask cannot tell apart"
            if problem.unique_edges is None:
                reasons.append(
                    f"this edge list was not searched for duplicates, {what}; name the backend to have it searched"
                )
            else:
                reasons.append(f"this edge list holds duplicate edges, {what}")
        if problem.vmapped and problem.device == "cpu":
            reasons.append("under vmap torch runs its CPU kernel row by row; give the batch as leading axes instead")
        if problem.lse:
            if problem.device != "cpu":
                reasons.append(f"torch returns the lse only from its CPU kernel, not on {problem.device}")
            if problem.dim != problem.value_dim:
                reasons.append(f"torch returns the lse only where D = Dv, not {problem.dim} and {problem.value_dim}")
            if problem.dropout:
                reasons.append("torch's CPU kernel that returns the lse has no dropout")
            if problem.differentiated:
                reasons.append("torch.func's derivatives do not pass through the kernel that returns the lse")
        return reasons

    def estimate(self, problem: Problem) -> Estimate:
        masked = problem.forbids and not _is_bare(problem) and not _is_causal(problem)
        fused = problem.dim == problem.value_dim and not problem.dropout and (problem.lse or not problem.bias_grad)
        tables = problem.batch * (problem.heads if problem.biased else 1)
        cells = problem.num_queries * problem.num_keys * tables if masked else 0
        copies = 2 if problem.biased else 1
        laid_out = cells * problem.compute_bytes * copies * (2 if problem.bias_grad else 1)
        dense = 0 if fused else problem.pairs * problem.compute_bytes * (3 if problem.learns else 2)
        a_pair = problem.dim + problem.value_dim + (12 if fused else 120)
        pairs = problem.pairs // 2 if _is_causal(problem) else problem.pairs
        steps = pairs * a_pair * (3 if problem.learns else 1) + cells * 30 * copies
        return Estimate(laid_out + dense, steps)

    def run(self, call: Call) -> Result:
        problem = call.problem
        checked = not problem.forbids or problem.opaque or problem.learns
        result = _run(call, checked)
        if checked or lowering.all_finite(result.out):
            return result
        return _run(call, True)  # without a gradient, what garbage does shows in the output


def _run(call: Call, checked: bool) -> Result:
    query, key, value, mask, scale = call.query, call.key, call.value, None, call.scale
    causal = _is_causal(call.problem)
    if not causal and call.problem.forbids and not _is_bare(call.problem):
        mask = _mask(call)
        if checked:
            query, key, value = _without_garbage(call, mask)
    if causal and checked and not call.problem.opaque:
        _require_finite(key, value)
    if causal and scale <= 0:  # the kernel scales the -inf of its own causal mask, and -inf · 0 is NaN
        query, scale = (query * scale, 1.0) if scale == 0 else (-query, -scale)
    if call.problem.lse:
        return Result(*flash(query, key, value, mask, scale, causal))  # it reads grouped keys in place
    return Result(_grouped(query, key, value, mask, causal, scale, call.dropout))


def _require_finite(key: Tensor, value: Tensor) -> None:
    if not lowering.all_finite(key, value):
        raise NotFiniteError(
            "backend 'sdpa' met keys or values that are not finite where some query may attend them, another not"
        )


def _is_causal(problem: Problem) -> bool:
    """Whether the kernel's own causal flag, which aligns the first query with the first key, says what is meant."""
    return problem.causal and problem.num_queries == problem.num_keys


def _is_bare(problem: Problem) -> bool:
    """Whether nothing is forbidden after all: one query, aligned to the last key, sees all under Causal."""
    return not problem.forbids or (problem.causal and problem.num_queries == 1)


def _without_garbage(call: Call, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value with zeros in the rows that nobody attends or that attend nobody."""
    query, key, value = call.query, call.key, call.value
    if call.problem.opaque or not lowering.all_finite(query, key, value):
        possible = mask.detach() != float("-inf")
        key, value = lowering.without_garbage(possible, key, value)
        query = lowering.without_dead_queries(possible, query)
        if not call.problem.opaque:
            _require_finite(key, value)
    return query, key, value


def _mask(call: Call) -> Tensor:
    """The mask, or the one that was laid out before for the same constants and sizes."""
    constants = _constants(call)
    if constants in _kept:
        return _kept[constants]
    num_queries, num_keys = call.query.shape[2], call.key.shape[2]
    pairs = call.block(slice(0, num_queries), slice(0, num_keys))
    allowed, bias = lowering.evaluate(call, pairs, _allowed(call, pairs))
    if bias is None:
        assert allowed is not None
        bias = torch.zeros((), dtype=call.compute_dtype, device=call.query.device)
    if allowed is not None and bias.numel() * bias.element_size() <= KEPT_BYTES:
        bias = bias.contiguous()  # a table is read heads last; in order, the two steps that follow take half the time
    mask = bias if allowed is None else torch.where(allowed, bias, float("-inf"))
    mask = mask.expand(*mask.shape[:2], num_queries, num_keys)
    if constants is not None:
        _keep(constants, mask)
    return mask


def _keep(constants: tuple[object, ...], mask: Tensor) -> None:
    if mask.numel() * mask.element_size() <= KEPT_BYTES:
        if len(_kept) >= KEPT_MASKS:
            _kept.clear()
        _kept[constants] = mask


def _allowed(call: Call, pairs: Pairs) -> Tensor | None:
    """What a pattern of constants allows beside a bias that is none, laid out once; None where it must be asked."""
    sides = call.coords
    if call.problem.opaque or torch.is_inference_mode_enabled() or any("position" in side for side in sides):
        return None
    if call.bias is None or not lowering.forbids(call) or call.pattern.constants is None:
        return None
    place = ("allowed", call.pattern.constants, sides[0].offset, sides[1].offset, *pairs.shape[2:], call.query.device)
    if place not in _kept:
        allowed = lowering.allows(call, pairs)
        assert allowed is not None
        _keep(place, allowed)
        return allowed
    return _kept[place]


def _constants(call: Call) -> tuple[object, ...] | None:
    """What determines the mask, where pattern and bias are constants over positions that were not given."""
    p = call.problem
    if p.opaque or torch.is_inference_mode_enabled() or call.coords[0].names or call.coords[1].names:
        return None
    pattern, bias = call.pattern.constants, () if call.bias is None else call.bias.constants
    if pattern is None or bias is None:
        return None
    return (pattern, bias, p.heads, p.num_queries, p.num_keys, call.compute_dtype, call.query.device)


def _grouped(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, scale: float, dropout: float
) -> Tensor:
    """One call, or one a query of the group, so that no key is copied."""
    heads, kv_heads = query.shape[1], key.shape[1]
    group = heads // kv_heads
    fused = query.device.type == "cpu" and query.shape[-1] == value.shape[-1] and dropout == 0
    if group == 1 or (fused and (mask is None or not mask.requires_grad)):  # the kernel reads grouped keys in place
        return F.scaled_dot_product_attention(
            query, key, value, mask, dropout, causal, scale=scale, enable_gqa=group > 1
        )
    rows = query.shape[2]
    if not causal and (mask is None or rows <= FOLDED_ROWS):
        if mask is not None:
            mask = mask.expand(mask.shape[0], heads, *mask.shape[2:]).reshape(mask.shape[0], kv_heads, group * rows, -1)
        folded = lowering.group_query(query, kv_heads)
        out = F.scaled_dot_product_attention(folded, key, value, mask, dropout, scale=scale)
        return lowering.ungroup(out, heads)
    parts = [
        F.scaled_dot_product_attention(
            query[:, member::group],
            key,
            value,
            mask if mask is None or mask.shape[1] == 1 else mask[:, member::group],
            dropout,
            causal,
            scale=scale,
        )
        for member in range(group)
    ]
    return torch.stack(parts, 2).flatten(1, 2)
