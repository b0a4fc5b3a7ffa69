"""Other data on the same edges: the same numbers as a list made anew, sorted once for all."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import attnops
from attnops import Edges
from attnops.patterns import edges as of_edges

torch.manual_seed(0)
INDEX = torch.randint(0, 9, (2, 40))
TYPE, PRIOR = torch.randint(0, 3, (40,)), torch.rand(40) + 0.1


@pytest.fixture
def sorts(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every sort of edges from here on."""
    done: list[Any] = []
    before = of_edges.sort_edges
    monkeypatch.setattr(of_edges, "sort_edges", lambda *a: (done.append(a), before(*a))[1])
    return done


@pytest.mark.parametrize("backend", ["reference", "scatter", "native"])
def test_the_numbers_of_a_new_list(backend: str) -> None:
    query, key, value = torch.randn(3, 2, 9, 4).requires_grad_().unbind(0)
    prior = PRIOR.clone().requires_grad_()
    bias = attnops.LogPrior() + attnops.EdgeTypePrior(3, 2)
    found = []
    for edges in (Edges(INDEX, 9, 9, type=TYPE, prior=prior), Edges(INDEX, 9, 9, type=TYPE).with_data(prior=prior)):
        out = attnops.attend(query, key, value, pattern=edges, bias=bias, backend=backend)
        assert isinstance(out, torch.Tensor)
        found.append((out, *torch.autograd.grad(out.square().sum(), [prior, query, *bias.parameters()])))
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))


@pytest.mark.parametrize("first", ["the old", "the new"])
def test_sorted_once(first: str, sorts: list[Any]) -> None:
    """Whichever is attended over first, and whatever is made of which."""
    old = Edges(INDEX, 9, 9)
    new = old.with_data(type=TYPE).with_data(prior=PRIOR)
    (old if first == "the old" else new).sorted()
    assert old.sorted() is new.sorted() is old.with_data(prior=PRIOR).sorted()
    assert len(sorts) == 1
    assert old.unique is new.unique is False


def test_beside_what_they_carry() -> None:
    """The list that it is called on stays as it was; data of the same name give way, and so do their bounds."""
    old = Edges(INDEX, 9, 9, type=TYPE, prior=PRIOR)
    new = old.with_data(prior=2 * PRIOR, seen=TYPE)
    assert list(old.data) == ["type", "prior"] and list(new.data) == ["type", "prior", "seen"]
    assert new.data["type"] is TYPE and torch.equal(new.data["prior"], 2 * old.data["prior"])
    assert old.bounds("prior") == (float(PRIOR.min()), float(PRIOR.max()))
    assert new.bounds("prior") == (2 * float(PRIOR.min()), 2 * float(PRIOR.max()))
    assert new.bounds("type") == old.bounds("type") and old.bounds("seen") is None
    assert not old.with_data(prior=PRIOR / 0).finite("prior") and old.finite("prior")


def test_bad_data() -> None:
    edges = Edges(INDEX, 9, 9)
    with pytest.raises(TypeError, match="edge data prior is a list; it must be a tensor"):
        edges.with_data(prior=[1.0] * 40)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"edge data prior has shape \[39\]; its first axis must be E = 40"):
        edges.with_data(prior=PRIOR[1:])
    assert edges.data == {}


def test_a_type_out_of_range_is_found_in_new_data() -> None:
    """Its bound is read anew: a table is never read outside."""
    x = torch.randn(2, 9, 4)
    edges = Edges(INDEX, 9, 9, type=TYPE).with_data(type=TYPE + 1)
    with pytest.raises(ValueError, match="type"):
        attnops.attend(x, x, x, pattern=edges, bias=attnops.EdgeTypePrior(3, 2))


def test_compiled() -> None:
    """In a traced function, where bounds cannot be read."""
    query, key, value = torch.randn(3, 2, 9, 4).unbind(0)
    edges = Edges(INDEX, 9, 9, prior=torch.ones(40))

    def heard(prior: torch.Tensor) -> Any:
        return attnops.attend(query, key, value, pattern=edges.with_data(prior=prior), bias=attnops.LogPrior())

    torch.testing.assert_close(torch.compile(heard, backend="eager", fullgraph=True)(PRIOR), heard(PRIOR))
