"""Settings and fixtures that all tests share.

Environment variables, all optional:

``ATTNOPS_DATA``
    A folder of real data sets (``planetoid/``, ``mtmc/``, ...). Tests on real data skip without it.
``ATTNOPS_CASES``
    A folder with a ``cases.py``: faults reported from the field as inputs and right answers. Tests of them skip
    without it.
``ATTNOPS_TEST_BACKEND``
    Name one backend to run only it where a test goes over several, for example ``ATTNOPS_TEST_BACKEND=scatter``.
``ATTNOPS_TEST_LEVEL``
    Name a vector level of the compiled kernels to run them at, for example ``x86-64-v2``; the widest otherwise.
``HYPOTHESIS_PROFILE``
    ``default`` draws new problems each run; ``ci`` draws the same few each time, and is taken where ``CI`` is set;
    ``few`` draws very few, for slow builds.
"""

from __future__ import annotations

import importlib.util
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import hypothesis
import pytest
import torch

from attnops.kernels import library

# The problems are small: one thread is the fastest, and the tests do not fight over the cores.
torch.set_num_threads(1)
if os.environ.get("ATTNOPS_TEST_LEVEL"):
    library.use_level(os.environ["ATTNOPS_TEST_LEVEL"])

_SLOW_IS_FINE = [hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.data_too_large]
hypothesis.settings.register_profile(
    "default", deadline=None, derandomize=True, max_examples=50, suppress_health_check=_SLOW_IS_FINE
)
hypothesis.settings.register_profile("explore", deadline=None, max_examples=200, suppress_health_check=_SLOW_IS_FINE)
hypothesis.settings.register_profile(
    "ci", deadline=None, max_examples=20, derandomize=True, database=None, suppress_health_check=_SLOW_IS_FINE
)
hypothesis.settings.register_profile(
    "few", deadline=None, max_examples=4, derandomize=True, database=None, suppress_health_check=_SLOW_IS_FINE
)
_PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "default")
hypothesis.settings.load_profile(_PROFILE)


def pytest_report_header() -> list[str]:
    variables = ("ATTNOPS_DATA", "ATTNOPS_CASES", "ATTNOPS_TEST_BACKEND", "ATTNOPS_LIBRARY")
    named = {name: os.environ.get(name, "not set") for name in variables}
    kernels = library.unavailable() or f"compiled, {library.level()}"
    return [
        f"torch {torch.__version__}, hypothesis profile {_PROFILE}",
        f"kernels: {kernels}",
        *(f"{k}: {v}" for k, v in named.items()),
    ]


@pytest.fixture(autouse=True)
def _seeds() -> None:
    random.seed(0)
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _no_open_figures() -> Iterator[None]:
    """Pictures that a test leaves open count against the next one's."""
    yield
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")


def _folder(variable: str) -> Path:
    value = os.environ.get(variable)
    if not value:
        pytest.skip(f"{variable} is not set")
    folder = Path(value)
    if not folder.is_dir():
        pytest.fail(f"{variable} is {value!r}, which is not a folder")
    return folder


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real data sets, ``$ATTNOPS_DATA``."""
    return _folder("ATTNOPS_DATA")


@pytest.fixture(scope="session")
def cases() -> ModuleType:
    """``$ATTNOPS_CASES/cases.py``: ``CASES[name]() -> (inputs, expected)``, with ``TOL``, ``FAULTY`` and ``TITLES``."""
    path = _folder("ATTNOPS_CASES") / "cases.py"
    spec = importlib.util.spec_from_file_location("attnops_field_cases", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def only_backend() -> str | None:
    """The one backend asked for by ``$ATTNOPS_TEST_BACKEND``, or None for all."""
    return os.environ.get("ATTNOPS_TEST_BACKEND") or None


def _poisoned(allocate: Any) -> Any:
    def allocate_with_nan(*args: Any, **kwargs: Any) -> torch.Tensor:
        tensor: torch.Tensor = allocate(*args, **kwargs)
        if tensor.is_floating_point() or tensor.is_complex():
            with torch.no_grad():
                tensor.fill_(float("nan"))
        return tensor

    return allocate_with_nan


@pytest.fixture
def poison(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fill what ``torch.empty`` and its kin return with NaN, so that a result read before it is written shows.

    A whole file asks for it by ``pytestmark = pytest.mark.usefixtures("poison")``.
    """
    for name in ("empty", "empty_like", "empty_strided"):
        monkeypatch.setattr(torch, name, _poisoned(getattr(torch, name)))
    for name in ("new_empty", "new_empty_strided"):
        monkeypatch.setattr(torch.Tensor, name, _poisoned(getattr(torch.Tensor, name)))
    yield
