"""What torch-geometric's tools look for in a layer: that it is a `MessagePassing`, hooks on messages, masks of edges.

Its explainers, `to_hetero` and `summary` find layers by `isinstance(layer, MessagePassing)`. The layers here inherit
nothing of torch-geometric, which need not be installed; once a program has imported it, they answer to that question
as its own do, and offer what its tools then use.
"""

from __future__ import annotations

import inspect
import sys
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

Hook = Callable[..., Any]


class Messages(nn.Module):
    """The part of torch-geometric's `MessagePassing` that its tools use.

    Where an edge mask is set, or a hook, the weights of the operator are multiplied out edge by edge, so that each
    message can be seen and scaled; otherwise nothing of this costs anything.
    """

    node_dim = 0
    decomposed_layers = 1
    explain: bool | None = None

    def __init__(self) -> None:
        super().__init__()
        self._edge_mask: Tensor | None = None
        self._loop_mask: Tensor | None = None
        self._apply_sigmoid = True
        self._message_forward_pre_hooks: OrderedDict[int, Hook] = OrderedDict()
        self._message_forward_hooks: OrderedDict[int, Hook] = OrderedDict()

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """The class, which is also a `MessagePassing` in a program that has imported torch-geometric."""
        peer = sys.modules.get("torch_geometric.nn.conv.message_passing")
        message_passing = getattr(peer, "MessagePassing", None)
        return type(self) if message_passing is None else _also[type(self), message_passing]

    def __reduce__(self) -> tuple[Any, ...]:
        """Copied and pickled as what it is."""
        return _blank, (type(self),), self.__dict__

    def register_message_forward_pre_hook(self, hook: Hook) -> RemovableHandle:
        """Call `hook(layer, (keywords,))` before the messages are made; what it returns takes their place."""
        handle = RemovableHandle(self._message_forward_pre_hooks)
        self._message_forward_pre_hooks[handle.id] = hook
        return handle

    def register_message_forward_hook(self, hook: Hook) -> RemovableHandle:
        """Call `hook(layer, (keywords,), messages)` on the messages; `keywords["alpha"]` are the weights `[E, H]`."""
        handle = RemovableHandle(self._message_forward_hooks)
        self._message_forward_hooks[handle.id] = hook
        return handle

    def explain_message(self, inputs: Tensor, dim_size: int) -> Tensor:
        """Messages `[E, …]` times the mask of their edges; loops that the layer added are not masked."""
        mask = self._edge_mask
        if mask is None:
            raise ValueError("the layer has explain=True, but no edge mask was set")
        mask = mask.sigmoid() if self._apply_sigmoid else mask
        loops = self._loop_mask
        if mask.shape[0] != inputs.shape[0] and (loops is None or loops.shape == mask.shape):
            mask = torch.cat([mask if loops is None else mask[loops], mask.new_ones(dim_size)])
        if mask.shape[0] != inputs.shape[0]:
            raise ValueError(f"the edge mask is of {mask.shape[0]} edges; the layer has {inputs.shape[0]} messages")
        return inputs * mask.view(-1, *[1] * (inputs.ndim - 1))

    @property
    def watched(self) -> bool:
        """Whether messages must be made one by one, to be masked or seen."""
        return bool(self.explain or self._message_forward_hooks or self._message_forward_pre_hooks)

    def make_messages(
        self, weights: Tensor, query: Tensor, key: Tensor, value: Tensor, source: Tensor, target: Tensor
    ) -> Tensor:
        """`w_ij v_j` of every edge, `[E, H, C]`, shown to the hooks and masked.

        Args:
            weights: `[E, H]`. query, key, value: `[N, H, C]`. source, target: `[E]`.
        """
        keywords = {"x_j": value[source], "alpha": weights}
        for pre_hook in self._message_forward_pre_hooks.values():
            changed = pre_hook(self, (keywords,))
            if changed is not None:
                keywords = changed[0] if isinstance(changed, tuple) else changed
        messages = keywords["x_j"] * keywords["alpha"].unsqueeze(-1)
        for hook in self._message_forward_hooks.values():
            changed = hook(self, (keywords,), messages)
            if changed is not None:
                messages = changed
        if self.explain:
            offered: dict[str, Any] = {"dim_size": query.shape[0], "x_i": query[target], "x_j": key[source]}
            names = inspect.signature(self.explain_message).parameters
            messages = self.explain_message(messages, **{name: offered[name] for name in names if name in offered})
        return messages


class _AlsoMessagePassing(dict[tuple[type, type], type]):
    """For each class of layer, made once, the class that it answers to be."""

    def __missing__(self, classes: tuple[type, type]) -> type:
        made = self[classes] = type(classes[0].__name__, classes, {"__module__": classes[0].__module__})
        return made


_also = _AlsoMessagePassing()


def _blank(layer: type[nn.Module]) -> nn.Module:
    return layer.__new__(layer)
