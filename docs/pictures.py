"""The pictures of README.md and docs/, drawn anew by the code of the pages that show them.

python -m docs.pictures
"""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

DOCS = Path(__file__).parent
IMAGES = DOCS / "images"


def pages() -> list[Path]:
    """The pages whose code saves a picture."""
    return [page for page in sorted(DOCS.rglob("*.md")) if ".savefig(" in page.read_text(encoding="utf-8")]


def draw(folder: Path) -> list[Path]:
    """Run the blocks of these pages in `folder`, where they save their pictures."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    here = Path.cwd()
    os.chdir(folder)
    try:
        for page in pages():
            blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
            names = {"__name__": page.stem}
            for block in blocks:
                exec(compile(block, str(page), "exec", dont_inherit=True), names)
            pyplot.close("all")
    finally:
        os.chdir(here)
        pyplot.close("all")
    return sorted(folder.glob("*.png"))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=IMAGES.parent) as drafts:
        for picture in draw(Path(drafts)):
            picture.replace(IMAGES / picture.name)
            print(f"docs/images/{picture.name}: {(IMAGES / picture.name).stat().st_size / 1000:.0f} kB")
