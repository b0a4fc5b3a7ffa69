"""Weights under other names: tables from our parameters to those of a transformers model."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

_LAYER = re.compile(r"(?<=blocks\.)\d+")


@dataclass(frozen=True)
class Made:
    """A weight that is made from others: `make(*tensors)`."""

    names: tuple[str, ...]
    make: Callable[..., Tensor]


Names = Mapping[str, str | Made]
"""Our name of a parameter: theirs, or how it is made. `{}` stands for the number of the layer."""


def stacked(*names: str) -> Made:
    """One above the other, along the rows."""
    return Made(names, lambda *tensors: torch.cat(tensors))


def transposed(name: str) -> Made:
    """Rows and columns exchanged."""
    return Made((name,), lambda tensor: tensor.transpose(-1, -2))


def one_more(name: str) -> Made:
    """1 + weight, for norms that multiply by it."""
    return Made((name,), lambda tensor: tensor + 1)


def grouped_by_key_head(name: str, kv_heads: int, heads: int) -> Made:
    """Rows that come key head by key head, [its queries…, key, value], as all queries, all keys, all values."""

    def make(tensor: Tensor) -> Tensor:
        by_head = tensor.reshape(kv_heads, heads // kv_heads + 2, -1, *tensor.shape[1:])
        return torch.cat([part.flatten(0, 2) for part in (by_head[:, :-2], by_head[:, -2:-1], by_head[:, -1:])])

    return Made((name,), make)


def load(model: nn.Module, tensors: Mapping[str, Tensor], names: Names, ignored: Iterable[str], prefix: str) -> None:
    """Give every parameter of `model` its weight, and see that no weight is left over.

    Args:
        tensors: by their names, with or without `prefix`, which the model under a head has in front.
        ignored: patterns of names that change no number.

    Raises:
        ValueError: a weight that is missing, has another shape, or that nothing reads; by name.
    """
    left, state = dict.fromkeys(tensors), {}

    def find(name: str) -> Tensor:
        for each in (name, name.removeprefix(prefix)):
            if each in tensors:
                left.pop(each, None)
                return tensors[each]
        raise ValueError(f"the weight {name} is missing")

    for ours, parameter in model.state_dict().items():
        layer = _LAYER.search(ours)
        how = names[_LAYER.sub("{}", ours)]
        made = how if isinstance(how, Made) else Made((how,), lambda tensor: tensor)
        theirs = [name.format(layer.group() if layer else "") for name in made.names]
        weight = made.make(*map(find, theirs))
        if weight.shape != parameter.shape:
            raise ValueError(
                f"the weight {' + '.join(theirs)} has shape {list(weight.shape)}; the config asks for "
                f"{list(parameter.shape)}"
            )
        state[ours] = weight.detach().clone(memory_format=torch.contiguous_format)
    unread = [name for name in left if not any(re.search(pattern, name) for pattern in ignored)]
    if unread:
        raise ValueError(f"the weight {unread[0]} is read by nothing ({len(unread)} such)")
    model.load_state_dict(state, assign=True)


def has_other_head(tensors: Mapping[str, Tensor], head: str, table: str | Made, prefix: str) -> bool:
    """Whether a head lies beside the table of tokens and differs: the two are then not tied, whatever a config says."""
    assert isinstance(table, str)
    tokens = tensors.get(table, tensors.get(table.removeprefix(prefix)))
    return head in tensors and tokens is not None and not torch.equal(tensors[head], tokens)


def stack_experts(tensors: dict[str, Tensor], gate: str, up: str, down: str) -> dict[str, Tensor]:
    """Experts that lie one by one, `….experts.3.gate_proj.weight`, as transformers holds them: all in one tensor."""
    pattern = re.compile(rf"(.*\.experts)\.(\d+)\.({gate}|{up}|{down})\.weight")
    found: dict[str, dict[tuple[int, str], Tensor]] = {}
    rest = {}
    for name, tensor in tensors.items():
        match = pattern.fullmatch(name)
        if match is None:
            rest[name] = tensor
        else:
            found.setdefault(match[1], {})[int(match[2]), match[3]] = tensor
    for place, each in found.items():
        experts = range(1 + max(expert for expert, _ in each))
        missing = [f"{place}.{e}.{part}.weight" for e in experts for part in (gate, up, down) if (e, part) not in each]
        if missing:
            raise ValueError(f"the weight {missing[0]} is missing")
        rest[f"{place}.gate_up_proj"] = torch.stack([torch.cat((each[e, gate], each[e, up])) for e in experts])
        rest[f"{place}.down_proj"] = torch.stack([each[e, down] for e in experts])
    return rest
