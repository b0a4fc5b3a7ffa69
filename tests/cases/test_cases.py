"""Faults that users of other libraries reported: the right answer on every backend, and each fault made to fail."""

from __future__ import annotations

from types import ModuleType

import pytest

import attnops
from tests.cases import graphs, masks, positions, scores  # noqa: F401  (they keep their solutions)
from tests.cases.solving import SOLUTIONS, check

BACKENDS = [name for name, reason in attnops.available_backends().items() if reason is None]
ALONE = ("B49",)  # no backend has a part in it
# Who refuses what, for the reasons that it states.
REFUSING: dict[str, tuple[str, ...]] = {
    "B07": ("flex",),  # it reads the lse
    "B29": ("flex",),  # it has no dropout
    "B54": ("sdpa", "blockwise", "flex"),  # its edges repeat
}


@pytest.mark.parametrize(
    ("case", "backend"),
    [
        pytest.param(case, name, id=f"{case}-{name}")
        for case in SOLUTIONS
        for name in (BACKENDS if case not in ALONE else [""])
    ],
)
def test_case(cases: ModuleType, case: str, backend: str) -> None:
    inputs, _ = cases.CASES[case]()
    try:
        got = SOLUTIONS[case](inputs, backend)
    except attnops.UnsupportedError as refusal:
        assert repr(backend) in str(refusal) and "best alternative" in str(refusal)
        assert backend in REFUSING.get(case, ()), f"{backend} refuses {case}: {refusal}"
        return
    assert backend not in REFUSING.get(case, ()), f"{backend} no longer refuses {case}: take it off the list"
    check(cases, case, got)


@pytest.mark.parametrize("case", SOLUTIONS)
def test_the_reported_fault_fails_the_same_comparison(cases: ModuleType, case: str) -> None:
    inputs, _ = cases.CASES[case]()
    with pytest.raises(AssertionError):
        check(cases, case, cases.FAULTY[case](inputs))
