"""The pictures of README.md and docs/, drawn anew by the code of docs/guides/pictures.md.

python -m docs.pictures
"""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

PAGE = Path(__file__).parent / "guides" / "pictures.md"
IMAGES = Path(__file__).parent / "images"


def draw(folder: Path) -> list[Path]:
    """Run the page's blocks in `folder`, where they save their pictures."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    here, names = Path.cwd(), {"__name__": "pictures"}
    os.chdir(folder)
    try:
        for block in blocks:
            exec(compile(block, str(PAGE), "exec", dont_inherit=True), names)
    finally:
        os.chdir(here)
        pyplot.close("all")
    return sorted(folder.glob("*.png"))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=IMAGES.parent) as drafts:
        for picture in draw(Path(drafts)):
            picture.replace(IMAGES / picture.name)
            print(f"docs/images/{picture.name}: {(IMAGES / picture.name).stat().st_size / 1000:.0f} kB")
