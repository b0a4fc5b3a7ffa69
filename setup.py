"""Builds the compiled kernels where a C++17 compiler is found; all else stands in pyproject.toml.

The kernels are a plain shared library, loaded by ctypes: it includes neither Python's headers nor torch's, so one build
serves every Python and every torch. Each source of attnops/kernels/csrc is compiled once for every vector level, but
for those that know no vectors.
"""

from __future__ import annotations

import os
import platform
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Distribution, Extension, setup
from setuptools.command.build_ext import build_ext

SOURCES = Path("attnops/kernels/csrc")
ONCE = ("entry.cpp", "parallel.cpp", "pieces.cpp", "sorting.cpp")  # know no vectors
FLAGS = ["-std=c++17", "-O3", "-fPIC", "-fvisibility=default", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast", "-pthread"]
FLAGS += ["-Wall", "-Wextra", "-Wno-psabi"]
# level: (compiler flags, bytes of a vector)
X86_LEVELS = {
    "v2": (["-march=x86-64-v2"], 16),
    "v3": (["-march=x86-64-v3"], 32),
    "v4": (["-march=x86-64-v4", "-mprefer-vector-width=512"], 64),
}


def sanitizers() -> list[str]:
    """Flags of `make sanitize`, which names them in ATTNOPS_SANITIZE."""
    wanted = os.environ.get("ATTNOPS_SANITIZE")
    if not wanted:
        return []
    return [f"-fsanitize={wanted}", "-fno-sanitize-recover=all", "-g", "-O1", "-fno-omit-frame-pointer"]


class BuildKernels(build_ext):
    """Compile every source for every level, several at once, and link one library."""

    def get_ext_filename(self, fullname: str) -> str:
        return f"{'/'.join(fullname.split('.'))}.so"

    def build_extension(self, ext: Extension) -> None:
        compiler = os.environ.get("CXX", "c++")
        levels: dict[str, tuple[list[str], int]] = {"plain": ([], 16)}
        x86 = platform.machine().lower() in ("x86_64", "amd64")
        if x86:
            levels |= X86_LEVELS
        common = [*FLAGS, *sanitizers(), *(["-DATTNOPS_X86_LEVELS"] if x86 else [])]
        target = Path(self.get_ext_fullpath(ext.name))
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as folder:
            commands = []
            for source in sorted(SOURCES.glob("*.cpp")):
                for level, (flags, width) in levels.items():
                    if source.name in ONCE and level != "plain":
                        continue
                    made = Path(folder) / f"{source.stem}-{level}.o"
                    defines = [f"-DATTNOPS_LEVEL={level}", f"-DATTNOPS_VECTOR_BYTES={width}"]
                    commands.append([compiler, *common, *flags, *defines, "-c", str(source), "-o", str(made)])
            try:
                with ThreadPoolExecutor(os.cpu_count()) as pool:
                    list(pool.map(_run, commands))
                objects = [command[-1] for command in commands]
                partial = target.with_suffix(".partial")
                _run([compiler, *common, "-shared", *objects, "-o", str(partial)])
                partial.replace(target)
            except (OSError, subprocess.CalledProcessError) as error:
                output = getattr(error, "stderr", "") or str(error)
                print(f"attnops: the compiled kernels were not built: {output}")
                if os.environ.get("ATTNOPS_REQUIRE_KERNELS"):
                    raise


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, stderr=subprocess.PIPE, text=True)


class Platform(Distribution):
    """A wheel holds a library of its machine, whatever the Python."""

    def has_ext_modules(self) -> bool:
        return True


setup(
    ext_modules=[Extension("attnops.kernels.libattnops", [], optional=True)],
    cmdclass={"build_ext": BuildKernels},
    distclass=Platform,
)
