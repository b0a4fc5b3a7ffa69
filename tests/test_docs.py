"""Every python block of the README and of docs/ runs; the blocks of one page share their names, as a reader would type
them in. The reference page leaves out no public name."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path

import pytest

import attnops
import attnops.graph
import attnops.seq
import attnops.testing

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
FENCE = re.compile(r"^```(?P<language>[\w-]*)[^\n]*\n(?P<code>.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)


def python_blocks(page: Path) -> list[tuple[int, str]]:
    """The python blocks of a page, each with the number of lines above its first."""
    text = page.read_text(encoding="utf-8")
    return [
        (text.count("\n", 0, found.start("code")), found["code"])
        for found in FENCE.finditer(text)
        if found["language"] in ("python", "py")
    ]


@pytest.mark.parametrize(
    "page", [page for page in PAGES if python_blocks(page)], ids=lambda page: str(page.relative_to(ROOT))
)
def test_the_code_of_a_page_runs(page: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)  # what a block writes stays out of the work tree
    module = types.ModuleType(f"page_{page.stem.replace('-', '_')}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for lines_above, code in python_blocks(page):
        # Padded and named after the page, so that a traceback shows the page's own lines.
        exec(compile("\n" * lines_above + code, str(page), "exec", dont_inherit=True), module.__dict__)


def test_readme_and_guide_have_code_to_run() -> None:
    for name in ("README.md", "docs/guides/first-prior.md"):
        assert python_blocks(ROOT / name), f"{name} has no python block: is the fence written ```python?"


def test_every_fence_names_its_language() -> None:
    nameless = [
        f"{page.relative_to(ROOT)}:{page.read_text(encoding='utf-8').count(chr(10), 0, found.start()) + 1}"
        for page in PAGES
        for found in FENCE.finditer(page.read_text(encoding="utf-8"))
        if not found["language"]
    ]
    assert not nameless, f"a fence without a language is never run: {nameless}"


def public_names(module: types.ModuleType) -> set[str]:
    """The names a module shows: what it defines or re-exports as its own (`from … import X as X`)."""
    return {
        f"{module.__name__}.{name}"
        for name, value in vars(module).items()
        if name[0] != "_" and getattr(value, "__module__", "").startswith("attnops")
    }


def test_the_reference_names_every_public_name() -> None:
    reference = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^::: ([\w.]+)$", reference, re.MULTILINE))
    checks = {f"attnops.testing.{name}" for name in vars(attnops.testing) if name.startswith("check_")}
    public = public_names(attnops) | public_names(attnops.graph) | public_names(attnops.seq) | checks
    assert len(public) > 40
    assert public <= listed, f"missing from docs/reference.md: {sorted(public - listed)}"


def test_the_plan_of_the_rooms_is_true() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    drawn = set(re.findall(r"^  (\w+)(?:\.py|/) ", page, re.MULTILINE))
    standing = {path.stem for path in (ROOT / "attnops").glob("[a-z]*.py")}
    standing |= {path.parent.name for path in (ROOT / "attnops").glob("*/__init__.py")}
    assert drawn == standing, f"drawn alone: {sorted(drawn - standing)}; missing: {sorted(standing - drawn)}"
