"""Law 8: a backend that is named runs or raises with its reasons; nothing falls back, and a plan is kept to."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given

import attnops
from attnops.backends.flex import Flex
from tests.laws.problems import BACKENDS, Problem, problems


def plan_of(problem: Problem, **changes: object) -> attnops.Plan:
    built = problem.build()
    arguments = {**built.arguments, "return_lse": problem.lse, **changes}
    return attnops.plan(built.query, built.key, built.value, **arguments)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_named_backend_runs_where_it_does_not_refuse_and_else_raises_its_reasons(backend: str) -> None:
    @given(problems("reference"))
    def law(problem: Problem) -> None:
        built = problem.build()
        try:
            planned = plan_of(problem, backend=backend)
        except attnops.UnsupportedError as refusal:
            with pytest.raises(NotImplementedError) as raised:
                built.attend(backend)
            assert type(raised.value) is attnops.UnsupportedError and str(raised.value) == str(refusal)
            auto = plan_of(problem)
            reasons = next(each.refusals for each in auto.candidates if each.name == backend)
            assert reasons and all(
                reason in str(refusal) for reason in reasons if "not searched for duplicates" not in reason
            )
            assert f"backend={auto.backend!r}" in str(refusal) or "alternative" in str(refusal)
            return
        assert planned.backend == backend
        if backend != "flex":  # which torch traces for a second; its own laws run it
            with attnops.trace() as plans:
                built.attend(backend)
            assert [plan.backend for plan in plans] == [backend]

    law()


def test_a_backend_that_refuses_runs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for backend in attnops.operator.BACKENDS:
        monkeypatch.setattr(type(backend), "run", lambda self, call: pytest.fail(f"{self.name} ran"))
    x = torch.randn(2, 4, 8)
    with pytest.raises(attnops.UnsupportedError, match="weights"):
        attnops.attend(x, x, x, return_weights=True, backend="blockwise")


@given(problems("reference"))
def test_a_plan_runs_what_it_says_and_prints_as_a_table(problem: Problem) -> None:
    planned = plan_of(problem)
    assert {each.name for each in planned.candidates} == set(attnops.available_backends())
    table = str(planned)
    for each in planned.candidates:
        assert each.name in table and all(reason in table for reason in each.refusals)
        assert (each.bytes >= 0 and each.operations >= 0) or each.refusals
    if planned.backend == "flex":
        return
    built = problem.build()
    with attnops.trace() as plans:
        result = built.attend(backend=planned)
    assert [plan.backend for plan in plans] == [planned.backend]
    assert torch.equal(result.out, problem.build().attend(planned.backend).out)


@pytest.mark.parametrize(
    "changes",
    [
        {"num_queries": 3},
        {"num_keys": 6},
        {"group": 2},
        {"dtype": torch.float32},
        {"batch": (2,)},
        {"pattern": "causal"},
        {"lse": True},
    ],
    ids=str,
)
def test_a_plan_for_another_problem_is_refused(changes: dict[str, object]) -> None:
    planned = plan_of(Problem())
    Problem().build().attend(backend=planned)
    with pytest.raises(
        ValueError, match=r"backend is a plan for another problem: .* was .* when planned and is .* now"
    ):
        Problem().with_(**changes).build().attend(backend=planned)


def test_compiled_flex_is_not_given_coords_that_need_a_gradient() -> None:
    position = torch.arange(4.0, requires_grad=True)
    x = torch.randn(2, 4, 8)
    arguments = {"bias": attnops.TimeGap(2), "coords": attnops.Coords(time=position, position=torch.arange(4))}
    problem = attnops.plan(x, x, x, **arguments).problem
    assert problem.coords_grad and not problem._replace(coords_grad=False, bias_grad=False).coords_grad
    on_a_gpu = problem._replace(device="cuda")
    assert any("coords" in reason for reason in Flex().refuse(on_a_gpu))
    assert not any("coords" in reason for reason in Flex().refuse(on_a_gpu._replace(coords_grad=False)))
    with torch.no_grad():
        assert not attnops.plan(x, x, x, **arguments).problem.coords_grad


def test_a_plan_is_frozen() -> None:
    planned = plan_of(Problem())
    with pytest.raises(AttributeError):
        planned.backend = "reference"  # type: ignore[misc]


def test_trace_collects_every_call_and_stops() -> None:
    x = torch.randn(1, 4, 8)
    with attnops.trace() as plans:
        attnops.attend(x, x, x, backend="reference")
        attnops.attend(x, x, x, pattern=attnops.Causal(), backend="blockwise")
        with attnops.trace() as inner:
            attnops.attend(x, x, x)
    attnops.attend(x, x, x)
    assert [plan.backend for plan in plans] == ["reference", "blockwise"] and len(inner) == 1


def test_auto_stays_inside_the_budget() -> None:
    query = torch.randn(1, 1, 4096, 8)
    arguments = {"bias": torch.randn(1, 1, 4096, 4096), "pattern": attnops.Causal()}
    planned = attnops.plan(query, query, query, **arguments, budget=20 * 2**20)
    taken = next(each for each in planned.candidates if each.name == planned.backend)
    assert taken.bytes <= 20 * 2**20
    sdpa = next(each for each in planned.candidates if each.name == "sdpa")
    assert any("over the budget" in reason for reason in sdpa.refusals)
    with pytest.raises(attnops.UnsupportedError, match="over the budget"):
        attnops.plan(query, query, query, **arguments, budget=10)
    named = attnops.plan(query[:, :, :8], query[:, :, :8], query[:, :, :8], budget=10, backend="reference")
    assert named.backend == "reference"  # a budget binds auto alone


@given(problems("reference", batch=(2,)))
def test_cost_counts_what_is_allowed(problem: Problem) -> None:
    built = problem.build()
    bare = problem.with_(biases=()).build()
    cost = attnops.plan(built.query, built.key, built.value, pattern=bare.pattern, coords=bare.coords).cost
    allowed = bare.allowed()
    assert cost.empty_rows == int((~allowed.any(-1)).sum())
    if not problem.duplicates:
        assert cost.pairs == int(allowed.sum())
        assert cost.density == (cost.pairs / allowed.numel() if allowed.numel() else 0.0)


@given(problems("reference"))
def test_most_pairs_bounds_what_is_allowed(problem: Problem) -> None:
    bare = problem.with_(biases=(), duplicates=False).build()
    planned = attnops.plan(bare.query, bare.key, bare.value, pattern=bare.pattern, coords=bare.coords)
    allowed = bare.allowed()
    assert planned.problem.most_pairs >= (int(allowed.sum((-2, -1)).max()) if allowed.numel() else 0)
    assert planned.problem.most_pairs <= problem.num_queries * problem.num_keys or problem.num_edges is not None
