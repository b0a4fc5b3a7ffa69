"""Builds the compiled kernels where a C++17 compiler is found; all else stands in pyproject.toml.

The kernels are a plain shared library, loaded by ctypes: it includes neither Python's headers nor torch's, so one build
serves every Python and every torch. Without a compiler the installation goes on without them.

Environment variables:

CXX, CXXFLAGS: the compiler (`c++`), and further flags.
ATTNOPS_REQUIRE_KERNELS: set, a build that fails is an error.
ATTNOPS_SANITIZE: sanitizers to build with, such as `address,undefined`.
"""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Distribution, Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

SOURCES = Path("attnops/kernels/csrc")
LIBRARY = "attnops.kernels.libattnops"
FLAGS = ["-std=c++17", "-O3", "-fPIC", "-fvisibility=default", "-fno-math-errno", "-fno-trapping-math"]
# Without loop patterns: a row of four numbers is copied by a loop, not by a call of memcpy.
FLAGS += ["-ffp-contract=fast", "-fno-tree-loop-distribute-patterns", "-pthread", "-Wall", "-Wextra", "-Wno-psabi"]
# level: (compiler flags, bytes of a vector)
X86_LEVELS = {
    "v2": (["-march=x86-64-v2"], 16),
    "v3": (["-march=x86-64-v3"], 32),
    "v4": (["-march=x86-64-v4", "-mprefer-vector-width=512"], 64),
}


def levels_of(source: Path) -> dict[str, tuple[list[str], int]]:
    """A source that names ATTNOPS_LEVEL is compiled for every vector level, another once."""
    levels: dict[str, tuple[list[str], int]] = {"plain": ([], 16)}
    return levels | X86_LEVELS if is_x86() and "ATTNOPS_LEVEL" in source.read_text(encoding="utf-8") else levels


def is_x86() -> bool:
    return platform.machine().lower() in ("x86_64", "amd64")


def flags() -> list[str]:
    wanted = [*FLAGS, *(["-DATTNOPS_X86_LEVELS"] if is_x86() else []), *shlex.split(os.environ.get("CXXFLAGS", ""))]
    if sanitizers := os.environ.get("ATTNOPS_SANITIZE"):
        return [
            *wanted,
            f"-fsanitize={sanitizers}",
            "-fno-sanitize-recover=all",
            "-g",
            "-O1",
            "-fno-omit-frame-pointer",
        ]
    return [*wanted, "-Wl,-z,defs"] if sys.platform == "linux" else wanted


class BuildKernels(build_ext):
    """Compile every source for every level, several at once, and link one library."""

    def get_ext_filename(self, fullname: str) -> str:
        return f"{'/'.join(fullname.split('.'))}.so"

    def build_extension(self, ext: Extension) -> None:
        target = Path(self.get_ext_fullpath(ext.name))
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)  # a library of other sources is worse than none
        try:
            build(target)
        except (OSError, subprocess.CalledProcessError) as error:
            reason = getattr(error, "stderr", "") or str(error)
            print(f"attnops: the compiled kernels were not built: {reason}", file=sys.stderr)
            if os.environ.get("ATTNOPS_REQUIRE_KERNELS"):
                raise


def build(target: Path) -> None:
    compiler = [*shlex.split(os.environ.get("CXX", "c++")), *flags()]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
        objects, commands = [], []
        for source in sorted(SOURCES.glob("*.cpp")):
            for level, (of_level, width) in levels_of(source).items():
                made = f"{folder}/{source.stem}-{level}.o"
                defines = [f"-DATTNOPS_LEVEL={level}", f"-DATTNOPS_VECTOR_BYTES={width}"]
                commands.append([*compiler, *of_level, *defines, "-c", str(source), "-o", made])
                objects.append(made)
        for _ in pool.map(run, commands):
            pass
        linked = target.with_suffix(".partial")
        run([*compiler, "-shared", *objects, "-o", str(linked)])
        linked.replace(target)


def run(command: list[str]) -> None:
    subprocess.run(command, check=True, stderr=subprocess.PIPE, text=True)


class Wheel(bdist_wheel):
    """A wheel for any Python: of this machine where it holds the library, else of any."""

    def get_tag(self) -> tuple[str, str, str]:
        built = Path(self.get_finalized_command("build_ext").get_ext_fullpath(LIBRARY)).exists()
        return "py3", "none", super().get_tag()[2] if built else "any"


class Platform(Distribution):
    def has_ext_modules(self) -> bool:
        return True


setup(
    ext_modules=[Extension(LIBRARY, [], optional=True)],
    cmdclass={"build_ext": BuildKernels, "bdist_wheel": Wheel},
    distclass=Platform,
)
