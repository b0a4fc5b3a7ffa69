"""The tensors that a call's bias, score, coords and edges hold, so that a backend can hand back their gradients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from attnops.problem import Call


def captured_tensors(call: Call) -> list[Tensor]:
    """Every tensor besides query, key, value that a gradient may flow into: parameters, attributes, coords, edge data.

    What a bias or score reaches by other ways (a closure, a list) is found through the leaves of its graph.
    """
    found: dict[int, Tensor] = {}
    for tensor in _held(call):
        if tensor.requires_grad:
            found[id(tensor)] = tensor
    for leaf in _unseen_leaves(call, found):
        found[id(leaf)] = leaf
    return list(found.values())


def _held(call: Call) -> Iterator[Tensor]:
    for module in (call.bias, call.score):
        if module is None:
            continue
        yield from module.parameters()
        for part in module.modules():
            yield from (value for value in vars(part).values() if isinstance(value, Tensor))
    for side in call.coords:
        yield from side.data.values()
    for leaf in call.pattern.leaves:
        if leaf.edges is not None:
            yield from leaf.edges.data.values()


def _unseen_leaves(call: Call, known: dict[int, Tensor]) -> list[Tensor]:
    """Leaves that the bias and score reach without passing a known tensor, found on one pair."""
    owners: list[nn.Module] = [call.score]
    if call.bias is not None:
        owners.append(call.bias)
    if all(type(part).__module__.startswith(("attnops.", "torch.")) for owner in owners for part in owner.modules()):
        return []
    with torch.enable_grad():
        pairs = call.block(slice(0, 1), slice(0, 1))
        roots = []
        if call.bias is not None:
            roots.append(call.bias(pairs))
        query, key, score = call.score.bind(call.query[:, :, :1].detach(), call.key[:, :, :1].detach())
        roots.append(
            score(query.unsqueeze(3), key.repeat_interleave(query.shape[1] // key.shape[1], 1).unsqueeze(2), pairs)
        )
    stops = {tensor.grad_fn for tensor in known.values() if tensor.grad_fn is not None}
    seen: set[Any] = set()
    leaves: dict[int, Tensor] = {}
    nodes = [root.grad_fn for root in roots if isinstance(root, Tensor) and root.grad_fn is not None]
    while nodes:
        node = nodes.pop()
        if node in seen or node in stops:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if variable is not None and id(variable) not in known:
            leaves[id(variable)] = variable
        nodes += [parent for parent, _ in node.next_functions if parent is not None]
    return list(leaves.values())
