"""Functions of mapped rows, a block at a time: rows to rows, and rows to a number."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from attnops.distributed.out_of_core.mapped_rows import MappedRows

Differentiable = tuple[list[Tensor], list[Tensor]]


def map_rows(
    function: Callable[..., Tensor], *rows: MappedRows, parameters: Sequence[Tensor] | None = None
) -> MappedRows:
    """`function` of every block of rows: `[N, …]` to `[N, …]`, each row by itself.

    Backward, a block is computed again, with the random numbers of the first time.

    Args:
        function: called with one block of each of `rows`, `[n, …]`; gives `[n, …]`. A module, or anything.
        rows: as many of each, in blocks of one length.
        parameters: what the function learns; those of a module need not be named.

    Returns:
        Rows in a folder beside the first ones, removed when nothing refers to them.

    Raises:
        ValueError: rows of different numbers or blocks, a result of another number of rows.

    Example:
        >>> import tempfile, torch
        >>> from attnops.distributed.out_of_core import MappedRows, map_rows, sum_rows
        >>> folder, linear = tempfile.TemporaryDirectory(), torch.nn.Linear(2, 3)
        >>> x = MappedRows.from_tensor(folder.name + "/x", torch.ones(5, 2), block=2)
        >>> sum_rows(lambda where, y: y.sum(), map_rows(linear, x)).backward()
        >>> linear.bias.grad
        tensor([5., 5., 5.])
        >>> folder.cleanup()
    """
    _check(rows)
    learned = _parameters(function, parameters)
    with torch.no_grad():
        first = _tensor(function(*(each.read(0) for each in rows))) if rows[0].num_blocks else torch.zeros(0, 0)
    out = rows[0].like(tuple(first.shape[1:]), first.dtype)
    files = out.files
    del first
    states: list[Tensor] = []
    with torch.no_grad():
        for index, where in out.blocks():
            states.append(torch.get_rng_state())
            result = _tensor(function(*(each.read(index) for each in rows)))
            if result.shape != (where.stop - where.start, *out.width):
                raise ValueError(
                    f"function gives {list(result.shape)} for {where.stop - where.start} rows; it must be "
                    f"{[where.stop - where.start, *out.width]}"
                )
            out.write(index, result)

    def backward(_: Tensor) -> list[Tensor | None]:
        total: list[Tensor | None] = [None] * len(learned)
        for index, _where in files.blocks() if files.grad is not None else ():
            assert files.grad is not None
            upstream = files.grad.read(index).to(files.dtype)
            with _same_random_numbers(states[index]), torch.enable_grad():
                blocks = _leaves(rows, index)
                result = function(*blocks)
            _spread(rows, index, blocks, learned, total, (result,), (upstream,))
        files.grad = None  # it went on to where the rows come from: another backward pass begins at nothing
        return total

    out.token = placed(torch.zeros(()), backward, rows, learned)
    return out


def sum_rows(function: Callable[..., Tensor], *rows: MappedRows, parameters: Sequence[Tensor] | None = None) -> Tensor:
    """The sum of `function` over all blocks: a loss.

    Args:
        function: called as `function(where, *blocks)` with the rows of a block as a slice, and one block of each of
            `rows`; gives a number (0-d).
        rows, parameters: as of `map_rows`.

    Returns:
        0-d, in autograd.

    Raises:
        ValueError: rows of different numbers or blocks; a result that is not one number.

    Example:
        >>> import tempfile, torch
        >>> from attnops.distributed.out_of_core import MappedRows, sum_rows
        >>> folder = tempfile.TemporaryDirectory()
        >>> x = MappedRows.from_tensor(folder.name + "/x", torch.arange(5.0).view(5, 1), block=2, requires_grad=True)
        >>> sum_rows(lambda where, block: block.square().sum(), x).backward()
        >>> x.grad.tensor().flatten()
        tensor([0., 2., 4., 6., 8.])
        >>> folder.cleanup()
    """
    _check(rows)
    learned = _parameters(function, parameters)
    states, total = [], torch.zeros(())
    with torch.no_grad():
        for index, where in rows[0].blocks():
            states.append(torch.get_rng_state())
            value = _tensor(function(where, *(each.read(index) for each in rows)))
            if value.ndim:
                raise ValueError(f"function gives a tensor {list(value.shape)}; it must be one number, 0-d")
            total = total + value

    def backward(upstream: Tensor) -> list[Tensor | None]:
        sums: list[Tensor | None] = [None] * len(learned)
        for index, where in rows[0].blocks():
            with _same_random_numbers(states[index]), torch.enable_grad():
                blocks = _leaves(rows, index)
                value = function(where, *blocks)
            _spread(rows, index, blocks, learned, sums, (value,), (upstream.to(value.dtype),))
        return sums

    return placed(total, backward, rows, learned)


# ----------------------------------------------------------------------------------------------- autograd
class _Placed(torch.autograd.Function):
    """A result computed outside of autograd, given its place in it."""

    @staticmethod
    def forward(ctx: Any, result: Tensor, backward: Any, tokens: int, *inputs: Tensor) -> Tensor:
        ctx.backward_of, ctx.tokens = backward, tokens
        return result.clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        of_parameters = ctx.backward_of(upstream)
        return None, None, None, *[torch.zeros(())] * ctx.tokens, *of_parameters


def placed(
    result: Tensor,
    backward: Callable[[Tensor], list[Tensor | None]],
    rows: Sequence[MappedRows],
    parameters: Sequence[Tensor],
) -> Tensor:
    """`result`, from which a backward pass calls `backward` and goes on to where `rows` come from.

    `backward` writes the gradients of rows and returns those of the parameters.
    """
    out: Tensor = _Placed.apply(result, backward, len(rows), *(each.token for each in rows), *parameters)  # type: ignore[no-untyped-call]
    return out


def _leaves(rows: Sequence[MappedRows], index: int) -> list[Tensor]:
    return [each.read(index).requires_grad_(each.requires_grad) for each in rows]


def _spread(
    rows: Sequence[MappedRows],
    index: int,
    blocks: Sequence[Tensor],
    parameters: Sequence[Tensor],
    total: list[Tensor | None],
    results: tuple[Tensor, ...],
    upstream: tuple[Tensor, ...],
) -> None:
    """Gradients of one block: of rows to their files, of parameters to `total`."""
    if not results[0].requires_grad:
        return
    wanted = [each for each in (*blocks, *parameters) if each.requires_grad]
    gradients = iter(torch.autograd.grad(results, wanted, upstream, allow_unused=True))
    for each, block in zip(rows, blocks, strict=True):
        gradient = next(gradients) if block.requires_grad else None
        if gradient is not None:
            each.files.add_gradient(index, gradient)
    add_up(total, [next(gradients) if each.requires_grad else None for each in parameters])


def add_up(total: list[Tensor | None], gradients: Sequence[Tensor | None]) -> None:
    """Add to the sums of gradients, None for nothing."""
    for place, gradient in enumerate(gradients):
        known = total[place]
        if gradient is not None:
            total[place] = gradient if known is None else known + gradient


class _same_random_numbers:
    """Random numbers from a state, and afterwards on from where they were."""

    def __init__(self, state: Tensor) -> None:
        self.state = state

    def __enter__(self) -> None:
        self.before = torch.get_rng_state()
        torch.set_rng_state(self.state)

    def __exit__(self, *_: object) -> None:
        torch.set_rng_state(self.before)


def _parameters(function: object, parameters: Sequence[Tensor] | None) -> list[Tensor]:
    if parameters is None:
        parameters = list(function.parameters()) if isinstance(function, nn.Module) else []
    if not callable(function):
        raise TypeError(f"function is {type(function).__name__}; it must be callable")
    if isinstance(parameters, Tensor) or not isinstance(parameters, Iterable):
        raise TypeError(f"parameters is {type(parameters).__name__}; it must be a list of tensors")
    learned = list(parameters)
    if not all(isinstance(each, Tensor) for each in learned):
        raise TypeError(f"parameters holds {[type(each).__name__ for each in learned]}; it must be a list of tensors")
    return learned


def _tensor(result: object) -> Tensor:
    """What a function gives."""
    if not isinstance(result, Tensor):
        raise TypeError(f"function gives a {type(result).__name__}; it must be a tensor")
    return result


def _check(rows: Sequence[MappedRows]) -> None:
    if not rows or not all(isinstance(each, MappedRows) for each in rows):
        raise TypeError("rows must be MappedRows, at least one")
    forms = {(each.num_rows, each.block) for each in rows}
    if len(forms) > 1:
        raise ValueError(f"rows have (number, block) {sorted(forms)}; they must be the same")
