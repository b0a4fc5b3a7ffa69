"""``python -m examples.mtmc``."""

from __future__ import annotations

from examples.mtmc.cli import main

if __name__ == "__main__":
    main()
