"""A kernel for edge lists as an operator of torch: for autograd, tracers and vmap."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from attnops.kernels.edge_walk import Walk, delta_of, gradients, results

Forward = Callable[..., tuple[Tensor, Tensor, Tensor, Tensor, Tensor]]
Backward = Callable[..., tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]]


class EdgeOperator:
    """Attention over an edge list by a kernel's two functions.

    Args:
        backend: whose kernel it is, for errors. name: of torch's operator, "namespace::name". devices: where it runs.
        forward: `(query, key, value, bias, a, term, walk, with_weights, learns)` to out, lse, weights, scores and rest,
            as `edge_walk.results` makes room for them. backward: `(grad_out, delta, grad_weights, query, key, value,
            bias, a, term, walk, out, lse, scores, rest, wanted)` to `edge_walk.gradients`.
    """

    def __init__(
        self, backend: str, name: str, devices: str | Sequence[str], forward: Forward, backward: Backward
    ) -> None:
        self.backend, self.forward, self.backward = backend, forward, backward
        self.traced, self.traced_backward = _operators(name, devices, forward, backward)
        torch.library.register_vmap(self.traced, self._vmap)

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor | None,
        a: Tensor | None,
        term: Tensor | None,
        walk: Walk,
        with_weights: bool,
        learns: bool,
        eager: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """`out [B, H, Nq, Dv]`, `lse [B, H, Nq]`, and the weights after dropout `[B, H, E]` by place (or empty).

        `query [B, H, Nq, D]`, `key`, `value` with fewer heads or as many; any strides. `bias [B, H, E]` by place, -inf
        forbids; with the scores "leaky_relu" and "tanh", aᵀσ(q + k + term), with `a [H, D]` and `term [B, H, E, D]`.
        `eager`: real tensors outside of any tracer and transform, which spare the dispatcher's way.
        """
        if eager:
            made = _Eager.apply(query, key, value, bias, a, term, walk, with_weights, learns, self)  # type: ignore[no-untyped-call]
        else:
            made = self.traced(query, key, value, bias, a, term, *walk, with_weights, learns)
        return made[:3]  # type: ignore[no-any-return]

    def _vmap(
        self, info: Any, in_dims: tuple[int | None, ...], *inputs: Any
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        if any(dim is not None for dim in in_dims[4:]):
            raise NotImplementedError(
                f"backend {self.backend!r} cannot be vmapped over an edge list or a score's parameters"
            )
        size = info.batch_size
        merged = [_merged(x, dim, size) for x, dim in zip(inputs[:4], in_dims, strict=False)]
        outputs = self.traced(*merged, *inputs[4:])
        return tuple(x.view(size, x.shape[0] // size, *x.shape[1:]) for x in outputs), (0, 0, 0, 0, 0)


class _Eager(torch.autograd.Function):
    """The kernel under autograd, without a dispatcher between: a call on a small graph costs little more than it."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor | None,
        a: Tensor | None,
        term: Tensor | None,
        walk: Walk,
        with_weights: bool,
        learns: bool,
        operator: EdgeOperator,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        made = operator.forward(query, key, value, bias, a, term, walk, with_weights, learns)
        ctx.save_for_backward(query, key, value, bias, a, term, *made)
        ctx.walk, ctx.operator = walk, operator
        ctx.mark_non_differentiable(*made[3:])
        ctx.set_materialize_grads(False)
        return made

    @staticmethod
    def backward(
        ctx: Any, grad_out: Tensor | None, grad_lse: Tensor | None, grad_weights: Tensor | None, *_: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # create_graph: autograd would drop the second derivative in silence
            raise NotImplementedError(
                f"backend {ctx.operator.backend!r} has no second derivative; backend='scatter' has"
            )
        query, key, value, bias, a, term, out, lse, weights, scores, rest = ctx.saved_tensors
        if grad_out is None:
            grad_out = torch.zeros_like(out)
        delta = delta_of(grad_lse, grad_weights, weights, ctx.walk.pointer)
        wanted = ctx.needs_input_grad[3:6]
        grads = ctx.operator.backward(
            grad_out, delta, grad_weights, query, key, value, bias, a, term, ctx.walk, out, lse, scores, rest, wanted
        )
        parameters = (grad if want else None for grad, want in zip(grads[3:], wanted, strict=True))
        return (*grads[:3], *parameters, None, None, None, None)


def _operators(name: str, devices: str | Sequence[str], forward: Forward, backward: Backward) -> tuple[Any, Any]:
    """Torch's operators for the kernel and its gradient, with what tracers and autograd ask of them."""

    def attend(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor | None,
        a: Tensor | None,
        term: Tensor | None,
        pointer: Tensor,
        source: Tensor,
        target: Tensor,
        source_pointer: Tensor,
        source_order: Tensor,
        term_order: Tensor,
        score: str,
        scale: float,
        softcap: float,
        slope: float,
        dropout: float,
        seed: Tensor | None,
        with_weights: bool,
        learns: bool,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        walk = Walk(
            pointer, source, target, source_pointer, source_order, term_order, score, scale, softcap, slope, dropout,
            seed,
        )  # fmt: skip
        return forward(query, key, value, bias, a, term, walk, with_weights, learns)

    def differentiate(
        grad_out: Tensor,
        delta: Tensor | None,
        grad_weights: Tensor | None,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor | None,
        a: Tensor | None,
        term: Tensor | None,
        pointer: Tensor,
        source: Tensor,
        target: Tensor,
        source_pointer: Tensor,
        source_order: Tensor,
        term_order: Tensor,
        score: str,
        scale: float,
        softcap: float,
        slope: float,
        dropout: float,
        seed: Tensor | None,
        out: Tensor,
        lse: Tensor,
        scores: Tensor,
        rest: Tensor,
        wanted: list[bool],
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        walk = Walk(
            pointer, source, target, source_pointer, source_order, term_order, score, scale, softcap, slope, dropout,
            seed,
        )  # fmt: skip
        return backward(
            grad_out, delta, grad_weights, query, key, value, bias, a, term, walk, out, lse, scores, rest, wanted
        )

    operator: Any = torch.library.custom_op(name, attend, mutates_args=(), device_types=devices)
    gradient: Any = torch.library.custom_op(f"{name}_backward", differentiate, mutates_args=(), device_types=devices)

    @operator.register_fake  # type: ignore[untyped-decorator]
    def _(*inputs: Any) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        query, value, source, with_weights, learns = (inputs[place] for place in (0, 2, 7, 18, 19))
        return results(query, value, source.shape[0], with_weights, learns)

    @gradient.register_fake  # type: ignore[untyped-decorator]
    def _(*inputs: Any) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        query, key, value, source, wanted = (inputs[place] for place in (3, 4, 5, 10, 25))
        return gradients(query, key, value, source.shape[0], wanted)

    def save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        *tensors, score, scale, softcap, slope, dropout, seed, _with_weights, _learns = inputs
        ctx.save_for_backward(*tensors, seed, *output)
        ctx.options = (score, scale, softcap, slope, dropout)
        ctx.mark_non_differentiable(*output[3:])
        ctx.set_materialize_grads(False)

    def backpropagate(
        ctx: Any, grad_out: Tensor | None, grad_lse: Tensor | None, grad_weights: Tensor | None, *_: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        *tensors, seed, out, lse, weights, scores, rest = ctx.saved_tensors
        if grad_out is None:
            grad_out = torch.zeros_like(out)
        delta = delta_of(grad_lse, grad_weights, weights, tensors[6])
        wanted: Sequence[bool] = [tensors[place] is not None and ctx.needs_input_grad[place] for place in (3, 4, 5)]
        grads = gradient(grad_out, delta, grad_weights, *tensors, *ctx.options, seed, out, lse, scores, rest, wanted)
        parameters = (grad if want else None for grad, want in zip(grads[3:], wanted, strict=True))
        return (*grads[:3], *parameters, *(None for _ in range(14)))

    operator.register_autograd(backpropagate, setup_context=save)
    return operator, gradient


def _merged(tensor: Tensor | None, dim: int | None, size: int) -> Tensor | None:
    """A vmapped axis joined with the batch axis."""
    if tensor is None:
        return None
    tensor = tensor.movedim(dim, 0) if dim is not None else tensor.unsqueeze(0).expand(size, *tensor.shape)
    return tensor.flatten(0, 1)
