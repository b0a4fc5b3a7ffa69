"""The package is built with a compiler and without: what is in it, what it is called, and what it says is missing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from attnops.kernels import library

ROOT = Path(__file__).parents[1]
SOURCES = sorted(path.name for path in (ROOT / "attnops" / "kernels" / "csrc").iterdir())
FILES = ("setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "constraints.txt")
FAKE = """#!/bin/sh
echo "$@" >> "$(dirname "$0")/commands"
while [ $# -gt 0 ]; do [ "$1" = -o ] && : > "$2"; shift; done
"""


def packaged(tree: Path, compiler: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a program on a copy of the project without what earlier builds left."""
    copied = tree / "project"
    if not copied.exists():
        copied.mkdir()
        for name in FILES:
            shutil.copy(ROOT / name, copied)
        left = shutil.ignore_patterns("__pycache__", "*.so", "*.partial")
        shutil.copytree(ROOT / "attnops", copied / "attnops", ignore=left)
    variables = {**os.environ, "CXX": compiler, **variables}
    return subprocess.run([sys.executable, *arguments], cwd=copied, env=variables, capture_output=True, text=True)


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """It makes empty files of the names that it is asked for."""
    program = tmp_path_factory.mktemp("compiler") / "c++"
    program.write_text(FAKE)
    program.chmod(0o755)
    return program


def test_with_a_compiler_the_wheel_holds_the_library_for_any_python(tmp_path: Path, compiler: Path) -> None:
    run = packaged(tmp_path, str(compiler), "-m", "build", "--no-isolation", "--outdir", str(tmp_path / "dist"))
    assert run.returncode == 0, run.stdout + run.stderr
    (sdist,) = (tmp_path / "dist").glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {Path(name).name for name in archive.getnames() if "/csrc/" in name}
    assert names == set(SOURCES), "MANIFEST.in leaves out sources of the kernels"
    (wheel,) = (tmp_path / "dist").glob("*.whl")  # built from the sdist
    platform = wheel.name.removeprefix(f"{wheel.name.split('-py3')[0]}-py3-none-").removesuffix(".whl")
    assert wheel.name.endswith(f"-py3-none-{platform}.whl") and platform != "any"
    inside = zipfile.ZipFile(wheel).namelist()
    assert "attnops/kernels/libattnops.so" in inside and "attnops/py.typed" in inside
    assert not [name for name in inside if "/csrc/" in name]

    commands = (compiler.parent / "commands").read_text()
    for source in SOURCES:
        if not source.endswith(".cpp"):
            continue
        levels = "ATTNOPS_LEVEL" in (ROOT / "attnops" / "kernels" / "csrc" / source).read_text() and "x86" in platform
        assert commands.count(f"/{source} ") == (4 if levels else 1), source


def test_without_a_compiler_the_wheel_is_for_any_machine(tmp_path: Path) -> None:
    run = packaged(tmp_path, "/nonexistent", "-m", "build", "--no-isolation", "--wheel", "--outdir", str(tmp_path))
    assert run.returncode == 0, run.stdout + run.stderr
    assert "the compiled kernels were not built" in run.stdout + run.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    assert not [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".so")]


def test_a_failed_build_leaves_no_older_library(tmp_path: Path, compiler: Path) -> None:
    build = ("setup.py", "-q", "build_ext", "--build-lib", str(tmp_path / "lib"))
    assert packaged(tmp_path, str(compiler), *build).returncode == 0
    built = tmp_path / "lib" / "attnops" / "kernels" / "libattnops.so"
    assert built.exists()
    assert packaged(tmp_path, "/nonexistent", *build).returncode == 0
    assert not built.exists()
    assert packaged(tmp_path, "/nonexistent", *build, ATTNOPS_REQUIRE_KERNELS="1").returncode != 0


WITHOUT = """
import attnops, torch
print(attnops.available_backends()["native"])
x = torch.randn(3, 1, 4, 2)
edges = attnops.Edges(torch.tensor([[0, 3], [1, 1]]), 4, 4)
try:
    attnops.attend(*x, pattern=edges, backend="native")
except attnops.UnsupportedError as error:
    print(error)
out = attnops.attend(*x, pattern=edges)
print(attnops.plan(*x, pattern=edges).backend != "native", out.shape, edges.sorted().order.tolist())
"""


@pytest.mark.parametrize("there", ["nothing", "no library"])
def test_without_the_library_all_else_runs(tmp_path: Path, there: str) -> None:
    path = tmp_path / "libattnops.so"
    if there == "no library":
        path.write_text("text")
    variables = {**os.environ, "ATTNOPS_LIBRARY": str(path)}
    run = subprocess.run([sys.executable, "-c", WITHOUT], env=variables, capture_output=True, text=True, check=True)
    reason, refusal, rest = run.stdout.strip().split("\n")
    wanted = f"ATTNOPS_LIBRARY names {path}, where nothing is"
    assert reason == wanted if there == "nothing" else reason.startswith("the compiled kernels do not load (")
    assert "backend 'native' refuses" in refusal and reason in refusal
    assert rest == "True torch.Size([1, 4, 2]) [0, 1]"


def test_an_installation_without_the_library_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ATTNOPS_LIBRARY", raising=False)
    monkeypatch.setattr(library, "PATH", Path("/nonexistent"))
    found, reason = library._open()
    assert found is None and reason is not None
    assert "C++17 compiler" in reason and "install one, then reinstall attnops from source" in reason
