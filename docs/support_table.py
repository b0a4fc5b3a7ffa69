"""What each backend takes on a CPU, asked of the code itself, and written into README.md.

    python -m docs.support_table

Every row is one small problem given to `attnops.plan` with the backend named; a cell is a tick, or the number of the
refusal that the plan prints for that backend. A backend that takes edge lists alone is asked on an edge list.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

import attnops
from docs.marked import write_part

HEADS, NODES, DIM = 4, 6, 8
Arguments = dict[str, Any]
Ask = Callable[..., Any]  # attnops.plan, or attnops.attend


class Own(attnops.Bias):
    """A bias that the library does not know, with a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.rate = torch.nn.Parameter(torch.zeros(HEADS))

    def forward(self, pairs: attnops.Pairs) -> Tensor:
        """b_ij = rate_h · (p_i - p_j)"""
        return self.rate[pairs.head] * (pairs.query.position - pairs.key.position)


class Even(attnops.Pattern):
    """A pattern that the library does not know."""

    def allows(self, pairs: attnops.Pairs) -> Tensor:
        """Keys in even rows."""
        return pairs.key.index % 2 == 0


@dataclass(frozen=True)
class Feature:
    """One property of a problem: `given` overrides the plain arguments, `around` is where the call is made."""

    words: str
    given: Callable[[], Arguments] = dict
    around: Callable[[Ask, Arguments], Any] = lambda ask, arguments: ask(**arguments)
    is_ground: bool = False  # the pattern itself is the property

    def ask(self, call: Ask, on_edges: bool) -> Any:
        """`call` with the arguments of this problem, over all pairs or over an edge list."""
        arguments: Arguments = {**vectors(), **self.given()}
        if on_edges and not self.is_ground:
            arguments["pattern"] = edges(SOURCES, TARGETS) & arguments.get("pattern", attnops.Full())
        return self.around(call, arguments)


SOURCES, TARGETS = [0, 1, 2, 3, 5, 5], [0, 0, 0, 0, 5, 0]


def vectors(heads: int = HEADS, grad: bool = False, dtype: torch.dtype = torch.float32) -> Arguments:
    """Query, key and value of one small problem, with a batch of 2."""
    query = torch.ones(2, HEADS, NODES, DIM, dtype=dtype, requires_grad=grad)
    key, value = torch.ones(2, 2, heads, NODES, DIM, dtype=dtype, requires_grad=grad).unbind(0)
    return {"query": query, "key": key, "value": value}


def edges(sources: list[int], targets: list[int]) -> attnops.Edges:
    """An edge list over the nodes."""
    return attnops.Edges(torch.tensor([sources, targets]), NODES, NODES)


def with_garbage() -> Arguments:
    """A NaN in the last key, which the last query alone may attend."""
    arguments = vectors()
    arguments["key"][:, :, -1] = torch.nan
    return {**arguments, "pattern": attnops.Causal()}


def under_vmap(ask: Ask, arguments: Arguments) -> Any:
    """The call inside `torch.func.vmap`."""
    results = []

    def inside(query: Tensor) -> Tensor:
        results.append(ask(**{**arguments, "query": query}))
        return query

    torch.func.vmap(inside)(torch.stack([arguments["query"]] * 2))
    return results[-1]


def traced(ask: Ask, arguments: Arguments) -> Any:
    """The call as `torch.export` traces it; `torch.compile` does alike."""
    results = []

    class Traced(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bias = arguments.get("bias")

        def forward(self, query: Tensor) -> Tensor:
            results.append(ask(**{**arguments, "query": query}))
            return query * 1

    torch.export.export(Traced(), (arguments["query"],), strict=False)
    return results[-1]


FEATURES = (
    Feature("every pair", is_ground=True),
    Feature("any pattern over all pairs", lambda: {"pattern": Even() | attnops.SlidingWindow(2, 2)}, is_ground=True),
    Feature("an edge list", lambda: {"pattern": edges(SOURCES, TARGETS)}, is_ground=True),
    Feature("an edge list that holds a pair twice", lambda: {"pattern": edges([1, 1], [0, 0])}, is_ground=True),
    Feature("gradients", lambda: vectors(grad=True)),
    Feature("a bias of your own that learns", lambda: {"bias": Own()}),
    Feature("fewer key heads (GQA, MQA)", lambda: vectors(heads=2)),
    Feature("float64", lambda: vectors(dtype=torch.float64)),
    Feature("bfloat16", lambda: vectors(dtype=torch.bfloat16)),
    Feature("float16", lambda: vectors(dtype=torch.float16)),
    Feature("a softcap", lambda: {"score": attnops.DotProduct(softcap=5.0)}),
    Feature("additive scores (GAT, GATv2, Bahdanau)", lambda: {"score": attnops.Additive(HEADS, DIM)}),
    Feature("a `Sink`", lambda: {"bias": attnops.Sink(HEADS)}),
    Feature("dropout", lambda: {"dropout": 0.5}),
    Feature("`return_lse`", lambda: {"return_lse": True}),
    Feature("`return_weights`", lambda: {"return_weights": True}),
    Feature("NaN in a key that only some queries may attend", with_garbage),
    Feature("inside `torch.func.vmap`", around=under_vmap),
    Feature("inside `torch.compile`, `torch.export`", around=traced),
    Feature("the same, training a bias of your own", lambda: {"bias": Own()}, around=traced),
)


def on_edges(backend: str) -> bool:
    """Whether a backend is asked on an edge list, since it does not take every pair."""
    return bool(reasons(FEATURES[0], backend, False))


def reasons(feature: Feature, backend: str, edge_list: bool) -> list[str]:
    """What a backend says against a problem when it is named; nothing where it takes it."""
    try:
        plan: attnops.Plan = feature.ask(partial(attnops.plan, backend=backend), edge_list)
    except attnops.UnsupportedError as error:
        said = str(error).split("refuses this problem: ", 1)[1].rsplit("; ", 1)[0]
        plan = feature.ask(attnops.plan, edge_list)
        planned = next(each.refusals for each in plan.candidates if each.name == backend)
        # a backend that is named may look closer than `auto` did, and say more
        return list(planned) if "; ".join(planned) == said else [said]
    candidate = next(each for each in plan.candidates if each.name == backend)
    words = list(candidate.refusals)
    if feature.given is with_garbage and candidate.condition and not words:
        words = [f"only {candidate.condition}, which is looked at as it runs; `auto` then takes the next backend"]
    return words


def table() -> str:
    """The Markdown: a row a feature, a column a backend, the refusals numbered below."""
    backends = list(attnops.available_backends())
    homes = {backend: on_edges(backend) for backend in backends}
    notes: dict[str, int] = {}
    lines = [
        f"| on a CPU | {' | '.join(f'`{backend}`' for backend in backends)} |",
        "| --- |" + " :-: |" * len(backends),
    ]
    for feature in FEATURES:
        cells = []
        for backend in backends:
            numbers = [notes.setdefault(words, len(notes) + 1) for words in reasons(feature, backend, homes[backend])]
            cells.append(", ".join(f"({number})" for number in numbers) or "✓")
        lines.append(f"| {feature.words} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", *(f"{number}. {words}" for words, number in notes.items())])


def example() -> str:
    """A printed plan, in the form of a block of text."""
    query, (key, value) = torch.empty(1, 8, 32768, 64), torch.empty(2, 1, 2, 32768, 64)  # never read
    return f"```text\n{attnops.plan(query, key, value, pattern=attnops.SlidingWindow(256), bias=attnops.ALiBi(8))}\n```"


PARTS = {"backends": table, "plan": example}


if __name__ == "__main__":
    for name, make in PARTS.items():
        write_part(name, make())
