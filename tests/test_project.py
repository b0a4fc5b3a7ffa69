"""What holds for the whole project: light imports, documented names, short files, one version, no private paths."""

from __future__ import annotations

import ast
import inspect
import json
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import attnops
import attnops.distributed
import attnops.graph
import attnops.seq
from attnops.version import __version__

ROOT = Path(__file__).parents[1]
MODULES = sorted((ROOT / "attnops").rglob("*.py"))

# Heavy or optional: loaded where they are used, never by `import attnops`.
HEAVY = (
    "triton",
    "torch._inductor",
    "torch_geometric",
    "torch_scatter",
    "transformers",
    "networkx",
    "matplotlib",
    "scipy",
    "trackeval",
)


def modules_after(statement: str) -> set[str]:
    """The modules that a fresh process has loaded after a statement."""
    code = f"import json, sys\n{statement}\nprint(json.dumps(sorted(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(json.loads(run.stdout))


def heavy(modules: set[str]) -> set[str]:
    return {name for name in modules if any(name == top or name.startswith(f"{top}.") for top in HEAVY)}


@pytest.fixture(scope="module")
def loaded_by_torch() -> set[str]:
    return heavy(modules_after("import torch"))


def test_importing_attnops_loads_nothing_heavy(loaded_by_torch: set[str]) -> None:
    extra = heavy(modules_after("import torch, attnops, attnops.graph, attnops.seq, attnops.testing")) - loaded_by_torch
    assert not extra, f"importing attnops loads {sorted(extra)}"


def test_the_check_of_light_imports_can_fail(loaded_by_torch: set[str]) -> None:
    assert "networkx" in heavy(modules_after("import networkx"))
    assert "scipy" in heavy(modules_after("import scipy")) - loaded_by_torch


PUBLIC_NAMES = [
    (f"{module.__name__}.{name}", value)
    for module in (attnops, attnops.distributed, attnops.graph, attnops.seq)
    for name, value in sorted(vars(module).items())
    if name[0] != "_" and getattr(value, "__module__", "").startswith("attnops")
]


@pytest.mark.parametrize(("name", "value"), PUBLIC_NAMES, ids=[name for name, _ in PUBLIC_NAMES])
def test_a_public_name_says_what_it_is(name: str, value: object) -> None:
    text = value.__dict__.get("__doc__") if inspect.isclass(value) else value.__doc__
    assert text and text.strip(), f"{name} has no docstring of its own"
    assert not text.startswith(f"{name.rpartition('.')[2]}("), f"{name} has only the docstring that dataclass writes"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_is_short_enough_to_read(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").count("\n")
    assert lines <= 400, f"{path.relative_to(ROOT)} has {lines} lines; split it by ideas (400 at most)"


def test_the_version_stands_in_step() -> None:
    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert metadata.version("attnops") == __version__, "the installed metadata is stale: run `make test`"


PUBLIC = {"attnops", "attnops.seq", "attnops.graph", "attnops.distributed", "attnops.testing", "attnops.viz"}
OUTSIDE = sorted([*(ROOT / "examples").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")])


@pytest.mark.parametrize("path", OUTSIDE, ids=lambda path: str(path.relative_to(ROOT)))
def test_examples_and_benchmarks_use_public_names_alone(path: Path) -> None:
    imported = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            imported.add(node.module)
    private = {name for name in imported if name.startswith("attnops.")} - PUBLIC
    assert not private, f"{path.relative_to(ROOT)} reaches into {sorted(private)}"


def tracked_files() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git work tree")
    return [ROOT / name for name in listed.stdout.split("\0") if name]


def test_no_file_holds_the_path_of_someones_machine() -> None:
    private = re.compile(rb"(?<![\w./-])/(?:" + b"|".join((b"work", b"root", b"home", b"Users")) + rb")/\w")
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in tracked_files()
        if path.is_file() and not path.is_symlink()
        for number, line in enumerate(path.read_bytes().splitlines(), 1)
        if private.search(line)
    ]
    assert not found, f"absolute paths of one machine: {found}"


@pytest.mark.parametrize("name", ["seq", "graph"])
def test_the_links_at_the_root_show_the_two_halves(name: str) -> None:
    assert (ROOT / name).is_symlink()
    assert (ROOT / name).resolve() == (ROOT / "attnops" / name).resolve()
    assert (ROOT / name / "__init__.py").is_file()
