"""Every python block of the README and of docs/ runs; the blocks of one page share their names, as a reader would type
them in. The reference page leaves out no public name. What is generated is what the code says now."""

from __future__ import annotations

import json
import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch

import attnops
import attnops.graph
import attnops.seq
import attnops.testing
from attnops import block_kernel
from benchmarks import _readme_table
from docs import marked, pictures, support_table

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


# ---------------------------------------------------------------------------------------------------- generated parts
@pytest.mark.parametrize("part", support_table.PARTS)
def test_the_readme_says_what_the_backends_say(part: str) -> None:
    if not block_kernel.WIDE:
        pytest.skip("the README shows a machine with the compiled kernels of native, and vectors of 256 bits or more")
    stands = marked.read_part((ROOT / "README.md").read_text(encoding="utf-8"), part)
    assert stands == support_table.PARTS[part](), "run: python -m docs.support_table"


@pytest.mark.parametrize("feature", support_table.FEATURES, ids=lambda feature: feature.words)
def test_every_tick_runs_and_every_refusal_raises(feature: support_table.Feature) -> None:
    for backend in attnops.available_backends():
        on_edges = support_table.on_edges(backend)

        def run(backend: str = backend, **arguments: Any) -> Any:
            result = attnops.attend(**arguments, backend=backend)
            out = result if isinstance(result, attnops.AttentionOutput) else attnops.AttentionOutput(result)
            if out.out.requires_grad and not torch.compiler.is_compiling():
                out.out.sum().backward()
            assert (out.lse is not None, out.weights is not None) == (
                arguments.get("return_lse", False),
                arguments.get("return_weights", False),
            )
            return out

        if support_table.reasons(feature, backend, on_edges):
            with pytest.raises(attnops.UnsupportedError):
                feature.ask(run, on_edges)
        else:
            feature.ask(run, on_edges)


def test_the_pictures_are_those_of_the_page(tmp_path: Path) -> None:
    drawn = [path.name for path in pictures.draw(tmp_path)]
    committed = sorted(path.name for path in pictures.IMAGES.iterdir())
    assert drawn == committed, "run: python -m docs.pictures"
    for path in pictures.IMAGES.iterdir():
        assert path.stat().st_size < 60_000, f"{path.name} is {path.stat().st_size} bytes"


def test_links_of_the_readme_lead_somewhere() -> None:
    for text in re.findall(r"\]\(([^)\s]+)\)", (ROOT / "README.md").read_text(encoding="utf-8")):
        if "://" in text:
            continue
        path, _, anchor = text.partition("#")
        assert (ROOT / path).is_file(), f"README.md links to {path}"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE)
            anchors = {re.sub(r"[^\w]+", "-", heading.lower()).strip("-") for heading in headings}
            assert anchor in anchors, f"README.md links to {text}; {path} has {sorted(anchors)}"


# -------------------------------------------------------------------------------------- figures and the tracking table
REPORT = {
    "rows": [
        {"problem": "no pattern", "attend_us": 61.25, "overhead_us": 9.5},
        {"problem": "512 edges", "attend_us": 312.4},
    ],
    "small": False,
    "seed": 0,
    "threads": 2,
    "machine": {"cpu": "a CPU", "cores": 2, "system": "a system"},
    "versions": {"python": "3.11", "torch": "2.13"},
}
PAGE = "above\n<!-- figures -->\n<!-- /figures -->\nbetween\n<!-- tracking -->\nold\n<!-- /tracking -->\nbelow\n"


def fill(folder: Path, monkeypatch: pytest.MonkeyPatch, small: bool, summary: dict[str, Any] | None) -> str:
    """What the script makes of a page, a report and a summary."""
    (folder / "page.md").write_text(PAGE, encoding="utf-8")
    (folder / "overhead.json").write_text(json.dumps({**REPORT, "name": "overhead", "small": small}), encoding="utf-8")
    arguments = [
        "_readme_table",
        "--bench",
        str(folder),
        "--page",
        str(folder / "page.md"),
        "--demo",
        str(folder / "demo"),
    ]
    if summary is not None:
        (folder / "demo").write_text(json.dumps(summary), encoding="utf-8")
    monkeypatch.setattr(sys, "argv", arguments)
    _readme_table.main()
    return (folder / "page.md").read_text(encoding="utf-8")


def test_figures_are_filled_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = fill(tmp_path, monkeypatch, small=False, summary=None)
    assert "| problem | attend, µs | overhead, µs |\n| --- | --: | --: |\n| no pattern | 61.2 | 9.5 |" in page
    assert "| 512 edges | 312 | – |" in page
    assert "a CPU, 2 threads, Python 3.11, torch 2.13, seed 0" in page
    assert page.startswith("above\n<!-- figures -->\n**What `attend` costs")
    assert page.endswith("between\n<!-- tracking -->\nold\n<!-- /tracking -->\nbelow\n")


def test_a_small_run_is_no_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert fill(tmp_path, monkeypatch, small=True, summary=None) == PAGE


def test_the_tracking_table_is_filled_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scores = {name: [0.5, 0.0125] for name in ("idf1", "hota", "assa", "link_precision", "link_recall")}
    summary = {"rows": {"fifo": scores, "gatv2_bias": scores}, "protocol": "simulated", "seeds": [0, 1, 2]}
    page = fill(tmp_path, monkeypatch, small=True, summary=summary)
    assert "| row | IDF1 | HOTA |" in page and "old" not in page
    assert f"| `fifo` |{' 0.500 ± 0.013 |' * 5}" in page or f"| `fifo` |{' 0.500 ± 0.012 |' * 5}" in page
    assert "over 3 seeds. Protocol: simulated." in page


def test_a_page_without_the_marks_is_an_error() -> None:
    with pytest.raises(ValueError, match="figures"):
        marked.with_part("nothing", "figures", "body")
