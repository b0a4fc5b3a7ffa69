"""The backward of one block of keys, where out and lse over all blocks are known: no forward of the block is needed."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from attnops import lowering
from attnops.arguments import read_arguments
from attnops.block_terms import told
from attnops.kernels import library
from attnops.kernels.block_attention import block_attention_backward
from attnops.planner import DEFAULT_BUDGET
from attnops.problem import Call
from attnops.scores.dot import DotProduct


def block_gradients(
    arguments: dict[str, Any],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    state: tuple[Tensor, Tensor],
    upstream: tuple[Tensor, Tensor | None],
) -> tuple[Tensor, Tensor, Tensor] | None:
    """Gradients of query, key and value by the compiled kernel; None where it does not know the call.

    With weights exp(logits - lse) and δ = rowsum(dout ∘ out), the gradient of a logit is the same whichever block it
    stands in (Dao 2023, arXiv:2307.08691, and Liu et al. 2023 for the ring).

    Args:
        arguments: of `attend`, for this block; nothing in them learns.
        state: `out` and `lse` of these queries over all keys. upstream: their gradients.
    """
    score, bias = arguments["score"], arguments["bias"]
    if query.device.type != "cpu" or library.unavailable() is not None:
        return None
    if not (score is None or type(score) is DotProduct) or (bias is not None and (bias.binds or bias.rotates)):
        return None
    a = read_arguments(
        query, key, value, arguments["pattern"], bias, score, arguments["scale"], arguments["coords"],
        0.0, True, False, DEFAULT_BUDGET, False,
    )  # fmt: skip
    assert isinstance(a.score, DotProduct)
    flat = [x.reshape(a.problem.batch, *x.shape[-3:]) for x in (a.query, a.key, a.value)]
    call = Call(*flat, a.pattern, a.bias, a.score, a.scale, a.coords, 0.0, a.batch_shape, a.problem)  # type: ignore[call-arg, arg-type]
    terms = told(call)
    if terms is None or not lowering.all_finite(key, value):
        return None
    (out, lse), (grad_out, grad_lse) = state, upstream
    q, k, v = (x.to(call.compute_dtype) for x in flat)
    grads = block_attention_backward(
        grad_out.reshape(*q.shape[:3], -1),
        None if grad_lse is None else grad_lse.reshape(q.shape[:3]),
        out.reshape(*q.shape[:3], -1),
        lse.reshape(q.shape[:3]),
        None,  # of the joined lse it is not known
        *(q, k, v),
        *terms,
        *(a.scale, a.score.softcap or 0.0, 0.0, None, False),
    )
    dq, dk, dv = (grad.to(x.dtype).reshape(x.shape) for grad, x in zip(grads, (query, key, value), strict=False))
    return dq, dk, dv
